// Predicted beside measured step time of twelve plans on this machine's CPU ranks: measures the
// machine, predicts, runs, prints. Meant for a machine with nothing else to do.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cost_models/cost_model.h"
#include "planner/ir/load_model.h"
#include "planner/lower/lower.h"
#include "planner/lower/make_plan.h"
#include "planner/predict/predict.h"
#include "runtime/run.h"
#include "tools/measured_cpu.h"

namespace meshwright {
namespace {

using planner::DType;
using planner::Recompute;

struct Case {
  const char* model;
  int64_t tp, pp, dp, virtual_stages, micro_batch, global_batch, sequence;
  bool sharded;
  DType dtype;
  Recompute recompute;
};

constexpr Case kCases[] = {
    {"gpt-tiny", 1, 1, 1, 1, 1, 8, 128, false, DType::kF32, Recompute::kNone},
    {"gpt-tiny", 2, 1, 1, 1, 1, 8, 128, false, DType::kF32, Recompute::kNone},
    {"gpt-tiny", 1, 2, 1, 1, 1, 8, 128, false, DType::kF32, Recompute::kNone},
    {"gpt-tiny", 1, 1, 2, 1, 1, 8, 128, true, DType::kF32, Recompute::kNone},
    {"gpt-tiny", 2, 2, 2, 1, 1, 8, 128, true, DType::kF32, Recompute::kNone},
    {"gpt-tiny", 2, 2, 1, 2, 1, 8, 128, false, DType::kF32, Recompute::kFull},
    {"gpt-tiny", 4, 1, 2, 1, 2, 16, 64, false, DType::kF64, Recompute::kSelective},
    {"llama-tiny", 1, 4, 2, 1, 1, 16, 64, false, DType::kF32, Recompute::kNone},
    {"llama-tiny", 1, 1, 8, 1, 1, 16, 128, true, DType::kF32, Recompute::kNone},
    {"llama-tiny", 2, 1, 4, 1, 2, 16, 128, true, DType::kF64, Recompute::kFull},
    {"gpt-tiny", 2, 2, 2, 1, 2, 32, 256, true, DType::kF32, Recompute::kNone},
    {"llama-tiny", 1, 2, 1, 2, 2, 16, 256, false, DType::kF32, Recompute::kNone},
};

Result<planner::Plan> PlanOf(const Case& c) {
  const std::string models = std::string(MESHWRIGHT_SOURCE_DIR) + "/planner/models/";
  MW_ASSIGN_OR_RETURN(const auto model, planner::LoadModel(models + c.model + ".yaml"));
  planner::SplitRequest request;
  request.tp = c.tp;
  request.pp = c.pp;
  request.dp = c.dp;
  request.virtual_stages = c.virtual_stages;
  request.micro_batch = c.micro_batch;
  request.global_batch = c.global_batch;
  request.sequence = c.sequence;
  request.sharding = c.sharded ? planner::Sharding::kZero1 : planner::Sharding::kNone;
  request.dtype = c.dtype;
  request.recompute = {c.recompute};
  return planner::MakePlan(model, request);
}

/// Median step time of a run, without the first two steps.
Result<double> MeasureSeconds(const planner::Plan& plan, const planner::Programs& programs) {
  runtime::DataOptions options;
  options.vocab = 256;
  options.sequence = plan.sequence;
  options.global_batch = plan.global_batch;
  MW_ASSIGN_OR_RETURN(const auto data, runtime::OpenDataSource(options));
  runtime::RunOptions run;
  run.steps = 22;
  MW_ASSIGN_OR_RETURN(const auto summaries, runtime::RunOnThreads(programs, *data, run));
  std::vector<double> times = summaries.front().step_times_s;
  times.erase(times.begin(), times.begin() + 2);
  std::nth_element(times.begin(), times.begin() + 10, times.end());
  return times[10];
}

struct Row {
  double predicted_s = 0.0;
  double measured_s = 0.0;
};

Result<Row> RunCase(const Case& c, topologies::CpuHostOptions host, const cost::CostModel& costs) {
  MW_ASSIGN_OR_RETURN(const planner::Plan plan, PlanOf(c));
  MW_ASSIGN_OR_RETURN(const planner::Programs programs, planner::Lower(plan));
  host.ranks = static_cast<int>(plan.world_size());
  MW_ASSIGN_OR_RETURN(const auto cluster, topologies::CpuCluster(host));
  MW_ASSIGN_OR_RETURN(const planner::Prices prices, planner::MakePrices(plan, cluster, costs));
  MW_ASSIGN_OR_RETURN(const auto simulated, planner::Predict(plan, programs, prices));
  Row row;
  row.predicted_s = simulated.prediction.step_time_s;
  MW_ASSIGN_OR_RETURN(row.measured_s, MeasureSeconds(plan, programs));
  fmt::print("{:<10} {:<36} S{:<4} {:9.3f} {:9.3f} {:6.2f}\n", c.model, ShortName(plan), c.sequence,
             row.predicted_s * 1e3, row.measured_s * 1e3, row.predicted_s / row.measured_s);
  std::fflush(stdout);
  return row;
}

Status Run() {
  MW_ASSIGN_OR_RETURN(const topologies::LocalMachine machine, topologies::ProbeLocalMachine());
  MW_ASSIGN_OR_RETURN(runtime::CpuMeasurement measured, runtime::MeasureCpu({}));
  const auto tell = [&](const char* when) {
    fmt::print(
        "{}: {} cores; {:.2f} us an op, {:.1f} us a rendezvous, {:.1f} us a further member, "
        "latency {:.1f} us\n",
        when, measured.cores, measured.op_core_s * 1e6, measured.rendezvous_core_s * 1e6,
        measured.member_core_s * 1e6, measured.rendezvous_latency_s * 1e6);
  };
  tell("alone");
  MW_RETURN_IF_ERROR(tools::FitToPrograms(machine, &measured));
  tell("in programs");
  MW_ASSIGN_OR_RETURN(const auto cpu, tools::ToMeasuredCpu(measured, machine, "this machine"));
  MW_ASSIGN_OR_RETURN(
      const auto costs,
      cost::CostModel::Make(cpu.profile, {{cost::Precision::kFp32, cost::Precision::kFp64}}));
  fmt::print("{:<10} {:<42} {:>9} {:>9} {:>6}\n", "model", "plan", "predicted", "measured",
             "ratio");
  std::vector<Row> rows;
  for (const Case& c : kCases) {
    MW_ASSIGN_OR_RETURN(const Row row, RunCase(c, cpu.host, costs));
    rows.push_back(row);
  }
  // Steps closer than a twentieth are as likely to change places from run to run.
  constexpr double kTie = 0.05;
  int within = 0, ordered = 0, pairs = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const double ratio = rows[i].predicted_s / rows[i].measured_s;
    within += ratio > 0.7 && ratio < 1.3 ? 1 : 0;
    for (size_t j = 0; j < i; ++j) {
      if (std::abs(rows[i].measured_s / rows[j].measured_s - 1) < kTie) continue;
      ++pairs;
      const bool predicted = rows[i].predicted_s < rows[j].predicted_s;
      ordered += predicted == (rows[i].measured_s < rows[j].measured_s) ? 1 : 0;
    }
  }
  fmt::print("{} of {} within 30 %; {} of {} pairs that differ by 5 % or more in the right order\n",
             within, rows.size(), ordered, pairs);
  return Status::Ok();
}

}  // namespace
}  // namespace meshwright

int main() {
  const meshwright::Status status = meshwright::Run();
  if (!status.ok()) fmt::print(stderr, "{}\n", status.message());
  return meshwright::ExitCode(status);
}
