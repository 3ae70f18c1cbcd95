// What the search proposes, why, and what it says when nothing fits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "planner/lower/lower.h"
#include "planner/predict/predict.h"
#include "planner/search/find_plans.h"
#include "planner/search/memory.h"
#include "tests/planner/search_fixtures.h"

namespace meshwright::planner {
namespace {

using cost::CostModel;
using testing::Contains;
using testing::HasSubstr;
using topologies::Cluster;

TEST(FindPlans, KeepsWhatIsHeldAndCountsGpus) {
  SearchOptions o = Step(16, 1024);
  o.tp = 2;
  o.pp = 2;
  o.micro_batch = 2;
  o.recompute = Recompute::kSelective;
  const auto found = FindPlans(Small(), TwoHosts(), H100(), o);
  ASSERT_TRUE(found.ok()) << found.status().message();
  for (const FoundPlan& f : found->plans) {
    const ModulePlan& m = f.plan.modules.front();
    EXPECT_EQ(m.tp, 2);
    EXPECT_EQ(m.pp, 2);
    EXPECT_EQ(m.dp, 1);
    EXPECT_EQ(f.plan.micro_batch, 2);
    EXPECT_EQ(m.recompute, std::vector<Recompute>(2, Recompute::kSelective));
    EXPECT_TRUE(CheckPlan(f.plan).ok());
  }
}

TEST(FindPlans, MemoryIsTheArenaPlusWhatLiesOutside) {
  SearchOptions o = Step(64, 2048);
  o.gpus = 8;
  const CostModel costs = H100();
  const auto found = FindPlans(Model("llama-3-8b"), DgxH100(1), costs, o);
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_GE(found->plans.size(), 3u);
  for (const FoundPlan& f : found->plans) {
    const auto programs = Lower(f.plan);
    ASSERT_TRUE(programs.ok());
    for (const RankProgram& program : programs->programs) {
      const auto p = static_cast<size_t>(program.stage);
      EXPECT_EQ(f.memory[p].arena(), program.arena.size);
      EXPECT_EQ(f.memory[p].outside, OutsideBytes(program, costs.profile()).value());
      EXPECT_LE(f.memory[p].total(), costs.profile().memory.value.value());
    }
  }
}

TEST(FindPlans, PutsTensorGroupsOnNvlink) {
  SearchOptions o = Step(16, 1024);
  o.tp = 2;
  const Cluster cluster = TwoHosts();
  const auto found = FindPlans(Small(), cluster, H100(), o);
  ASSERT_TRUE(found.ok()) << found.status().message();
  const Plan& plan = found->plans.front().plan;
  for (size_t r = 0; r < plan.placement.size(); r += 2) {
    EXPECT_EQ(cluster.HostOf(static_cast<int>(plan.placement[r])),
              cluster.HostOf(static_cast<int>(plan.placement[r + 1])));
  }
  EXPECT_EQ(plan.cluster_fingerprint, cluster.Fingerprint());
  EXPECT_EQ(plan.cluster_name, "two-hosts");
}

TEST(FindPlans, SaysThatKeyValueHeadsAreCopied) {
  SearchOptions o = Step(8, 1024);
  o.tp = 4;
  const auto found = FindPlans(Small(), TwoHosts(), H100(), o);
  ASSERT_TRUE(found.ok()) << found.status().message();
  const Plan& plan = found->plans.front().plan;
  EXPECT_EQ(plan.modules.front().kv_copies, 2);
  EXPECT_THAT(plan.reasons, Contains(HasSubstr("each is stored on 2 ranks")));
  EXPECT_THAT(plan.warnings, Contains(HasSubstr("tensor groups cross 2 hosts")));
}

TEST(FindPlans, ObjectiveIsCloseToTheSimulation) {
  const CostModel costs = H100();
  for (const int nodes : {1, 2}) {
    const Cluster cluster = DgxH100(nodes);
    SearchOptions o = Step(64 * nodes, 4096);
    o.predict = [&](const Plan& plan) -> Result<Prediction> {
      const auto programs = Lower(plan);
      if (!programs.ok()) return programs.status();
      const auto prices = MakePrices(plan, cluster, costs);
      if (!prices.ok()) return prices.status();
      const auto step = Predict(plan, *programs, *prices);
      if (!step.ok()) return step.status();
      return step->prediction;
    };
    const auto found = FindPlans(Model("llama-3-8b"), cluster, costs, o);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_NEAR(found->plans.front().gap, 0.0, 0.05) << ShortName(found->plans.front().plan);
    for (const FoundPlan& f : found->plans) EXPECT_NEAR(f.gap, 0.0, 0.2) << ShortName(f.plan);
  }
}

TEST(FindPlans, FewerMicroBatchesThanStagesOnlyWhenHeld) {
  SearchOptions o = Step(2, 1024);
  o.top = 100;
  const auto found = FindPlans(Small(), TwoHosts(), H100(), o);
  ASSERT_TRUE(found.ok()) << found.status().message();
  for (const FoundPlan& f : found->plans) {
    EXPECT_GE(f.plan.micro_batches, f.plan.modules.front().pp) << ShortName(f.plan);
  }
  o.pp = 4;
  const auto held = FindPlans(Small(), TwoHosts(), H100(), o);
  ASSERT_TRUE(held.ok()) << held.status().message();
  const Plan& plan = held->plans.front().plan;
  EXPECT_LT(plan.micro_batches, 4);
  EXPECT_EQ(plan.modules.front().virtual_stages, 1);
  EXPECT_THAT(plan.warnings, Contains(HasSubstr("fewer than 4 stages")));
}

TEST(FindPlans, FrontTradesTimeForMemory) {
  SearchOptions o = Step(32, 2048);
  o.front = true;
  const auto found = FindPlans(Small(), TwoHosts(), H100(), o);
  ASSERT_TRUE(found.ok());
  ASSERT_GE(found->front.size(), 2u);
  EXPECT_EQ(found->front.front().objective_s, found->plans.front().objective_s);
  for (size_t i = 1; i < found->front.size(); ++i) {
    EXPECT_GT(found->front[i].objective_s, found->front[i - 1].objective_s);
    EXPECT_LT(found->front[i].memory_bytes, found->front[i - 1].memory_bytes);
  }
  // Nothing that stands in it was left out: it is the same with every configuration evaluated.
  EXPECT_GT(found->counts.bounded_by_time, 0);
  o.top = 1000;
  const auto all = FindPlans(Small(), TwoHosts(), H100(), o);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->counts.bounded_by_time, 0);
  ASSERT_EQ(found->front.size(), all->front.size());
  for (size_t i = 0; i < all->front.size(); ++i) {
    EXPECT_EQ(found->front[i].plan, all->front[i].plan);
    EXPECT_EQ(found->front[i].memory_bytes, all->front[i].memory_bytes);
  }
}

TEST(FindPlans, LessMemoryMakesStagesRecompute) {
  SearchOptions o = Step(32, 4096);
  o.pp = 2;
  o.tp = 1;
  o.micro_batch = 2;
  o.virtual_stages = 1;
  const auto free = FindPlans(Small(), TwoHosts(), H100(), o);
  ASSERT_TRUE(free.ok()) << free.status().message();
  int64_t peak = 0;
  for (const MemoryBreakdown& m : free->plans.front().memory) peak = std::max(peak, m.total());
  o.memory_limit = Bytes(peak - (int64_t{1} << 20));
  const auto tight = FindPlans(Small(), TwoHosts(), H100(), o);
  ASSERT_TRUE(tight.ok()) << tight.status().message();
  EXPECT_GT(tight->plans.front().objective_s, free->plans.front().objective_s);
  for (const MemoryBreakdown& m : tight->plans.front().memory) {
    EXPECT_LE(m.total(), o.memory_limit->value());
  }
}

// --- nothing fits
// ----------------------------------------------------------------------------------

TEST(NothingFits, NamesStagePartsAndGpusThatFit) {
  SearchOptions o = Step(64, 4096);
  const auto found = FindPlans(Model("llama-3-70b"), DgxH100(1), H100(), o);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), StatusCode::kInfeasible);
  const std::string& message = found.status().message();
  EXPECT_THAT(message, HasSubstr("stage 0 needs"));
  EXPECT_THAT(message, HasSubstr("optimizer"));
  std::smatch gpus;
  ASSERT_TRUE(std::regex_search(message, gpus, std::regex("smallest first: ([0-9]+) GPUs")))
      << message;
  o.gpus = std::stoll(gpus[1]);
  EXPECT_TRUE(FindPlans(Model("llama-3-70b"), DgxH100(1), H100(), o).ok());
  o.gpus -= 8;  // one host fewer does not do
  o.suggest = false;
  EXPECT_FALSE(FindPlans(Model("llama-3-70b"), DgxH100(1), H100(), o).ok());
}

TEST(NothingFits, HeldChoicesAreReleasedOneAtATime) {
  SearchOptions o = Step(64, 8192);
  o.pp = 1;
  o.tp = 4;
  o.micro_batch = 32;
  o.recompute = Recompute::kNone;
  const auto found = FindPlans(Model("llama-3-8b"), DgxH100(1), H100(), o);
  ASSERT_FALSE(found.ok());
  const std::string& message = found.status().message();
  std::smatch batch;
  ASSERT_TRUE(std::regex_search(message, batch, std::regex("micro-batch ([0-9]+) \\(then")))
      << message;
  SearchOptions changed = o;
  changed.micro_batch = std::stoll(batch[1]);
  EXPECT_TRUE(FindPlans(Model("llama-3-8b"), DgxH100(1), H100(), changed).ok());
  if (message.find("recompute full (then") != std::string::npos) {
    changed = o;
    changed.recompute = Recompute::kFull;
    EXPECT_TRUE(FindPlans(Model("llama-3-8b"), DgxH100(1), H100(), changed).ok());
  }
}

TEST(NothingFits, ShardedOptimizerIsProposed) {
  SearchOptions o = Step(64, 2048);
  o.tp = 1;
  o.pp = 1;
  o.sharding = Sharding::kNone;
  const auto found = FindPlans(Model("llama-3-8b"), DgxH100(1), H100(), o);
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(found.status().message(), HasSubstr("zero zero1 (then tp1 pp1 dp8"));
  o.sharding = Sharding::kZero1;
  EXPECT_TRUE(FindPlans(Model("llama-3-8b"), DgxH100(1), H100(), o).ok());
}

// --- errors
// ----------------------------------------------------------------------------------------

TEST(FindPlansErrors, OptionsOutOfRange) {
  const auto error = [](const std::function<void(SearchOptions&)>& edit) {
    SearchOptions o = Step(8, 1024);
    edit(o);
    const auto found = FindPlans(Small(), TwoHosts(), H100(), o);
    EXPECT_FALSE(found.ok());
    EXPECT_EQ(found.status().code(), StatusCode::kInvalidInput) << found.status().message();
    return found.status().message();
  };
  EXPECT_THAT(error([](auto& o) { o.tp = 0; }), HasSubstr("tp: found 0, allowed 1 to"));
  EXPECT_THAT(error([](auto& o) { o.global_batch = 0; }), HasSubstr("global batch"));
  EXPECT_THAT(error([](auto& o) { o.sequence = -1; }), HasSubstr("sequence"));
  EXPECT_THAT(error([](auto& o) { o.micro_batch = int64_t{1} << 24; }), HasSubstr("micro-batch"));
  EXPECT_THAT(error([](auto& o) { o.dtype = DType::kI32; }), HasSubstr("dtype"));
  EXPECT_THAT(error([](auto& o) { o.memory_limit = Bytes(0); }), HasSubstr("memory limit"));
}

TEST(FindPlansErrors, WhatTheStackCannotRun) {
  SearchOptions o = Step(8, 1024);
  EXPECT_EQ(FindPlans(Model("mixtral-8x7b"), TwoHosts(), H100(), o).status().code(),
            StatusCode::kUnsupported);
  o.cp = 2;
  EXPECT_EQ(FindPlans(Small(), TwoHosts(), H100(), o).status().code(), StatusCode::kUnsupported);
}

TEST(FindPlansErrors, IllegalHeldValuesAreListedTogether) {
  SearchOptions o = Step(9, 1023);
  o.gpus = 4;
  o.tp = 3;
  o.dp = 2;
  const auto found = FindPlans(Small(), TwoHosts(), H100(), o);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), StatusCode::kInfeasible);
  const std::string& message = found.status().message();
  EXPECT_THAT(message, HasSubstr("4 GPUs: not a multiple of tp 3"));
  EXPECT_THAT(message, HasSubstr("attention heads"));
  EXPECT_THAT(message, HasSubstr("global batch 9"));
}

}  // namespace
}  // namespace meshwright::planner
