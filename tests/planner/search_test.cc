// What the search proposes, why, and what it says when nothing fits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "cost_models/device_profile.h"
#include "planner/ir/load_model.h"
#include "planner/lower/lower.h"
#include "planner/predict/predict.h"
#include "planner/search/find_plans.h"
#include "planner/search/memory.h"
#include "tests/planner/search_cases.h"
#include "topologies/cluster_io.h"

namespace meshwright::planner {
namespace {

using cost::CostModel;
using testing::Contains;
using testing::HasSubstr;
using topologies::Cluster;

ModelSpec Model(const std::string& name) {
  return LoadModel(std::string(MESHWRIGHT_SOURCE_DIR) + "/planner/models/" + name + ".yaml")
      .value();
}
CostModel H100() {
  return CostModel::Make(cost::LoadDeviceProfile("h100-sxm").value(),
                         {{cost::Precision::kBf16, cost::Precision::kFp32}})
      .value();
}
Cluster TwoHosts() {
  return topologies::ParseClusterYaml(kTwoHosts, "test").value();
}
Cluster DgxH100(int nodes) {
  const std::string path =
      std::string(MESHWRIGHT_SOURCE_DIR) + "/topologies/clusters/dgx-h100.yaml";
  return topologies::LoadCluster(path).value().WithDevices(8 * nodes).value();
}
SearchOptions Step(int64_t global_batch, int64_t sequence) {
  SearchOptions o;
  o.global_batch = global_batch;
  o.sequence = sequence;
  return o;
}
/// A model of 8 equal layers whose heads divide by 4 and whose two key-value heads do by 2.
ModelSpec Small() {
  ModelSpec m = Model("llama-3.2-1b");
  ModuleSpec& s = m.modules.front();
  s.layers.resize(8);
  s.layer_kinds.front().attention.kv_heads = 2;
  return m;
}

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
  o.top = 4;
  o.tp = 8;
  o.pp = 8;
  o.micro_batch = 1;
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
  EXPECT_LT(simulated, 4);
  EXPECT_EQ(found->plans.front().plan.prediction.step_time_s, 1000.0);
  int reckoned = 0;
  for (const RunnerUp& r : found->plans.front().plan.runners_up) {
    const bool by_objective = r.reason.find("not simulated") != std::string::npos;
    reckoned += by_objective ? 1 : 0;
    EXPECT_GT(r.step_time_s, 100.0) << "as far from the objective as the best";
  }
  EXPECT_EQ(reckoned, 4 - simulated);
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
  EXPECT_EQ(found->counts.bounded_by_time, 0);
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
