// Step times of many micro-batches from steps of few, against the whole simulation.
#include "planner/predict/few_micro_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "planner/predict/predict.h"
#include "tests/planner/predict_fixtures.h"

namespace meshwright::planner {
namespace {

TEST(FewMicroBatches, AreGroupsOfTheSchedule) {
  const auto few = [](int64_t pp, int64_t v, int64_t m) { return EnoughMicroBatches(pp, v, m); };
  ASSERT_TRUE(few(4, 2, 32));
  EXPECT_EQ(few(4, 2, 32)->first, 8);
  EXPECT_EQ(few(4, 2, 32)->group, 4);
  EXPECT_EQ(SimulatedMicroBatches(4, 2, 32), 14) << "8 twice, 12 once";
  ASSERT_TRUE(few(4, 2, 12));
  EXPECT_EQ(few(4, 2, 12)->first, 4) << "two groups would save nothing";
  EXPECT_FALSE(few(4, 2, 8));
  EXPECT_EQ(SimulatedMicroBatches(4, 2, 8), 8);
  ASSERT_TRUE(few(1, 1, 64));
  EXPECT_EQ(few(1, 1, 64)->group, 2) << "the first and the last micro-batch are unlike the others";
  EXPECT_FALSE(few(4, 2, 13)) << "groups of 7 and 6";
  // Groups of 5 and a last one of 4: fewer of them have the same.
  ASSERT_TRUE(few(4, 2, 79));
  EXPECT_EQ(few(4, 2, 79)->group, 5);
  EXPECT_EQ(few(4, 2, 79)->first, 14);
}

struct Compared {
  SimulatedStep few, all;
};

Compared Compare(const Plan& plan, const topologies::Cluster& cluster,
                 const cost::CostModel& costs) {
  const auto few = PredictFromFew(plan, cluster, costs);
  const auto programs = LowerForPrices(plan);
  EXPECT_TRUE(programs.ok() && few.ok());
  if (!programs.ok() || !few.ok()) return {};
  const auto all = Predict(plan, *programs, PricesOf(plan, cluster, costs));
  EXPECT_TRUE(all.ok());
  return all.ok() ? Compared{*few, *all} : Compared{};
}

void ExpectAlike(const Compared& c, double tolerance) {
  const Prediction& few = c.few.prediction;
  const Prediction& all = c.all.prediction;
  EXPECT_NEAR(few.step_time_s / all.step_time_s, 1, tolerance);
  ASSERT_EQ(few.stage_time_s.size(), all.stage_time_s.size());
  for (size_t s = 0; s < all.stage_time_s.size(); ++s) {
    EXPECT_NEAR(few.stage_time_s[s] / all.stage_time_s[s], 1, tolerance);
  }
  EXPECT_NEAR(few.bubble_fraction, all.bubble_fraction, 2 * tolerance);
  EXPECT_NEAR(few.model_tflops_per_gpu / all.model_tflops_per_gpu, 1, tolerance);
  EXPECT_EQ(few.memory, all.memory) << "of the plan itself";
}

SplitRequest On8Gpus(int64_t tp, int64_t pp, int64_t dp, int64_t v, int64_t micro_batches) {
  SplitRequest r;
  r.tp = tp;
  r.pp = pp;
  r.dp = dp;
  r.virtual_stages = v;
  r.global_batch = micro_batches * dp;
  r.sequence = 1024;
  r.device = topologies::DeviceKind::kGpu;
  r.sharding = dp > 1 ? Sharding::kZero1 : Sharding::kNone;
  return r;
}

/// Llama 3.2 1B with the layers of a larger model.
ModelSpec Deep() {
  ModelSpec model = ShippedModel("llama-3.2-1b");
  model.modules.front().layers.assign(48, 0);
  return model;
}

TEST(FewMicroBatches, GiveTheStepOfMany) {
  const ModelSpec model = Deep();
  const topologies::Cluster cluster = ShippedCluster("dgx-h200", 8);
  const cost::CostModel costs = ShippedCosts("h200-sxm");
  for (const SplitRequest& r :
       {On8Gpus(1, 1, 8, 1, 40), On8Gpus(2, 2, 2, 1, 32), On8Gpus(2, 4, 1, 3, 32),
        On8Gpus(1, 8, 1, 1, 64), On8Gpus(1, 8, 1, 6, 64), On8Gpus(1, 4, 2, 2, 79)}) {
    SCOPED_TRACE(testing::Message() << "tp" << r.tp << " pp" << r.pp << " v" << r.virtual_stages);
    const Compared c = Compare(PlanOf(model, r), cluster, costs);
    ExpectAlike(c, 3e-3);
  }
}

TEST(FewMicroBatches, GoOnUntilTheSlowestStageLeads) {
  // Stages of unlike recomputation: the others lead it by micro-batches that they use up slowly.
  SplitRequest r = On8Gpus(2, 4, 1, 3, 128);
  r.recompute = {Recompute::kSelective, Recompute::kSelective, Recompute::kNone, Recompute::kNone};
  const Compared c =
      Compare(PlanOf(Deep(), r), ShippedCluster("dgx-h200", 8), ShippedCosts("h200-sxm"));
  ExpectAlike(c, 3e-3);
  EXPECT_LT(c.few.nodes, 3 * c.all.nodes / 4);
}

TEST(FewMicroBatches, OfRanksThatShareCores) {
  SplitRequest r = Tiny(1, 4, 2);
  r.global_batch = 2 * 32;
  ExpectAlike(Compare(PlanOf(TinyGpt(), r), CpuRanks(8, 3), InventedCpuCosts()), 3e-3);
}

TEST(FewMicroBatches, OfRandomPlans) {
  const ModelSpec model = Deep();
  const topologies::Cluster cluster = ShippedCluster("dgx-h200", 16);
  const cost::CostModel costs = ShippedCosts("h200-sxm");
  std::mt19937 dice(7);
  const auto throws = [&dice](int64_t n) { return static_cast<int64_t>(dice() % n); };
  double sum = 0;
  for (int i = 0; i < 80; ++i) {
    const int64_t pp = int64_t{1} << throws(4);
    const int64_t v = pp == 1 ? 1 : 1 + throws(48 / pp > 4 ? 4 : 48 / pp);
    SplitRequest r = On8Gpus(int64_t{1} << throws(2), pp, 1, v, pp * (4 + throws(12)));
    r.dp = 16 / (r.tp * pp) > 0 ? 16 / (r.tp * pp) : 1;
    r.global_batch *= r.dp;
    r.micro_batch = 1 + throws(2);
    r.global_batch *= r.micro_batch;
    r.sharding = r.dp > 1 && throws(2) > 0 ? Sharding::kZero1 : Sharding::kNone;
    int64_t left = model.modules.front().layer_count();
    for (int64_t s = 0; s < pp * v; ++s) {  // uneven
      const int64_t rest = pp * v - s - 1;
      const int64_t mean = left / (rest + 1);
      const int64_t n =
          rest == 0 ? left : std::clamp<int64_t>(mean + throws(3) - 1, 1, left - rest);
      r.layers.push_back(n);
      left -= n;
    }
    for (int64_t s = 0; s < pp; ++s) {
      r.recompute.push_back(throws(3) == 0 ? Recompute::kFull : Recompute::kNone);
    }
    const Compared c = Compare(PlanOf(model, r), cluster, costs);
    const double off = c.few.prediction.step_time_s / c.all.prediction.step_time_s - 1;
    sum += std::abs(off);
    EXPECT_NEAR(off, 0, 7e-3) << "tp" << r.tp << " pp" << pp << " dp" << r.dp << " v" << v << " mb"
                              << r.micro_batch << " of " << r.global_batch;
  }
  EXPECT_LT(sum / 80, 1e-3);
}

}  // namespace
}  // namespace meshwright::planner
