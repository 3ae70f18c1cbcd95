// meshwright simulate: the timeline of a plan's programs.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "planner/ir/trace.h"
#include "tools/commands.h"
#include "tools/evaluate.h"
#include "tools/plan_view.h"
#include "tools/resolve.h"
#include "tools/table.h"

namespace meshwright::tools {
namespace {

struct SimulateArguments {
  std::string plan;
  std::string trace;
  int64_t steps = 2;
};

// Of a few hundred bytes each.
constexpr int64_t kMaxTraceRows = 4'000'000;

int64_t RowsOf(const planner::Programs& programs, int64_t steps) {
  int64_t rows = 0;
  for (const planner::RankBinding& rank : programs.ranks) {
    rows += static_cast<int64_t>(programs.programs[static_cast<size_t>(rank.program)].tasks.size());
  }
  return rows * steps;
}

Status Simulate(const SimulateArguments& a, Output& output) {
  MW_ASSIGN_OR_RETURN(const planner::Plan plan, LoadPlan(a.plan));
  MW_ASSIGN_OR_RETURN(const topologies::Cluster cluster, ClusterOfPlan(plan));
  MW_ASSIGN_OR_RETURN(const cost::DeviceProfile profile, ProfileOf(cluster, output));
  MW_ASSIGN_OR_RETURN(const cost::CostModel costs, CostsFor(profile, plan, cluster));
  planner::PredictOptions options;
  options.steps = a.steps;
  options.trace = !a.trace.empty();
  MW_ASSIGN_OR_RETURN(const Evaluation evaluation, Evaluate(plan, cluster, costs, options));
  const planner::Prediction& prediction = evaluation.simulated.prediction;
  const std::vector<int64_t> device_bytes = DeviceBytes(plan, cluster, profile);
  const int64_t rows = RowsOf(evaluation.programs, a.steps);

  nlohmann::json& document = output.document();
  document["plan"] = SplitJson(plan);
  AddPrediction(prediction, profile, &document);
  document["stages"] = StagesJson(plan, prediction, device_bytes);
  document["simulated"] = {{"steps", a.steps},
                           {"events", evaluation.simulated.nodes},
                           {"classes", evaluation.simulated.classes},
                           {"trace_rows", rows}};
  document["errors"] = nlohmann::json::array();
  const Style& style = output.style();
  output.Text(PlanText(plan, style) + StagesText(plan, prediction, device_bytes, style) +
              PredictionText(plan, prediction, profile, style) +
              fmt::format("  {} task events of {} classes of ranks, {} steps\n",
                          Thousands(evaluation.simulated.nodes), evaluation.simulated.classes,
                          a.steps));
  if (a.trace.empty()) return Status::Ok();
  if (rows > kMaxTraceRows) {
    return Unsupported(
        fmt::format("--trace: {} rows; at most {}: ask for fewer --steps or a plan of fewer ranks",
                    Thousands(rows), Thousands(kMaxTraceRows)));
  }
  MW_RETURN_IF_ERROR(
      WriteFileAtomically(a.trace, planner::WriteChromeTrace(evaluation.simulated.trace)));
  output.Progress(
      fmt::format("trace of {} rows: {} (open it in chrome://tracing or ui.perfetto.dev)",
                  Thousands(rows), a.trace));
  return Status::Ok();
}

}  // namespace

Command SimulateCommand() {
  auto arguments = std::make_shared<SimulateArguments>();
  return {"simulate", "timeline, step time and bubble of a plan",
          [arguments](OptionSet& options) {
            options.Positional("plan", &arguments->plan, "plan.json");
            options.Require("plan");
            options.Text("--trace", &arguments->trace, "FILE",
                         "write the timeline in Chrome's trace format");
            options.Int("--steps", &arguments->steps, {1, 1000}, "optimizer steps to simulate");
          },
          [arguments](Output& output) { return Simulate(*arguments, output); }};
}

}  // namespace meshwright::tools
