// Which plans are simulated, and chunks of tensor traffic among them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "planner/search/memory.h"
#include "tests/planner/search_fixtures.h"

namespace meshwright::planner {
namespace {

using testing::Contains;
using testing::HasSubstr;

TEST(FindPlans, SimulatesWhateverCouldStillWin) {
  SearchOptions o = Step(16, 1024);
  const auto plain = FindPlans(Small(), TwoHosts(), H100(), o);
  ASSERT_TRUE(plain.ok());
  ASSERT_GE(plain->plans.size(), 3u);
  // The two best by the objective are 30 % slower when they are simulated.
  std::map<std::string, double> slower;
  for (size_t i = 0; i < 2; ++i) {
    slower[ShortName(plain->plans[i].plan)] = 1.3 * plain->plans[i].objective_s;
  }
  o.top = 2;
  o.predict = [&](const Plan& plan) -> Result<Prediction> {
    Prediction p;
    const auto found = slower.find(ShortName(plan));
    p.step_time_s = found != slower.end() ? found->second : plain->plans[2].objective_s;
    return p;
  };
  const auto turned = FindPlans(Small(), TwoHosts(), H100(), o);
  ASSERT_TRUE(turned.ok());
  ASSERT_EQ(turned->plans.size(), 2u);
  EXPECT_EQ(ShortName(turned->plans.front().plan), ShortName(plain->plans[2].plan));
}

TEST(FindPlans, ReRanksBySimulation) {
  SearchOptions o = Step(16, 1024);
  const auto plain = FindPlans(Small(), TwoHosts(), H100(), o);
  ASSERT_TRUE(plain.ok());
  ASSERT_GE(plain->plans.size(), 3u);
  EXPECT_EQ(plain->plans.front().gap, 0.0);
  // A simulation that turns the order around.
  const size_t n = plain->plans.size();
  o.predict = [&](const Plan& plan) -> Result<Prediction> {
    Prediction p;
    for (size_t i = 0; i < n; ++i) {
      if (ShortName(plain->plans[i].plan) == ShortName(plan))
        p.step_time_s = plain->plans[n - 1 - i].objective_s * (1 - 1e-6 * static_cast<double>(i));
    }
    return p;
  };
  const auto turned = FindPlans(Small(), TwoHosts(), H100(), o);
  ASSERT_TRUE(turned.ok());
  for (size_t i = 0; i < n; ++i) {
    EXPECT_EQ(ShortName(turned->plans[i].plan), ShortName(plain->plans[n - 1 - i].plan));
  }
  const FoundPlan& first = turned->plans.front();
  EXPECT_DOUBLE_EQ(first.gap, first.objective_s / first.plan.prediction.step_time_s - 1);
  EXPECT_EQ(first.plan.runners_up.size(), n - 1);
}

TEST(FindPlans, ChoosesChunksOfTensorTrafficBySimulation) {
  SearchOptions o = Step(16, 1024);
  o.tp = 2;
  o.sequence_parallel = false;
  std::map<int64_t, double> seconds = {{1, 1.0}, {2, 0.8}, {4, 0.9}};
  o.predict = [&](const Plan& plan) -> Result<Prediction> {
    Prediction p;
    p.step_time_s = seconds.at(plan.modules.front().tensor_chunks);
    return p;
  };
  const auto chunks = [&] {
    const auto found = FindPlans(Small(), TwoHosts(), H100(), o);
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() ? found->plans.front().plan.modules.front().tensor_chunks : 0;
  };
  EXPECT_EQ(chunks(), 2);
  seconds[2] = seconds[4] = 1.1;
  EXPECT_EQ(chunks(), 1);
  o.tensor_chunks = 4;
  EXPECT_EQ(chunks(), 4);
  o.tensor_chunks.reset();
  o.tp = 4;
  o.sequence_parallel = true;
  EXPECT_EQ(chunks(), 1) << "the group is of two hosts";
}

TEST(FindPlans, TrafficOfTensorGroupsOfAHostGoesBesideProducts) {
  SearchOptions o = Step(16, 4096);
  o.gpus = 8;
  o.tp = 4;
  o.sequence_parallel = true;
  const auto best = [&] {
    const auto found = FindPlans(Model("llama-3-8b"), DgxH100(1), H100(), o);
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() ? found->plans.front() : FoundPlan();
  };
  const FoundPlan beside = best();
  EXPECT_THAT(beside.plan.modules.front().tensor_chunks, testing::AnyOf(4, 8));
  EXPECT_THAT(beside.plan.warnings, Contains(HasSubstr("tensor traffic of 4 GPUs")));
  o.tensor_chunks = 1;
  EXPECT_GT(best().objective_s, 1.05 * beside.objective_s);
  o.tensor_chunks.reset();
  o.sequence_parallel = false;
  EXPECT_EQ(best().plan.modules.front().tensor_chunks, 1) << "sums of four ranks are NCCL's";
}

TEST(FindPlans, PlansBeyondTheTimeForSimulationKeepTheObjective) {
  SearchOptions o = Step(1024, 8192);
  o.top = 10;
  o.tp = 8;
  o.pp = 16;
  o.micro_batch = 1;
  o.tensor_chunks = 16;
  int simulated = 0;
  o.predict = [&](const Plan&) -> Result<Prediction> {
    ++simulated;
    Prediction p;
    p.step_time_s = 1000.0;  // far above every objective
    return p;
  };
  const auto found = FindPlans(Model("llama-3.1-405b"), DgxH100(64), H100(), o);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_GT(simulated, 0);
  EXPECT_LT(simulated, 10);
  EXPECT_EQ(found->plans.front().plan.prediction.step_time_s, 1000.0);
  int reckoned = 0;
  for (const RunnerUp& r : found->plans.front().plan.runners_up) {
    const bool by_objective = r.reason.find("not simulated") != std::string::npos;
    reckoned += by_objective ? 1 : 0;
    EXPECT_GT(r.step_time_s, 100.0) << "as far from the objective as the best";
  }
  EXPECT_EQ(reckoned, 10 - simulated);
}

TEST(FindPlans, HeldChunksOfTensorTrafficArePartsOfSlicesWithSequenceParallelism) {
  SearchOptions o = Step(16, 1024);
  o.tensor_chunks = 4;
  const auto found = FindPlans(Small(), TwoHosts(), H100(), o);
  ASSERT_TRUE(found.ok()) << found.status().message();
  for (const FoundPlan& f : found->plans) {
    EXPECT_GT(f.plan.modules.front().tp, 1);
    EXPECT_TRUE(4 % f.plan.modules.front().tp == 0 || !f.plan.modules.front().sequence_parallel);
    EXPECT_EQ(f.memory.front().arena(), search::PlannedMemory(f.plan, 0, 0).arena());
  }
  o.tp = 8;
  o.sequence_parallel = true;
  const auto refused = FindPlans(Small(), TwoHosts(), H100(), o);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("tensor chunks 4"));
}

TEST(FindPlans, ChunksAreTriedWithAnyNumberOfMicroBatches) {
  SearchOptions o = Step(8192, 8192);
  o.tp = 8;
  o.pp = 8;
  o.micro_batch = 1;
  const auto found = FindPlans(Model("llama-3.1-405b"), DgxH100(128), H100(), o);
  ASSERT_TRUE(found.ok()) << found.status().message();
  const Plan& best = found->plans.front().plan;
  EXPECT_EQ(best.micro_batches, 512);
  EXPECT_EQ(best.modules.front().tensor_chunks, 16);
}

}  // namespace
}  // namespace meshwright::planner
