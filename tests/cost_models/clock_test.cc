// The clock that a power limit leaves.
#include "cost_models/clock.h"

#include <gtest/gtest.h>

#include "cost_models/cost_model.h"
#include "cost_models/device_profile.h"

namespace meshwright::cost {
namespace {

PowerClock Clock(double reference, double products, double memory_power) {
  PowerClock clock;
  clock.reference.value = reference;
  clock.products.value = products;
  clock.memory_power.value = memory_power;
  return clock;
}

/// Seconds of products (clock 0.75 alone), attention (0.9) and memory-bound kernels.
double Stretch(double products, double attention, double memory, double memory_power = 0.7) {
  const BusyTime busy = {{{0.75, Seconds(products)}, {0.9, Seconds(attention)}}, Seconds(memory)};
  return StretchOf(busy, Clock(0.8, 0.75, memory_power));
}

TEST(StretchOf, WorkOfOneKindRunsAtItsOwnClock) {
  EXPECT_NEAR(Stretch(1, 0, 0), 0.8 / 0.75, 1e-6);
  EXPECT_NEAR(Stretch(0, 1, 0), 0.8 / 0.9, 1e-6);
  EXPECT_NEAR(Stretch(1e-3, 0, 0), Stretch(10, 0, 0), 1e-6) << "how long does not matter";
}

TEST(StretchOf, ClocksRiseWithWhatDrawsLessPower) {
  double last = Stretch(1, 0, 0);
  for (const double share : {0.2, 0.4, 0.6, 0.8}) {
    const double now = Stretch(1 - share, share, 0);
    EXPECT_LT(now, last);
    EXPECT_GT(now, 0.8 / 0.9);
    last = now;
  }
  EXPECT_LT(Stretch(1, 0, 0.5), Stretch(1, 0, 0.1)) << "kernels that wait for memory";
  EXPECT_LT(Stretch(1, 0, 0.5, 0.2), Stretch(1, 0, 0.5, 0.9));
}

TEST(StretchOf, TheHighestClockIsTheLimit) {
  EXPECT_NEAR(Stretch(0.01, 0, 10, 0.3), 0.8, 1e-9) << "power to spare";
  EXPECT_EQ(Stretch(0, 0, 1), 1.0) << "nothing that the clock decides";
}

Work Product(int64_t rows, Precision precision = Precision::kBf16) {
  Work work;
  work.kind = WorkKind::kGemm;
  work.precision = precision;
  work.kernel = "linear";
  work.m = rows;
  work.n = work.k = 4096;
  work.flops = Flops(2.0 * 4096 * 4096 * static_cast<double>(rows));
  return work;
}

TEST(ClockDecides, AttentionAndLargeProductsOfTensorCores) {
  EXPECT_TRUE(ClockDecides(Product(4096)));
  EXPECT_FALSE(ClockDecides(Product(128))) << "calibrate times it alone";
  EXPECT_FALSE(ClockDecides(Product(4096, Precision::kFp32)));
  Work attention;
  attention.kind = WorkKind::kAttention;
  attention.precision = Precision::kBf16;
  EXPECT_TRUE(ClockDecides(attention));
  Work norm;
  norm.kind = WorkKind::kMemory;
  EXPECT_FALSE(ClockDecides(norm));
}

TEST(CostModel, StretchesWhatTheClockDecides) {
  const DeviceProfile profile = LoadDeviceProfile("h200-sxm").value();
  CostOptions options{{Precision::kBf16, Precision::kFp32}};
  const CostModel plain = CostModel::Make(profile, options).value();
  options.stretch = 0.9;
  const CostModel faster = CostModel::Make(profile, options).value();
  EXPECT_NEAR(
      faster.ExplainOp(Product(8192)).arithmetic / plain.ExplainOp(Product(8192)).arithmetic, 0.9,
      1e-12);
  EXPECT_EQ(faster.PriceOp(Product(128)), plain.PriceOp(Product(128)));
}

TEST(ClockAlone, OfAttentionIsThatOfItsHeadSize) {
  const DeviceProfile profile = LoadDeviceProfile("h200-sxm").value();
  Work attention;
  attention.kind = WorkKind::kAttention;
  attention.precision = Precision::kBf16;
  const auto clock = [&](int64_t head_dim) {
    attention.head_dim = head_dim;
    return ClockAlone(attention, *profile.gpu);
  };
  EXPECT_GT(clock(64), clock(80));
  EXPECT_GT(clock(80), clock(128));
  EXPECT_GT(clock(128), ClockAlone(Product(8192), *profile.gpu));
}

}  // namespace
}  // namespace meshwright::cost
