// meshwright estimate: memory, step time and MFU of a split that the user names.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "planner/ir/load_model.h"
#include "planner/lower/lower.h"
#include "tools/commands.h"
#include "tools/evaluate.h"
#include "tools/plan_view.h"
#include "tools/resolve.h"
#include "tools/split_options.h"
#include "tools/stack_machine.h"

namespace meshwright::tools {
namespace {

struct EstimateArguments {
  SplitOptions split;
  ClusterOptions cluster;
};

/// Every field of the document, so that readers find them whatever the answer is.
void StartDocument(const planner::ModelSpec& model, nlohmann::json* document) {
  nlohmann::json& d = *document;
  d = {{"model", model.name},
       {"parameters", planner::TotalParameters(model)},
       {"fits", nullptr},
       {"step_time_s", nullptr},
       {"mfu", nullptr},
       {"tokens_per_s_per_gpu", nullptr},
       {"split", nullptr},
       {"model_tflops_per_gpu", nullptr},
       {"stages", nlohmann::json::array()},
       {"peak_memory_bytes", nullptr},
       {"errors", nlohmann::json::array()},
       {"warnings", nlohmann::json::array()},
       {"model_defaults", model.defaults_filled},
       {"model_notes", model.notes}};
}

Result<planner::Plan> NamedPlan(const EstimateArguments& a, const planner::ModelSpec& model,
                                const Machine& machine) {
  MW_ASSIGN_OR_RETURN(const planner::SplitRequest request, ToSplitRequest(a.split, machine));
  const int64_t ranks = request.tp * request.cp * request.ep * request.pp * request.dp;
  if (a.cluster.gpus && ranks != machine.gpus) {
    return Infeasible(
        fmt::format("the split uses {} ranks, --gpus says {}; leave --dp out, or pass --gpus {}",
                    ranks, machine.gpus, ranks));
  }
  MW_ASSIGN_OR_RETURN(planner::Plan plan, planner::MakePlan(model, request));
  MW_RETURN_IF_ERROR(planner::CheckSupported(plan));
  MW_RETURN_IF_ERROR(PlaceOn(machine.cluster, &plan));
  return plan;
}

/// Of a foreign stack: priced by its op lists.
Status EstimateStack(const EstimateArguments& a, const planner::ModelSpec& model,
                     const Machine& machine, Output& output) {
  MW_ASSIGN_OR_RETURN(const std::unique_ptr<planner::stack::StackStageCosts> costs,
                      StackCostsFor(a.split, model, machine));
  const Result<planner::stack::Split> split = NamedSplit(a.split, *costs, machine);
  if (!split.ok()) {
    if (split.status().code() == StatusCode::kInfeasible) output.document()["fits"] = false;
    return split.status();
  }
  MW_ASSIGN_OR_RETURN(const std::vector<planner::stack::StageContent> stages,
                      planner::stack::EvenStages(costs->module(), *split, NamedMode(a.split)));
  const planner::stack::StepPrediction prediction = PredictStep(*costs, *split, stages);
  ShowStackPrediction(model, machine, *costs, *split, stages, prediction, output);
  const std::vector<std::string> problems = StackFitProblems(prediction, DeviceBytesOf(machine));
  output.document()["errors"] = problems;
  return Status::OfProblems(problems);
}

Status Estimate(const EstimateArguments& a, Output& output) {
  MW_ASSIGN_OR_RETURN(const planner::ModelSpec model, planner::LoadModel(a.split.model));
  nlohmann::json& document = output.document();
  StartDocument(model, &document);
  const int64_t ranks = a.split.own_stack() ? a.split.ranks() : 0;
  MW_ASSIGN_OR_RETURN(const Machine machine, ResolveMachine(a.cluster, ranks, output));
  if (!a.split.own_stack()) return EstimateStack(a, model, machine, output);
  const Result<planner::Plan> named = NamedPlan(a, model, machine);
  if (!named.ok()) {
    if (named.status().code() == StatusCode::kInfeasible) document["fits"] = false;
    return named.status();
  }
  planner::Plan plan = *named;
  document["split"] = SplitJson(plan);
  MW_ASSIGN_OR_RETURN(const cost::CostModel costs, CostsFor(machine.profile, plan, machine.cluster));
  MW_ASSIGN_OR_RETURN(const Evaluation evaluation, Evaluate(plan, machine.cluster, costs, {}));
  const planner::Prediction& prediction = evaluation.simulated.prediction;
  const std::vector<int64_t> device_bytes = DeviceBytes(plan, machine.cluster, machine.profile);
  const std::vector<std::string> problems = FitProblems(plan, prediction.memory, device_bytes);
  std::vector<std::string> warnings = plan.warnings;
  warnings.insert(warnings.end(), machine.cluster.warnings().begin(),
                  machine.cluster.warnings().end());

  AddPrediction(prediction, machine.profile, &document);
  document["fits"] = problems.empty();
  document["stages"] = StagesJson(plan, prediction, device_bytes);
  document["errors"] = problems;
  document["warnings"] = warnings;
  const Style& style = output.style();
  output.Text(PlanText(plan, style) + StagesText(plan, prediction, device_bytes, style) +
              PredictionText(plan, prediction, machine.profile, style) +
              ListText("placement", plan.reasons, style) + ListText("warnings", warnings, style) +
              ListText("defaults of the model family", model.defaults_filled, style) +
              ListText("the model file also says", model.notes, style));
  return Status::OfProblems(problems);
}

}  // namespace

Command EstimateCommand() {
  auto arguments = std::make_shared<EstimateArguments>();
  return {"estimate", "memory per stage, step time and MFU of a split that you name",
          [arguments](OptionSet& options) {
            arguments->cluster.Declare(options);
            arguments->split.Declare(options);
          },
          [arguments](Output& output) { return Estimate(*arguments, output); }};
}

}  // namespace meshwright::tools
