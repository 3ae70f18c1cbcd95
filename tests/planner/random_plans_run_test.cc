// Random legal plans are proven and run: every step ends, losses are those of one rank, and the
// recorded rows and memory are the predicted ones.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "planner/verify/verify.h"
#include "runtime/run.h"
#include "tests/planner/same_rows.h"
#include "tests/planner/verify_common.h"

namespace meshwright::planner {
namespace {

using testing::Describe;
using testing::Draw;
using testing::LongForm;
using testing::RandomSplit;

/// Losses and norms of `steps` steps.
Result<std::vector<runtime::RunSummary>> RunPlan(const Plan& plan, const Programs& programs,
                                             int64_t steps) {
  runtime::DataOptions data_options;
  data_options.vocab = plan.model.modules.front().vocab;
  data_options.sequence = plan.sequence;
  data_options.global_batch = plan.global_batch;
  MW_ASSIGN_OR_RETURN(const auto data, runtime::OpenDataSource(data_options));
  runtime::RunOptions run;
  run.steps = steps;
  run.trace = true;
  run.lr.peak = 1e-3;
  return runtime::RunOnThreads(programs, *data, run);
}

Result<std::vector<runtime::RunSummary>> RunOneRank(const RandomSplit& split, int64_t steps) {
  SplitRequest alone;
  alone.global_batch = split.request.global_batch;
  alone.sequence = split.request.sequence;
  alone.dtype = split.request.dtype;
  alone.optimizer = split.request.optimizer;
  MW_ASSIGN_OR_RETURN(const Plan plan, MakePlan(split.model, alone));
  MW_ASSIGN_OR_RETURN(const Programs programs, Lower(plan));
  return RunPlan(plan, programs, steps);
}

TEST(RandomPlans, AreProvenAndRunAsOneRankDoes) {
  const int wanted = LongForm() ? 1000 : 100;
  constexpr int64_t kMaxRanks = 16;
  constexpr int64_t kSteps = 2;
  std::mt19937 random(11);
  int ran = 0;
  for (int drawn = 0; ran < wanted; ++drawn) {
    ASSERT_LT(drawn, 40 * wanted) << "the generator hardly draws legal plans";
    RandomSplit split = Draw(random, kMaxRanks);
    // CPU ranks have no bf16. Sums in fp64 differ by rounding only.
    split.request.dtype = DType::kF64;
    const Result<Plan> plan = MakePlan(split.model, split.request);
    if (!plan.ok()) continue;
    SCOPED_TRACE(Describe(split));
    const Programs programs = Lowered(*plan);
    const Status proven = Verify(programs, {});
    ASSERT_TRUE(proven.ok()) << proven.message();
    const auto recorded = RunPlan(*plan, programs, kSteps);
    ASSERT_TRUE(recorded.ok()) << recorded.status().message();
    ExpectSameRows(*plan, programs, *recorded, kSteps);
    const auto alone = RunOneRank(split, kSteps);
    ASSERT_TRUE(alone.ok()) << alone.status().message();
    for (size_t step = 0; step < kSteps; ++step) {
      const auto& one = alone->front();
      EXPECT_NEAR(recorded->front().losses[step], one.losses[step], 1e-9 * one.losses[step]);
      EXPECT_NEAR(recorded->front().grad_norms[step], one.grad_norms[step],
                  1e-8 * one.grad_norms[step]);
    }
    ++ran;
  }
}

}  // namespace
}  // namespace meshwright::planner
