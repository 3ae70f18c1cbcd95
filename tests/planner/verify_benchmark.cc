// Time to lower and to verify large splits. Counters: classes of ranks, ops of all classes.
#include <benchmark/benchmark.h>

#include <string>

#include "planner/ir/load_model.h"
#include "planner/lower/lower.h"
#include "planner/lower/make_plan.h"
#include "planner/verify/checks.h"

namespace meshwright::planner {
namespace {

/// tp 8, pp 8, dp 8 of Llama-3-70B, 64 micro-batches a step.
Plan LargePlan(int64_t virtual_stages) {
  const std::string file = std::string(MESHWRIGHT_SOURCE_DIR) + "/planner/models/llama-3-70b.yaml";
  SplitRequest r;
  r.tp = 8;
  r.pp = 8;
  r.dp = 8;
  r.virtual_stages = virtual_stages;
  r.global_batch = 64 * r.dp;
  r.sequence = 4096;
  r.sharding = Sharding::kZero1;
  return MakePlan(LoadModel(file).value(), r).value();
}

void BM_LowerAndVerify(benchmark::State& state) {
  const Plan plan = LargePlan(state.range(0));
  int64_t ops = 0;
  for (auto _ : state) {
    const Programs programs = Lower(plan).value();
    const Status status = Verify(programs, {});
    MW_CHECK(status.ok());
    ops = 0;
    for (const RankProgram& p : programs.programs) {
      for (const Task& task : p.tasks) {
        for (const Instance& i : task.instances) {
          ops += static_cast<int64_t>(p.blocks[static_cast<size_t>(i.block)].ops.size());
        }
      }
    }
    state.counters["classes"] = FoldRanks(programs).size();
  }
  state.counters["ops"] = static_cast<double>(ops);
}
BENCHMARK(BM_LowerAndVerify)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond);

void BM_Verify(benchmark::State& state) {
  const Programs programs = Lower(LargePlan(state.range(0))).value();
  for (auto _ : state) {
    const Status status = Verify(programs, {});
    MW_CHECK(status.ok());
  }
}
BENCHMARK(BM_Verify)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace meshwright::planner
