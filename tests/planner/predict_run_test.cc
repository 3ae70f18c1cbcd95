// The rows of several steps, with the gathers that overlap with the next one.
#include <gtest/gtest.h>

#include "runtime/run.h"
#include "tests/planner/same_rows.h"

namespace meshwright::planner {
namespace {

void ExpectRowsOfTwoSteps(const SplitRequest& request) {
  const Plan plan = PlanOf(ShippedModel("gpt-tiny"), request);
  const Programs programs = Lowered(plan);
  runtime::DataOptions data_options;
  data_options.vocab = 256;
  data_options.sequence = plan.sequence;
  data_options.global_batch = plan.global_batch;
  const auto data = runtime::OpenDataSource(data_options);
  ASSERT_TRUE(data.ok()) << data.status().message();
  runtime::RunOptions run;
  run.steps = 2;
  run.trace = true;
  const auto recorded = runtime::RunOnThreads(programs, **data, run);
  ASSERT_TRUE(recorded.ok()) << recorded.status().message();
  ExpectSameRows(plan, programs, *recorded, run.steps);
}

TEST(PredictRun, SimulatedRowsAreTheRecordedOnes) {
  SplitRequest request;
  request.sequence = 32;
  request.global_batch = 8;
  request.dtype = DType::kF32;
  ExpectRowsOfTwoSteps(request);
  request.tp = request.dp = 2;
  request.sharding = Sharding::kZero1;
  ExpectRowsOfTwoSteps(request);
  request.pp = 2;
  ExpectRowsOfTwoSteps(request);
  request.dp = 1;
  request.virtual_stages = 2;
  request.recompute = {Recompute::kFull};
  ExpectRowsOfTwoSteps(request);
}

}  // namespace
}  // namespace meshwright::planner
