// Prediction is about what runs: the simulated trace has the rows of the recorded one, rank by
// rank.
#include <gtest/gtest.h>

#include <vector>

#include "planner/predict/predict.h"
#include "runtime/run.h"
#include "tests/cost_models/cpu_profile.h"
#include "tests/planner/predict_fixtures.h"

namespace meshwright::planner {
namespace {

void ExpectSameRows(const SplitRequest& request) {
  const Plan plan = PlanOf(ShippedModel("gpt-tiny"), request);
  const Programs programs = Lowered(plan);
  const Prices prices = PricesOf(plan, CpuRanks(static_cast<int>(plan.world_size()), 2),
                                 ModelOf(cost::InventedCpu(), {cost::Precision::kFp32}));
  PredictOptions predict;
  predict.trace = true;
  const auto simulated = Predict(plan, programs, prices, predict);
  ASSERT_TRUE(simulated.ok()) << simulated.status().message();

  runtime::DataOptions data_options;
  data_options.vocab = 256;
  data_options.sequence = plan.sequence;
  data_options.global_batch = plan.global_batch;
  const auto data = runtime::OpenDataSource(data_options);
  ASSERT_TRUE(data.ok()) << data.status().message();
  runtime::RunOptions run;
  run.steps = predict.steps;
  run.trace = true;
  const auto recorded = runtime::RunOnThreads(programs, **data, run);
  ASSERT_TRUE(recorded.ok()) << recorded.status().message();

  size_t at = 0;
  for (const runtime::RunSummary& rank : *recorded) {
    for (TraceRow row : rank.trace) {
      ASSERT_LT(at, simulated->trace.size());
      TraceRow expected = simulated->trace[at++];
      EXPECT_GT(expected.end_ns, expected.start_ns) << expected.label;
      EXPECT_GT(row.end_ns, row.start_ns) << row.label;
      row.start_ns = row.end_ns = expected.start_ns = expected.end_ns = 0;
      EXPECT_EQ(row, expected) << ShortName(plan) << " rank " << row.rank << " " << row.label;
    }
    const size_t index = static_cast<size_t>(rank.rank);
    const auto program = static_cast<size_t>(programs.ranks[index].program);
    EXPECT_EQ(rank.arena_bytes, simulated->prediction.memory[program].arena())
        << "predicted and allocated memory";
  }
  EXPECT_EQ(at, simulated->trace.size());
}

TEST(PredictRun, SimulatedRowsAreTheRecordedOnes) {
  SplitRequest request;
  request.sequence = 32;
  request.global_batch = 8;
  request.dtype = DType::kF32;
  ExpectSameRows(request);
  request.tp = request.dp = 2;
  request.sharding = Sharding::kZero1;
  ExpectSameRows(request);
  request.pp = 2;
  ExpectSameRows(request);
  request.dp = 1;
  request.virtual_stages = 2;
  request.recompute = {Recompute::kFull};
  ExpectSameRows(request);
}

}  // namespace
}  // namespace meshwright::planner
