// Simulated pipelines against the closed forms of equal stages, and against their own rules.
#include "planner/stack/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace meshwright::planner::stack {
namespace {

Split SplitOf(int64_t pp, int64_t v, int64_t m, Schedule schedule) {
  Split s;
  s.pp = pp;
  s.virtual_stages = v;
  s.micro_batches = m;
  s.schedule = schedule;
  return s;
}

std::vector<StagePasses> Equal(const Split& s, double f, double b, double w, double end) {
  const double v = static_cast<double>(s.virtual_stages);
  StagePasses stage;
  stage.chunks.assign(static_cast<size_t>(s.virtual_stages), {f / v, b / v, w / v});
  stage.end_s = end;
  return std::vector<StagePasses>(static_cast<size_t>(s.pp), stage);
}

TEST(Pipeline, EqualStagesTakeTheClosedForm) {
  const double f = 0.012, b = 0.013, w = 0.011, end = 0.5;
  for (const int64_t pp : {1, 2, 4, 7}) {
    for (const int64_t m : {pp, 2 * pp, 5 * pp}) {
      const double bubble = static_cast<double>(pp - 1);
      const double work = static_cast<double>(m) * (f + b + w);
      const Split one = SplitOf(pp, 1, m, Schedule::kOneForwardOneBackward);
      const auto plain = SimulatePipeline(one, Equal(one, f, b, w, end), 0.0);
      ASSERT_TRUE(plain.ok()) << plain.status().message();
      EXPECT_NEAR(plain->step_s, work + bubble * (f + b + w) + end, 1e-6);
      for (const double busy : plain->busy_s) EXPECT_NEAR(busy, work + end, 1e-6);
      if (pp == 1) continue;
      const Split zero = SplitOf(pp, 1, m, Schedule::kZeroBubbleH1);
      const auto late = SimulatePipeline(zero, Equal(zero, f, b, w, end), 0.0);
      ASSERT_TRUE(late.ok());
      EXPECT_LE(late->step_s, plain->step_s + 1e-6);
      EXPECT_GE(late->step_s, work + end - 1e-6);
      const Split chunks = SplitOf(pp, 3, m, Schedule::kInterleaved);
      const auto interleaved = SimulatePipeline(chunks, Equal(chunks, f, b, w, end), 0.0);
      ASSERT_TRUE(interleaved.ok());
      EXPECT_NEAR(interleaved->step_s, work + bubble * (f + b + w) / 3 + end, 1e-6);
    }
  }
}

TEST(Pipeline, ZeroBubbleWithEqualPassesReachesTheBubbleOfThePaper) {
  // Qi et al. 2023, table 1: (P - 1) (F + B - W).
  const double f = 0.010;
  for (const int64_t pp : {2, 4, 8}) {
    const Split s = SplitOf(pp, 1, 4 * pp, Schedule::kZeroBubbleH1);
    const auto run = SimulatePipeline(s, Equal(s, f, f, f, 0.0), 0.0);
    ASSERT_TRUE(run.ok());
    const double expected = static_cast<double>(4 * pp) * 3 * f + static_cast<double>(pp - 1) * f;
    EXPECT_NEAR(run->step_s, expected, 1e-6) << pp;
  }
}

TEST(Pipeline, EveryPassRunsOnceAndWeightsFollowTheirBackward) {
  for (const Schedule schedule :
       {Schedule::kOneForwardOneBackward, Schedule::kInterleaved, Schedule::kZeroBubbleH1}) {
    const int64_t v = schedule == Schedule::kInterleaved ? 2 : 1;
    for (const int64_t m : {4, 8}) {
      for (int64_t stage = 0; stage < 4; ++stage) {
        std::map<std::pair<int32_t, int32_t>, std::vector<PassKind>> seen;
        for (const Pass& p : PassOrder(SplitOf(4, v, m, schedule), stage)) {
          seen[{p.chunk, p.micro_batch}].push_back(p.kind);
        }
        EXPECT_EQ(static_cast<int64_t>(seen.size()), v * m);
        for (const auto& [key, kinds] : seen) {
          std::vector<PassKind> expected = {PassKind::kForward, PassKind::kBackward};
          if (schedule == Schedule::kZeroBubbleH1) expected.push_back(PassKind::kWeight);
          EXPECT_EQ(kinds, expected);
        }
      }
    }
  }
}

TEST(Pipeline, ZeroBubbleKeepsNoMoreThanTheFirstStage) {
  const Split s = SplitOf(6, 1, 12, Schedule::kZeroBubbleH1);
  for (int64_t stage = 0; stage < 6; ++stage) {
    int64_t held = 0, most = 0;
    for (const Pass& p : PassOrder(s, stage)) {
      if (p.kind == PassKind::kForward) most = std::max(most, ++held);
      if (p.kind == PassKind::kWeight) --held;
    }
    EXPECT_LE(most, 6) << stage;
    EXPECT_EQ(held, 0);
  }
}

TEST(Pipeline, InterleavedStagesWaitForEveryMessageOfFillAndDrain) {
  for (const int64_t pp : {2, 4, 8}) {
    for (const int64_t v : {2, 3}) {
      const Split s = SplitOf(pp, v, 2 * pp, Schedule::kInterleaved);
      const auto stages = Equal(s, 0.02, 0.02, 0.02, 0.0);
      const auto without = SimulatePipeline(s, stages, 0.0);
      const auto with = SimulatePipeline(s, stages, 1e-4);
      ASSERT_TRUE(without.ok() && with.ok());
      EXPECT_NEAR(with->step_s - without->step_s, 2e-4 * static_cast<double>(pp * v - 1), 1e-6);
    }
  }
}

TEST(Pipeline, MessagesDelayAndBadInputIsRefused) {
  const Split s = SplitOf(4, 1, 8, Schedule::kOneForwardOneBackward);
  const auto stages = Equal(s, 0.01, 0.01, 0.01, 0.0);
  const auto without = SimulatePipeline(s, stages, 0.0);
  const auto with = SimulatePipeline(s, stages, 0.001);
  ASSERT_TRUE(without.ok() && with.ok());
  EXPECT_GE(with->step_s, without->step_s + 2 * 3 * 0.001 - 1e-6);
  EXPECT_EQ(SimulatePipeline(s, {}, 0.0).status().code(), StatusCode::kInvalidInput);
  EXPECT_EQ(SimulatePipeline(s, stages, -1.0).status().code(), StatusCode::kInvalidInput);
  auto broken = stages;
  broken[1].chunks.clear();
  EXPECT_EQ(SimulatePipeline(s, broken, 0.0).status().code(), StatusCode::kInvalidInput);
  EXPECT_EQ(SimulatePipeline(SplitOf(4, 2, 6, Schedule::kInterleaved),
                             Equal(SplitOf(4, 2, 6, Schedule::kInterleaved), 1, 1, 1, 0), 0.0)
                .status()
                .code(),
            StatusCode::kInvalidInput);
}

}  // namespace
}  // namespace meshwright::planner::stack
