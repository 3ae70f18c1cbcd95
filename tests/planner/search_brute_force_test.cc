// The search equals brute force, whatever the order and the threads.
#include "tests/planner/search_brute_force.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>

#include "cost_models/device_profile.h"
#include "planner/lower/lower.h"
#include "tests/cost_models/cpu_profile.h"
#include "topologies/cluster_io.h"

namespace meshwright::planner {
namespace {

Case RandomCase(Dice& dice, int64_t& gpus) {
  gpus = dice.Pick({1, 2, 2, 4});
  const int64_t layers = dice.Between(1, gpus == 4 ? 4 : 5);
  ModelSpec model = RandomModel(dice, layers, static_cast<int>(dice.Between(1, 2)));
  // Kinds of a model share their heads: copies of key-value heads are one number a module.
  for (LayerSpec& l : model.modules.front().layer_kinds) {
    l.attention.heads = model.modules.front().layer_kinds.front().attention.heads;
    l.attention.kv_heads = model.modules.front().layer_kinds.front().attention.kv_heads;
  }
  SearchOptions o;
  o.dtype = DType::kF32;
  o.global_batch = dice.Pick({2, 3, 4, 6, 8});
  o.sequence = dice.Pick({8, 16});
  o.optimizer = dice.Coin() ? OptimizerKind::kAdamW : OptimizerKind::kSgd;
  o.bucket_elements = dice.Pick({1, 4000, 1000000});
  o.max_virtual_stages = 3;
  o.suggest = false;
  o.top = 3;
  // Most cases hold something, which keeps them small.
  if (dice.Between(0, 2) > 0) o.micro_batch = dice.Pick({1, 1, 2});
  if (dice.Between(0, 2) == 0) o.pp = dice.Pick({1, 2});
  if (dice.Between(0, 2) == 0) o.sharding = dice.Coin() ? Sharding::kZero1 : Sharding::kNone;
  if (dice.Between(0, 2) == 0) o.sequence_parallel = dice.Coin();
  if (dice.Between(0, 3) == 0) o.recompute = static_cast<Recompute>(dice.Between(0, 2));
  if (gpus == 4 && dice.Coin()) {
    o.dtype = DType::kBf16;
    return {std::move(model), topologies::ParseClusterYaml(kTwoHosts, "test").value(),
            CostModel::Make(cost::LoadDeviceProfile("h100-sxm").value(),
                            {{cost::Precision::kBf16, cost::Precision::kFp32}})
                .value(),
            o};
  }
  topologies::CpuHostOptions host;
  host.ranks = static_cast<int>(gpus);
  host.cores = 4;
  host.memory = Bytes(int64_t{16} << 20);
  host.profile = "test-cpu";
  host.bandwidth = BytesPerSecond(4e9);
  host.latency = Seconds(1e-6);
  host.source = {topologies::Origin::kMeasured, "invented for a test"};
  Cluster cluster = topologies::CpuCluster(host).value();
  CostModel costs = CostModel::Make(cost::InventedCpu(), {{cost::Precision::kFp32}}).value();
  return {std::move(model), std::move(cluster), std::move(costs), o};
}

std::string Text(const std::map<std::string, double>& all) {
  std::string text;
  for (const auto& [name, time] : all) text += name + " " + std::to_string(1e6 * time) + " us\n";
  return text;
}

/// Relative; ops that share a device end at whole nanoseconds in the search, every one.
double Rounding(const Case& c) {
  return c.costs.profile().gpu ? 1e-4 : 1e-9;
}

/// Without " tc4".
std::string SplitOf(const std::string& name) {
  return std::regex_replace(name, std::regex(" tc[0-9]+"), "");
}

/// Times in rising order: of the best split with every number of chunks of tensor traffic, of
/// others with the best.
std::vector<double> Best(const std::map<std::string, double>& all) {
  const auto fastest = std::min_element(
      all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::map<std::string, double> kept;
  for (const auto& [name, time] : all) {
    const std::string split = SplitOf(name);
    const std::string key = split == SplitOf(fastest->first) ? name : split;
    const auto known = kept.emplace(key, time).first;
    known->second = std::min(known->second, time);
  }
  std::vector<double> best;
  for (const auto& [name, time] : kept) best.push_back(time);
  std::sort(best.begin(), best.end());
  return best;
}

TEST(SearchBruteForce, FindsWhatTryingEverythingFinds) {
  const int64_t wanted = std::getenv("MESHWRIGHT_LONG") != nullptr ? 3000 : 500;
  Dice dice(7);
  int64_t feasible = 0, tight = 0, infeasible = 0, illegal = 0;
  for (int64_t n = 0; n < wanted; ++n) {
    int64_t gpus = 1;
    Case c = RandomCase(dice, gpus);
    SCOPED_TRACE("case " + std::to_string(n));
    // First with all the memory there is, to learn what the fastest plan needs; then with less.
    const auto free = FindPlans(c.model, c.cluster, c.costs, c.options);
    if (free.ok() && dice.Between(0, 3) > 0) {
      int64_t peak = 0;
      for (const MemoryBreakdown& m : free->plans.front().memory) peak = std::max(peak, m.total());
      c.options.memory_limit = Bytes(peak * dice.Between(30, 110) / 100);
      ++tight;
    }
    const auto found = FindPlans(c.model, c.cluster, c.costs, c.options);
    std::map<std::string, double> all = BruteForce(c).Run(gpus);
    ASSERT_EQ(found.ok(), !all.empty())
        << (found.ok() ? ShortName(found->plans[0].plan) : found.status().message());
    if (!found.ok()) {
      EXPECT_EQ(found.status().code(), StatusCode::kInfeasible);
      (free.ok() ? infeasible : illegal) += 1;
      continue;
    }
    ++feasible;
    const std::vector<double> best = Best(all);
    ASSERT_EQ(found->plans.size(), std::min<size_t>(best.size(), 3));
    for (size_t i = 0; i < found->plans.size(); ++i) {
      ASSERT_NEAR(found->plans[i].objective_s, best[i], 1e-12 + Rounding(c) * best[i])
          << ShortName(found->plans[i].plan) << "\n"
          << Text(all);
      const auto lowered = Lower(found->plans[i].plan);
      ASSERT_TRUE(lowered.ok()) << lowered.status().message();
      for (const RankProgram& program : lowered->programs) {
        EXPECT_EQ(program.arena.size,
                  found->plans[i].memory[static_cast<size_t>(program.stage)].arena());
      }
    }
  }
  EXPECT_GT(feasible, wanted / 3);
  EXPECT_GT(tight, wanted / 3);
  EXPECT_GT(infeasible, 0);
  RecordProperty("illegal", static_cast<int>(illegal));
}

TEST(SearchBruteForce, DoesNotDependOnOrderOrThreads) {
  Dice dice(99);
  for (int64_t n = 0; n < 40; ++n) {
    int64_t gpus = 1;
    Case c = RandomCase(dice, gpus);
    c.options.micro_batch.reset();
    const auto plain = FindPlans(c.model, c.cluster, c.costs, c.options);
    for (const uint64_t seed : {1, 2, 3}) {
      c.options.shuffle_seed = seed;
      c.options.threads = static_cast<int>(seed);
      const auto other = FindPlans(c.model, c.cluster, c.costs, c.options);
      ASSERT_EQ(plain.ok(), other.ok());
      if (!plain.ok()) {
        EXPECT_EQ(plain.status(), other.status());
        continue;
      }
      ASSERT_EQ(plain->plans.size(), other->plans.size());
      for (size_t i = 0; i < plain->plans.size(); ++i) {
        EXPECT_EQ(plain->plans[i].plan, other->plans[i].plan);
        EXPECT_EQ(plain->plans[i].objective_s, other->plans[i].objective_s);
      }
      EXPECT_EQ(plain->counts.evaluated, other->counts.evaluated);
      EXPECT_EQ(plain->counts.feasible, other->counts.feasible);
    }
  }
}

}  // namespace
}  // namespace meshwright::planner
