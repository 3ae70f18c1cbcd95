#include "tools/plan_stack.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "planner/ir/load_model.h"
#include "planner/space/answers.h"
#include "planner/space/finalists.h"
#include "planner/space/find_splits.h"
#include "tools/stack_machine.h"
#include "tools/table.h"

namespace meshwright::tools {
namespace {

using planner::space::Certificate;
using planner::space::DeviceGroup;
using planner::space::Finalist;
using planner::space::FrontPoint;
using planner::space::RunnerUp;
using planner::space::Solution;
using planner::space::SpaceOptions;
using planner::space::SpaceResult;
using planner::stack::StackStageCosts;

constexpr double kMostSeconds = 60.0;  // of one search; the certificate says what is left open

/// Of the best by the search's closed formula, so many may be simulated (BestFinalists).
constexpr size_t kMostFinalists = 32;

/// `configurations`, `evaluated`, `bounded`, `feasible`, `seconds`, `lower_bound_s`, `gap`.
nlohmann::json CertificateJson(const Certificate& c) {
  return {{"configurations", c.configurations},
          {"evaluated", c.evaluated},
          {"bounded", c.bounded},
          {"feasible", c.feasible},
          {"seconds", c.seconds},
          {"lower_bound_s", c.lower_bound_s},
          {"gap", c.gap}};
}

std::string CertificateText(const SpaceResult& found, const Style& style) {
  const Certificate& c = found.certificate;
  return HeadingText("the search", style) + fmt::format(
                                                "  {} configurations in {}: {} cut by lower "
                                                "bounds, {} solved exactly; no configuration "
                                                "is faster than {} (gap {:.2f} %)\n",
                                                Thousands(c.configurations), SecondsText(c.seconds),
                                                Thousands(c.bounded), Thousands(c.evaluated),
                                                SecondsText(c.lower_bound_s), 100 * c.gap);
}

std::string BestText(const std::vector<Finalist>& best, const Style& style) {
  Table table(
      {"split", "layers", "step time", "simulated", "against the best", "memory, fullest rank"});
  for (const Finalist& f : best) {
    const Solution& s = f.solution;
    table.Row({ShortName(s.tuple.split), KeptText(s.stages), SecondsText(s.objective_s),
               SecondsText(f.simulated_s),
               fmt::format("{:+.1f} %", 100 * (f.simulated_s / best.front().simulated_s - 1)),
               BytesText(static_cast<int64_t>(s.peak_bytes()))});
  }
  return HeadingText("the best splits, by simulation of their pipelines", style) +
         table.ToText(style);
}

std::string DecisionsText(const std::vector<RunnerUp>& runners, const Style& style,
                          nlohmann::json* document) {
  Table table({"decision", "chosen", "otherwise", "costs"});
  (*document)["decisions"] = nlohmann::json::array();
  for (const RunnerUp& r : runners) {
    table.Row({r.axis, r.chosen,
               r.other ? ShortName(r.other->tuple.split) : "no other value is legal and fits",
               r.other ? fmt::format("{:+.1f} %", 100 * r.loss) : ""});
    (*document)["decisions"].push_back(
        {{"axis", r.axis},
         {"chosen", r.chosen},
         {"other", r.other ? nlohmann::json(ShortName(r.other->tuple.split)) : nlohmann::json()},
         {"loss", r.other ? nlohmann::json(r.loss) : nlohmann::json()},
         {"reason", r.reason}});
  }
  return HeadingText("what every decision is worth", style) + table.ToText(style);
}

std::string FrontText(const std::vector<FrontPoint>& front, bool costs, const Style& style,
                      nlohmann::json* document) {
  Table table(
      {"GPUs", "split", "layers", "step time", "memory, fullest rank", costs ? "cost" : ""});
  (*document)["front"] = nlohmann::json::array();
  for (const FrontPoint& p : front) {
    const Solution& s = p.solution;
    table.Row({Thousands(p.gpus), ShortName(s.tuple.split), KeptText(s.stages),
               SecondsText(s.objective_s), BytesText(static_cast<int64_t>(p.peak_bytes)),
               costs ? NumberText(p.cost) : ""});
    (*document)["front"].push_back({{"plan", ShortName(s.tuple.split)},
                                    {"recompute", KeptText(s.stages)},
                                    {"gpus", p.gpus},
                                    {"objective_s", s.objective_s},
                                    {"memory_bytes", static_cast<int64_t>(p.peak_bytes)},
                                    {"cost", costs ? nlohmann::json(p.cost) : nlohmann::json()}});
  }
  return HeadingText("splits that no other beats in time, memory and GPUs at once", style) +
         table.ToText(style);
}

/// GPU counts to try: of the machine, or doubling from one host.
std::vector<int64_t> CountsOf(const Machine& machine, bool any) {
  if (!any) return {machine.gpus};
  std::vector<int64_t> counts;
  for (int64_t n = machine.cluster.min_devices_per_host(); n < machine.gpus; n *= 2) {
    counts.push_back(n);
  }
  counts.push_back(machine.gpus);
  return counts;
}

/// FindSplits; when nothing fits, the error says what binds and what would fit, and the document
/// lists it under `would_fit`.
Result<SpaceResult> SearchOrExplain(const std::vector<DeviceGroup>& groups,
                                    const SpaceOptions& space, nlohmann::json* document) {
  Result<SpaceResult> found = FindSplits(groups, space);
  if (found.ok() || found.status().code() != StatusCode::kInfeasible) return found;
  (*document)["fits"] = false;
  const auto answer = WhatWouldFit(groups, space);
  if (!answer.ok()) return found.status();
  (*document)["would_fit"] = nlohmann::json::array();
  for (const planner::space::Change& change : answer->changes) {
    (*document)["would_fit"].push_back({{"change", change.text},
                                        {"split", ShortName(change.solution.tuple.split)},
                                        {"step_time_s", change.solution.objective_s}});
  }
  return Infeasible(answer->Text());
}

}  // namespace

Result<SimulatedSearch> SearchAndSimulate(const std::vector<DeviceGroup>& groups,
                                          SpaceOptions space, size_t shown,
                                          nlohmann::json* document) {
  space.top = std::max(shown, kMostFinalists);
  SimulatedSearch search;
  MW_ASSIGN_OR_RETURN(search.found, SearchOrExplain(groups, space, document));
  MW_ASSIGN_OR_RETURN(search.finalists, BestFinalists(groups, search.found.best, shown));
  return search;
}

void ShowSearch(const SimulatedSearch& search, Output& output) {
  nlohmann::json& document = output.document();
  const std::vector<Finalist>& finalists = search.finalists;
  document["search"] = CertificateJson(search.found.certificate);
  document["search"]["simulation_gap"] = finalists.front().gap;
  document["simulated_step_s"] = finalists.front().simulated_s;
  document["runners_up"] = nlohmann::json::array();
  for (size_t i = 1; i < finalists.size(); ++i) {
    document["runners_up"].push_back({{"plan", ShortName(finalists[i].solution.tuple.split)},
                                      {"step_time_s", finalists[i].solution.objective_s},
                                      {"simulated_step_s", finalists[i].simulated_s}});
  }
  output.Text(CertificateText(search.found, output.style()) + BestText(finalists, output.style()));
}

Status PlanStack(const SplitOptions& split, const StackPlanOptions& options,
                 const planner::ModelSpec& model, const Machine& machine, Output& output) {
  nlohmann::json& document = output.document();
  MW_ASSIGN_OR_RETURN(const std::unique_ptr<StackStageCosts> costs,
                      StackCostsFor(split, model, machine));
  MW_ASSIGN_OR_RETURN(SpaceOptions space, SpaceFor(split, costs->inputs(), machine));
  space.time_limit_s = kMostSeconds;
  space.gpus = CountsOf(machine, options.any_gpus);
  const std::vector<DeviceGroup> groups = {
      {machine.cluster.name(), costs.get(), DeviceBytesOf(machine), 0}};
  MW_ASSIGN_OR_RETURN(
      const SimulatedSearch search,
      SearchAndSimulate(groups, space, static_cast<size_t>(options.top), &document));
  const Solution& best = search.finalists.front().solution;
  const planner::stack::StepPrediction prediction =
      PredictStep(*costs, best.tuple.split, best.stages);
  ShowStackPrediction(model, machine, *costs, best.tuple.split, best.stages, prediction, output);
  ShowSearch(search, output);
  const Style& style = output.style();
  if (options.explain) {
    std::vector<RunnerUp> runners = RunnersUp(groups, space, best);
    for (RunnerUp& r : runners) {
      if (!r.other) continue;
      MW_ASSIGN_OR_RETURN(const std::vector<Finalist> other, SimulateFinalists(groups, {*r.other}));
      r.loss = other.front().simulated_s / search.finalists.front().simulated_s - 1;
    }
    output.Text(DecisionsText(runners, style, &document));
  }
  if (options.front) {
    planner::space::FrontOptions front;
    front.price_per_gpu_hour = options.price_per_gpu_hour;
    front.tokens = options.train_tokens;
    MW_ASSIGN_OR_RETURN(const std::vector<FrontPoint> points, ParetoFront(groups, space, front));
    const bool priced = options.price_per_gpu_hour > 0 && options.train_tokens > 0;
    output.Text(FrontText(points, priced, style, &document));
  }
  return Status::Ok();
}

Status WhichModelFits(const SplitOptions& split, const Machine& machine, Output& output) {
  nlohmann::json& document = output.document();
  document["models"] = nlohmann::json::array();
  Table table({"model", "parameters", "split", "step time", "tokens/s a GPU", "memory"});
  for (const std::string& name : planner::ShippedModels()) {
    MW_ASSIGN_OR_RETURN(const planner::ModelSpec model, planner::LoadModel(name));
    if (model.modules.size() != 1) continue;
    SplitOptions asked = split;
    const int64_t longest = model.modules.front().max_positions;
    if (!asked.sequence || (longest > 0 && *asked.sequence > longest)) asked.sequence = longest;
    MW_ASSIGN_OR_RETURN(const std::unique_ptr<StackStageCosts> costs,
                        StackCostsFor(asked, model, machine));
    MW_ASSIGN_OR_RETURN(SpaceOptions space, SpaceFor(asked, costs->inputs(), machine));
    space.top = 1;
    space.time_limit_s = kMostSeconds;
    const std::vector<DeviceGroup> groups = {
        {machine.cluster.name(), costs.get(), DeviceBytesOf(machine), 0}};
    const Result<SpaceResult> found = FindSplits(groups, space);
    nlohmann::json row = {{"model", name},
                          {"parameters", planner::TotalParameters(model)},
                          {"sequence", *asked.sequence},
                          {"fits", found.ok()}};
    const std::string parameters = Thousands(planner::TotalParameters(model));
    if (found.ok()) {
      const Solution& best = found->best.front();
      const double tokens = static_cast<double>(*split.global_batch * *asked.sequence) /
                            best.objective_s / static_cast<double>(machine.gpus);
      table.Row({name, parameters, ShortName(best.tuple.split), SecondsText(best.objective_s),
                 NumberText(tokens), BytesText(static_cast<int64_t>(best.peak_bytes()))});
      row["split"] = ShortName(best.tuple.split);
      row["step_time_s"] = best.objective_s;
      row["tokens_per_s_per_gpu"] = tokens;
    } else {
      if (found.status().code() != StatusCode::kInfeasible) return found.status();
      table.Row({name, parameters, "does not fit"});
      row["reason"] = found.status().message();
    }
    document["models"].push_back(row);
  }
  output.Text(HeadingText("models on " + machine.cluster.name(), output.style()) +
              table.ToText(output.style()));
  return Status::Ok();
}

}  // namespace meshwright::tools
