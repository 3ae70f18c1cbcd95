// Speed of lowering, verifying and simulating a plan of 512 GPUs: tp8 pp8 dp8, 64 micro-batches, 96
// layers 12288 wide. Goal: lower and verify below 200 ms.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>

#include "cost_models/cost_model.h"
#include "cost_models/simulate.h"
#include "planner/ir/load_model.h"
#include "planner/lower/lower.h"
#include "planner/lower/make_plan.h"
#include "planner/predict/predict.h"
#include "planner/predict/task_graph.h"
#include "planner/verify/verify.h"
#include "topologies/cluster_io.h"

namespace meshwright::planner {
namespace {

template <typename T>
T Valid(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().message().c_str());
    std::exit(1);
  }
  return std::move(result).value();
}

Plan LargePlan(int64_t dp) {
  SplitRequest request;
  request.tp = request.pp = 8;
  request.dp = dp;
  request.global_batch = 64 * dp;
  request.sharding = Sharding::kZero1;
  request.sequence = 2048;
  const std::string models = std::string(MESHWRIGHT_SOURCE_DIR) + "/planner/models/";
  return Valid(MakePlan(Valid(LoadModel(models + "gpt3-175b.yaml")), request));
}

Prices LargePrices(const Plan& plan) {
  const std::string clusters = std::string(MESHWRIGHT_SOURCE_DIR) + "/topologies/clusters/";
  const auto host = Valid(topologies::LoadCluster(clusters + "dgx-h100.yaml"));
  const auto profile = Valid(cost::LoadDeviceProfile("h100-sxm"));
  const auto costs = Valid(cost::CostModel::Make(profile, {{cost::Precision::kBf16}}));
  return Valid(MakePrices(plan, Valid(host.WithDevices(plan.world_size())), costs));
}

void BM_Lower(benchmark::State& state) {
  const Plan plan = LargePlan(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(Lower(plan));
}
BENCHMARK(BM_Lower)->Arg(8)->Arg(64)->Unit(benchmark::kMillisecond);

void BM_LowerAndVerify(benchmark::State& state) {
  const Plan plan = LargePlan(state.range(0));
  for (auto _ : state) {
    const Programs programs = Valid(Lower(plan));
    const Status status = Verify(programs, {});
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  }
}
BENCHMARK(BM_LowerAndVerify)->Arg(8)->Unit(benchmark::kMillisecond);

void BM_ToTaskGraph(benchmark::State& state) {
  const Plan plan = LargePlan(state.range(0));
  const Programs programs = Valid(Lower(plan));
  const Prices prices = LargePrices(plan);
  int64_t ops = 0;
  for (auto _ : state) {
    const TaskGraphOfStep step = Valid(ToTaskGraph(programs, prices, {}));
    for (const TaskGraphEntry& e : step.entries) ops += e.ops;
  }
  state.SetItemsProcessed(ops);
}
BENCHMARK(BM_ToTaskGraph)->Arg(8)->Arg(64)->Unit(benchmark::kMillisecond);

void BM_Simulate(benchmark::State& state) {
  const Plan plan = LargePlan(8);
  const Programs programs = Valid(Lower(plan));
  const Prices prices = LargePrices(plan);
  TaskGraphOptions options;
  options.merge = state.range(0) != 0;
  const TaskGraphOfStep step = Valid(ToTaskGraph(programs, prices, options));
  for (auto _ : state) benchmark::DoNotOptimize(cost::Simulate(step.graph));
  state.SetItemsProcessed(state.iterations() * step.graph.node_count());
}
BENCHMARK(BM_Simulate)->ArgName("merge")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

void BM_Predict(benchmark::State& state) {
  const Plan plan = LargePlan(state.range(0));
  const Programs programs = Valid(Lower(plan));
  const Prices prices = LargePrices(plan);
  for (auto _ : state) benchmark::DoNotOptimize(Predict(plan, programs, prices));
}
BENCHMARK(BM_Predict)->Arg(8)->Arg(64)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace meshwright::planner
