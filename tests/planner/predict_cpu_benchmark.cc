// Predicted beside measured step time of twelve plans on this machine's CPU ranks. In each of
// several rounds it measures the machine, predicts and runs every plan, since a shared machine
// changes its speed within minutes; it tells medians, and the order of the pairs that every round
// put in the same order. Meant for a machine with nothing else to do.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
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

/// Predicted and measured step times of one case, an entry a round.
struct Row {
  std::vector<double> predicted_s;
  std::vector<double> measured_s;
};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Status RunCase(const Case& c, topologies::CpuHostOptions host, const cost::CostModel& costs,
               Row* row) {
  MW_ASSIGN_OR_RETURN(const planner::Plan plan, PlanOf(c));
  MW_ASSIGN_OR_RETURN(const planner::Programs programs, planner::Lower(plan));
  host.ranks = static_cast<int>(plan.world_size());
  MW_ASSIGN_OR_RETURN(const auto cluster, topologies::CpuCluster(host));
  MW_ASSIGN_OR_RETURN(const planner::Prices prices, planner::MakePrices(plan, cluster, costs));
  MW_ASSIGN_OR_RETURN(const auto simulated, planner::Predict(plan, programs, prices));
  MW_ASSIGN_OR_RETURN(const double measured_s, MeasureSeconds(plan, programs));
  row->predicted_s.push_back(simulated.prediction.step_time_s);
  row->measured_s.push_back(measured_s);
  return Status::Ok();
}

/// One round: measures the machine as it is now, then predicts and runs every case.
Status RunRound(std::vector<Row>* rows) {
  MW_ASSIGN_OR_RETURN(const topologies::LocalMachine machine, topologies::ProbeLocalMachine());
  MW_ASSIGN_OR_RETURN(runtime::CpuMeasurement measured, runtime::MeasureCpu({}));
  MW_RETURN_IF_ERROR(tools::FitToPrograms(machine, &measured));
  fmt::print("{} cores; {:.2f} us an op, {:.1f} us a rendezvous, {:.1f} us a further member\n",
             measured.cores, measured.op_core_s * 1e6, measured.rendezvous_core_s * 1e6,
             measured.member_core_s * 1e6);
  std::fflush(stdout);
  MW_ASSIGN_OR_RETURN(const auto cpu, tools::ToMeasuredCpu(measured, machine, "this machine"));
  MW_ASSIGN_OR_RETURN(
      const auto costs,
      cost::CostModel::Make(cpu.profile, {{cost::Precision::kFp32, cost::Precision::kFp64}}));
  for (size_t i = 0; i < std::size(kCases); ++i) {
    MW_RETURN_IF_ERROR(RunCase(kCases[i], cpu.host, costs, &(*rows)[i]));
  }
  return Status::Ok();
}

Status PrintRow(const Case& c, const Row& row, double* ratio) {
  MW_ASSIGN_OR_RETURN(const planner::Plan plan, PlanOf(c));
  const auto [least, most] = std::minmax_element(row.measured_s.begin(), row.measured_s.end());
  *ratio = Median(row.predicted_s) / Median(row.measured_s);
  fmt::print("{:<10} {:<36} S{:<4} {:9.3f} {:9.3f} {:6.2f}  {:8.3f} to {:.3f}\n", c.model,
             ShortName(plan), c.sequence, Median(row.predicted_s) * 1e3,
             Median(row.measured_s) * 1e3, *ratio, *least * 1e3, *most * 1e3);
  return Status::Ok();
}

/// Whether every round measured the same one of the two as faster, and the medians differ enough.
bool OrderIsCertain(const Row& a, const Row& b) {
  constexpr double kTie = 0.05;
  if (std::abs(Median(a.measured_s) / Median(b.measured_s) - 1) < kTie) return false;
  int faster = 0;
  for (size_t r = 0; r < a.measured_s.size(); ++r) faster += a.measured_s[r] < b.measured_s[r];
  return faster == 0 || faster == static_cast<int>(a.measured_s.size());
}

Status Run(int rounds) {
  std::vector<Row> rows(std::size(kCases));
  for (int r = 0; r < rounds; ++r) MW_RETURN_IF_ERROR(RunRound(&rows));
  fmt::print("{:<10} {:<42} {:>9} {:>9} {:>6}  {}\n", "model", "plan", "predicted", "measured",
             "ratio", "ms, medians and range of the rounds");
  int within = 0, ordered = 0, pairs = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    double ratio = 0.0;
    MW_RETURN_IF_ERROR(PrintRow(kCases[i], rows[i], &ratio));
    within += ratio > 0.7 && ratio < 1.3 ? 1 : 0;
    for (size_t j = 0; j < i; ++j) {
      if (!OrderIsCertain(rows[i], rows[j])) continue;
      ++pairs;
      const bool predicted = Median(rows[i].predicted_s) < Median(rows[j].predicted_s);
      ordered += predicted == (rows[i].measured_s[0] < rows[j].measured_s[0]) ? 1 : 0;
    }
  }
  fmt::print(
      "{} of {} within 30 %; {} of {} pairs that differ by 5 % or more, in the same order in all "
      "{} rounds, ordered right\n",
      within, rows.size(), ordered, pairs, rounds);
  return Status::Ok();
}

}  // namespace
}  // namespace meshwright

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  const meshwright::Status status = meshwright::Run(std::max(rounds, 1));
  if (!status.ok()) fmt::print(stderr, "{}\n", status.message());
  return meshwright::ExitCode(status);
}
