// meshwright plan: the best way to train a model on a cluster, with its reasons.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "planner/ir/load_model.h"
#include "planner/predict/few_micro_batches.h"
#include "planner/search/find_plans.h"
#include "tools/commands.h"
#include "tools/evaluate.h"
#include "tools/plan_mixed.h"
#include "tools/plan_stack.h"
#include "tools/plan_view.h"
#include "tools/resolve.h"
#include "tools/split_options.h"
#include "tools/table.h"

namespace meshwright::tools {
namespace {

using planner::FoundPlan;
using planner::SearchResult;

constexpr size_t kMostFrontRows = 12;

struct PlanArguments {
  SplitOptions split;
  ClusterOptions cluster;
  std::string output;
  StackPlanOptions more;  ///< top and explain are for our own stack too
};

planner::SearchOptions ToSearchOptions(const PlanArguments& a, const Machine& machine,
                                       const cost::CostModel& costs) {
  const SplitOptions& s = a.split;
  planner::SearchOptions options;
  options.gpus = !a.cluster.gpus && s.tp && s.pp && s.dp ? s.ranks() : machine.gpus;
  options.global_batch = *s.global_batch;
  options.sequence = s.sequence.value_or(0);
  options.dtype = s.DTypeOn(machine.on_cpu());
  options.optimizer = s.Optimizer();
  options.deterministic = s.deterministic;
  options.tp = s.tp;
  options.cp = s.cp;
  options.ep = s.ep;
  options.pp = s.pp;
  options.virtual_stages = s.virtual_stages;
  options.dp = s.dp;
  options.micro_batch = s.micro_batch;
  options.sequence_parallel = s.HeldSequenceParallel();
  options.tensor_chunks = s.tensor_chunks;
  options.sharding = s.HeldSharding();
  options.recompute = s.HeldRecompute();
  options.layers = s.layers;
  options.vocab_quantum = s.VocabQuantumOn(machine.on_cpu());
  options.logits_chunk_bytes = s.LogitsChunkBytesOn(machine);
  options.top = a.more.top;
  options.front = a.more.explain;
  options.threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 64u));
  options.predict = [&machine, &costs](const planner::Plan& plan) -> Result<planner::Prediction> {
    MW_ASSIGN_OR_RETURN(planner::SimulatedStep step,
                        planner::PredictFromFew(plan, machine.cluster, costs));
    return std::move(step.prediction);
  };
  options.confirm = [&machine, &costs, threads = options.threads](const planner::Plan& plan) {
    return Confirm(plan, machine.cluster, costs, threads);
  };
  return options;
}

std::string RunnersUpText(const planner::Plan& best, const Style& style) {
  if (best.runners_up.empty()) return "";
  Table table({"plan", "step time", "against the best", "why it lost"});
  for (const planner::RunnerUp& r : best.runners_up) {
    const double ratio =
        best.prediction.step_time_s > 0 ? r.step_time_s / best.prediction.step_time_s - 1 : 0;
    table.Row(
        {r.plan, SecondsText(r.step_time_s), fmt::format("{:+.1f} %", ratio * 100), r.reason});
  }
  return HeadingText("runners-up", style) + table.ToText(style);
}

std::string ExplainText(const SearchResult& found, const Style& style) {
  const planner::SearchCounts& c = found.counts;
  std::string text = HeadingText("the search", style);
  text += fmt::format(
      "  {} legal configurations: {} ruled out by memory and {} by a lower bound of time, {} "
      "evaluated, "
      "{} of them fit; {} of which simulation {}\n",
      Thousands(c.configurations), Thousands(c.bounded_by_memory), Thousands(c.bounded_by_time),
      Thousands(c.evaluated), Thousands(c.feasible), SecondsText(c.seconds),
      SecondsText(c.simulation_seconds));
  Table gaps({"plan", "objective", "simulated", "gap"});
  for (const FoundPlan& f : found.plans) {
    if (f.plan.prediction.step_time_s <= 0) continue;  // not simulated
    gaps.Row({planner::ShortName(f.plan), SecondsText(f.objective_s),
              SecondsText(f.plan.prediction.step_time_s), fmt::format("{:+.1f} %", f.gap * 100)});
  }
  text += HeadingText("objective against simulation", style) + gaps.ToText(style);
  if (found.front.empty()) return text;
  Table front({"plan", "objective", "memory, fullest rank", "GPUs"});
  for (const planner::FrontPoint& p : found.front) {
    if (front.rows() == kMostFrontRows) break;
    front.Row({p.plan, SecondsText(p.objective_s), BytesText(p.memory_bytes), Thousands(p.gpus)});
  }
  text += HeadingText("plans that no other beats in time, memory and GPUs at once", style) +
          front.ToText(style);
  if (found.front.size() > kMostFrontRows) {
    text += fmt::format("  and {} slower ones (--json lists all)\n",
                        found.front.size() - kMostFrontRows);
  }
  return text;
}

void FillDocument(const SearchResult& found, const Machine& machine,
                  const std::vector<std::string>& warnings, nlohmann::json* document) {
  nlohmann::json& d = *document;
  const planner::Plan& plan = found.plans.front().plan;
  AddPrediction(plan.prediction, machine.profile, &d);
  d["fits"] = true;
  d["split"] = SplitJson(plan);
  d["stages"] =
      StagesJson(plan, plan.prediction, DeviceBytes(plan, machine.cluster, machine.profile));
  d["reasons"] = plan.reasons;
  d["warnings"] = warnings;
  d["runners_up"] = nlohmann::json::array();
  for (const planner::RunnerUp& r : plan.runners_up) {
    d["runners_up"].push_back(
        {{"plan", r.plan}, {"step_time_s", r.step_time_s}, {"reason", r.reason}});
  }
  const planner::SearchCounts& c = found.counts;
  d["search"] = {{"configurations", c.configurations},
                 {"bounded_by_memory", c.bounded_by_memory},
                 {"bounded_by_time", c.bounded_by_time},
                 {"evaluated", c.evaluated},
                 {"feasible", c.feasible},
                 {"seconds", c.seconds},
                 {"simulation_seconds", c.simulation_seconds},
                 {"objective_s", found.plans.front().objective_s},
                 {"bounded", c.bounded_by_memory + c.bounded_by_time},
                 // The search is exact for its objective.
                 {"lower_bound_s", found.plans.front().objective_s},
                 {"gap", 0.0},
                 {"simulation_gap", found.plans.front().gap}};
  d["front"] = nlohmann::json::array();
  for (const planner::FrontPoint& p : found.front) {
    d["front"].push_back({{"plan", p.plan},
                          {"objective_s", p.objective_s},
                          {"memory_bytes", p.memory_bytes},
                          {"gpus", p.gpus}});
  }
}

Status PlanForeignStack(const PlanArguments& a, Output& output) {
  if (!a.output.empty()) {
    return Unsupported("-o " + a.output +
                       ": plan files hold what our own stack runs; found --stack " + a.split.stack +
                       "; use --json for the split");
  }
  if (a.cluster.cluster != "cpu" && a.split.model != "any") {
    MW_ASSIGN_OR_RETURN(const topologies::Cluster cluster, ResolveGpuCluster(a.cluster));
    if (HasUnlikeDevices(cluster)) {
      if (a.cluster.gpus) {
        return Unsupported("--gpus: a cluster of unlike GPUs is used whole; leave --gpus out");
      }
      MW_ASSIGN_OR_RETURN(const planner::ModelSpec model, planner::LoadModel(a.split.model));
      return PlanMixed(a.split, a.more, model, cluster, output);
    }
  }
  MW_ASSIGN_OR_RETURN(const Machine machine, ResolveMachine(a.cluster, 0, output));
  if (a.split.model == "any") return WhichModelFits(a.split, machine, output);
  MW_ASSIGN_OR_RETURN(const planner::ModelSpec model, planner::LoadModel(a.split.model));
  output.document().update({{"model", model.name},
                            {"parameters", planner::TotalParameters(model)},
                            {"model_defaults", model.defaults_filled},
                            {"model_notes", model.notes}});
  return PlanStack(a.split, a.more, model, machine, output);
}

Status MakePlanFile(const PlanArguments& a, Output& output) {
  if (!a.split.own_stack()) {
    output.document() = {{"fits", nullptr}, {"errors", nlohmann::json::array()}};
    return PlanForeignStack(a, output);
  }
  MW_RETURN_IF_ERROR(CheckOwnStack(a.split));
  MW_ASSIGN_OR_RETURN(const planner::ModelSpec model, planner::LoadModel(a.split.model));
  nlohmann::json& document = output.document();
  document = {{"model", model.name},
              {"parameters", planner::TotalParameters(model)},
              {"fits", nullptr},
              {"model_defaults", model.defaults_filled},
              {"model_notes", model.notes},
              {"errors", nlohmann::json::array()}};
  const bool any_held = a.split.tp || a.split.pp || a.split.dp || a.split.cp || a.split.ep;
  MW_ASSIGN_OR_RETURN(const Machine machine,
                      ResolveMachine(a.cluster, any_held ? a.split.ranks() : 0, output));
  const int64_t sequence = a.split.sequence.value_or(model.modules.front().max_positions);
  MW_ASSIGN_OR_RETURN(const cost::CostModel costs,
                      CostsFor(machine.profile, a.split.DTypeOn(machine.on_cpu()), model, sequence,
                               machine.cluster));
  const auto found =
      planner::FindPlans(model, machine.cluster, costs, ToSearchOptions(a, machine, costs));
  if (!found.ok()) {
    if (found.status().code() == StatusCode::kInfeasible) document["fits"] = false;
    return found.status();
  }
  const planner::Plan& plan = found->plans.front().plan;
  std::vector<std::string> warnings = plan.warnings;
  warnings.insert(warnings.end(), machine.cluster.warnings().begin(),
                  machine.cluster.warnings().end());
  FillDocument(*found, machine, warnings, &document);
  const Style& style = output.style();
  output.Text(PlanText(plan, style) +
              StagesText(plan, plan.prediction, DeviceBytes(plan, machine.cluster, machine.profile),
                         style) +
              PredictionText(plan, plan.prediction, machine.profile, style) +
              ListText("reasons", plan.reasons, style) + RunnersUpText(plan, style) +
              (a.more.explain ? ExplainText(*found, style) : "") +
              ListText("warnings", warnings, style) +
              ListText("defaults of the model family", model.defaults_filled, style) +
              ListText("the model file also says", model.notes, style));
  if (a.output.empty()) return Status::Ok();
  MW_RETURN_IF_ERROR(WriteFileAtomically(a.output, planner::WritePlanJson(plan)));
  document["plan_file"] = a.output;
  output.Progress(fmt::format("plan: {}", a.output));
  return Status::Ok();
}

}  // namespace

Command PlanCommand() {
  auto arguments = std::make_shared<PlanArguments>();
  return {"plan", "the best way to train a model on a cluster, and why",
          [arguments](OptionSet& options) {
            arguments->cluster.Declare(options);
            options.Text("-o,--output", &arguments->output, "FILE", "write the plan (plan.json)");
            options.Int("--top", &arguments->more.top, {1, 100}, "plans to simulate and compare");
            options.Flag("--explain", &arguments->more.explain,
                         "also how the search went, and what every decision is worth");
            options.Flag("--front", &arguments->more.front,
                         "with --stack: the splits that no other beats in time, memory and GPUs");
            options.Flag("--any-gpus", &arguments->more.any_gpus,
                         "with --stack: also fewer GPUs, from one host on, doubling");
            options.Real("--price", &arguments->more.price_per_gpu_hour, {0, 1e6},
                         "of a GPU for an hour, for the costs of --front");
            options.Real("--train-tokens", &arguments->more.train_tokens, {0, 1e18},
                         "to train on, for the costs of --front");
            arguments->split.Declare(options);
          },
          [arguments](Output& output) { return MakePlanFile(*arguments, output); }};
}

}  // namespace meshwright::tools
