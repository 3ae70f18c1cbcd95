#include "runtime/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace meshwright::runtime {
namespace {

LrOptions Make(LrDecay decay) {
  LrOptions o;
  o.peak = 1.0;
  o.floor = 0.1;
  o.warmup_steps = 4;
  o.decay_steps = 12;
  o.decay = decay;
  return o;
}

TEST(LrSchedule, WarmupRisesLinearlyAndReachesThePeak) {
  for (LrDecay decay : {LrDecay::kConstant, LrDecay::kCosine, LrDecay::kLinear}) {
    const LrOptions o = Make(decay);
    EXPECT_DOUBLE_EQ(LearningRate(o, 1), 0.25);
    EXPECT_DOUBLE_EQ(LearningRate(o, 3), 0.75);
    EXPECT_DOUBLE_EQ(LearningRate(o, 4), 1.0);
  }
}

TEST(LrSchedule, ConstantStays) {
  LrOptions o = Make(LrDecay::kConstant);
  EXPECT_DOUBLE_EQ(LearningRate(o, 5), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(o, 1000000), 1.0);
  o.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(LearningRate(o, 1), 1.0);
}

TEST(LrSchedule, CosineFallsToTheFloorAndStays) {
  const LrOptions o = Make(LrDecay::kCosine);
  EXPECT_NEAR(LearningRate(o, 6), 0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2, 1e-15);
  EXPECT_NEAR(LearningRate(o, 8), 0.55, 1e-15);
  EXPECT_DOUBLE_EQ(LearningRate(o, 12), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(o, 500), 0.1);
}

TEST(LrSchedule, LinearFallsToTheFloorAndStays) {
  const LrOptions o = Make(LrDecay::kLinear);
  EXPECT_NEAR(LearningRate(o, 6), 1.0 - 0.9 * 0.25, 1e-15);
  EXPECT_NEAR(LearningRate(o, 11), 1.0 - 0.9 * 0.875, 1e-15);
  EXPECT_DOUBLE_EQ(LearningRate(o, 12), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(o, 500), 0.1);
}

TEST(LrSchedule, OptionsAreChecked) {
  EXPECT_TRUE(CheckLrOptions(Make(LrDecay::kCosine)).ok());
  const auto refused = [](auto change) {
    LrOptions o = Make(LrDecay::kCosine);
    change(o);
    const Status status = CheckLrOptions(o);
    EXPECT_EQ(status.code(), StatusCode::kInvalidInput);
    EXPECT_FALSE(status.message().empty());
  };
  refused([](LrOptions& o) { o.peak = -1; });
  refused([](LrOptions& o) { o.peak = std::nan(""); });
  refused([](LrOptions& o) { o.warmup_steps = -1; });
  refused([](LrOptions& o) { o.floor = 2; });
  refused([](LrOptions& o) { o.floor = std::nan(""); });
  refused([](LrOptions& o) { o.decay_steps = 4; });
  // Without decay, its fields do not matter.
  LrOptions constant = Make(LrDecay::kConstant);
  constant.decay_steps = 0;
  EXPECT_TRUE(CheckLrOptions(constant).ok());
}

TEST(LrSchedule, NamesRoundTrip) {
  for (LrDecay decay : {LrDecay::kConstant, LrDecay::kCosine, LrDecay::kLinear}) {
    EXPECT_EQ(*ParseLrDecay(ToString(decay)), decay);
  }
  const auto unknown = ParseLrDecay("exponential");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message().find("constant, cosine, linear"), std::string::npos);
}

}  // namespace
}  // namespace meshwright::runtime
