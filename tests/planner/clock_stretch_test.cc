// The stretch of a model's step by the power limit's clock.
#include "planner/predict/clock_stretch.h"

#include <gtest/gtest.h>

#include "planner/predict/predict.h"
#include "tests/planner/predict_fixtures.h"

namespace meshwright::planner {
namespace {

double Stretch(const std::string& model, int64_t sequence, DType dtype = DType::kBf16,
               const std::string& profile = "h200-sxm") {
  const auto stretch = ClockStretch(ShippedModel(model), sequence, dtype,
                                    ShippedCluster("dgx-h200", 8), ShippedCosts(profile));
  EXPECT_TRUE(stretch.ok()) << stretch.status().message();
  return stretch.ok() ? *stretch : 0.0;
}

TEST(ClockStretch, FollowsWhatAStepIsBusyWith) {
  // Clocks of these steps on an H200: 1.50, 1.54, 1.61 and 1.72 GHz (cost_models/h200_runs.md).
  const double large = Stretch("llama-3.2-3b-untied", 4096);
  const double medium = Stretch("llama-1b-untied", 4096);
  const double longer = Stretch("llama-3.2-1b", 8192);
  const double longest = Stretch("llama-1.1b-16k", 16384);
  EXPECT_GT(large, medium);
  EXPECT_GT(medium, longer);
  EXPECT_GT(longer, longest);
  EXPECT_NEAR(large / longest, 1.72 / 1.50, 0.06) << "3B is calculated at 1.55 GHz";
}

TEST(ClockStretch, IsOneWhereNothingIsKnown) {
  EXPECT_EQ(Stretch("llama-1b-untied", 4096, DType::kF32), 1.0);
  EXPECT_EQ(Stretch("llama-1b-untied", 4096, DType::kBf16, "h100-sxm"), 1.0) << "no power_clock";
  EXPECT_EQ(Stretch("mixtral-8x7b", 4096), 1.0) << "not ours to run";
  EXPECT_EQ(Stretch("gpt2", 4096), 1.0) << "longer than its positions";
  const auto cpu = ClockStretch(TinyGpt(), 32, DType::kF32, CpuRanks(2, 2), InventedCpuCosts());
  ASSERT_TRUE(cpu.ok());
  EXPECT_EQ(*cpu, 1.0);
}

TEST(ClockStretch, TensorTrafficLeavesNoHigherClockThanTheReference) {
  const cost::CostModel costs = ShippedCosts("h200-sxm");
  const auto step = [&](int64_t tp, double stretch) {
    SplitRequest r;
    r.tp = tp;
    r.micro_batch = 4;
    r.global_batch = 8;
    r.sequence = 4096;
    r.device = topologies::DeviceKind::kGpu;
    const Plan plan = PlanOf(ShippedModel("llama-1b-untied"), r);
    const Prices prices = PricesOf(plan, ShippedCluster("dgx-h200", 8), costs.WithStretch(stretch));
    return Predict(plan, Lowered(plan), prices)->prediction.step_time_s;
  };
  EXPECT_LT(step(1, 0.9), 0.95 * step(1, 1.0));
  EXPECT_EQ(step(2, 0.9), step(2, 1.0));
  EXPECT_GT(step(2, 1.1), 1.05 * step(2, 1.0));
}

}  // namespace
}  // namespace meshwright::planner
