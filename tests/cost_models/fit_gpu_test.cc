// Fits find the constants that made the measurements, and say how well they do.
#include "cost_models/fit_gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "cost_models/coordinate_descent.h"
#include "cost_models/cost_model.h"

namespace meshwright::cost {
namespace {

using ::testing::HasSubstr;

DeviceProfile Base() {
  Result<DeviceProfile> profile = LoadDeviceProfile("h200-sxm");
  MW_CHECK(profile.ok());
  profile->gpu->kernels.clear();
  profile->gpu->gemm.accumulation = {};
  return *profile;
}

/// What a GPU with known constants would measure.
struct Truth {
  double max_efficiency = 0.7, edge = 20, depth = 150, quantisation = 0.4, fixed = 2e-6;
  double attention_rate = 5e14, half_length = 700;
  double kernel_efficiency = 0.6, kernel_fixed = 4e-6, launch = 1.5e-6;
};

GpuSamples SamplesOf(const Truth& t) {
  GpuSamples s;
  s.device = "a GPU";
  s.multiprocessors = 132;
  s.copy_rate = BytesPerSecond(4.2e12);
  s.launch = Seconds(2 * t.launch);  // by itself
  s.graph_launch = Seconds(t.launch);
  s.issue_kernel = Seconds(2e-6);
  s.issue_product = Seconds(5e-6);
  s.issue_attention = Seconds(9e-6);
  s.context_memory = Bytes(int64_t{500} << 20);
  s.library_memory = Bytes(int64_t{300} << 20);
  GpuModel model = *Base().gpu;
  model.gemm.max_efficiency.value = t.max_efficiency;
  model.gemm.edge.value = t.edge;
  model.gemm.depth.value = t.depth;
  model.gemm.quantisation.value = t.quantisation;
  model.gemm.fixed.value = Seconds(t.fixed);
  for (const int64_t m : {512, 1024, 3072, 12288}) {
    for (const int64_t n : {1280, 2560, 7168}) {
      for (const int64_t k : {640, 2560, 10240}) {
        const GemmShape shape{m, n, k};
        s.products.push_back(
            {shape, m > 1024 ? "linear" : "linear_weight_grad",
             Seconds(t.launch) +
                 GpuGemmTime(shape, model, FlopsPerSecond(989.4e12), BytesPerSecond(4.8e12))});
      }
    }
  }
  for (const int64_t length : {1024, 4096, 16384}) {
    for (const bool backward : {false, true}) {
      const double flops = 1e12;
      const auto keys = static_cast<double>(length);
      const double rate = t.attention_rate * keys / (keys + t.half_length);
      s.attention.push_back(
          {128, length, true, backward, Flops(flops), Seconds(t.launch + flops / rate)});
    }
  }
  for (const double bytes : {1e6, 1e7, 1e8, 1e9}) {
    const double time = t.launch + t.kernel_fixed + bytes / (4.8e12 * t.kernel_efficiency);
    s.kernels.push_back({"norm.rms_norm", Bytes(static_cast<int64_t>(bytes)), Seconds(time)});
  }
  return s;
}

TEST(CoordinateDescent, FindsTheBottomOfAValley) {
  const auto loss = [](const std::vector<double>& p) {
    return std::fabs(p[0] - 3) + 0.5 * std::fabs(p[1] + 7) + 0.1 * std::fabs(p[0] + p[1] + 4);
  };
  const auto p = CoordinateDescent({{0, -10, 10, 1}, {0, -10, 10, 1}}, loss, 20);
  EXPECT_NEAR(p[0], 3, 1e-4);
  EXPECT_NEAR(p[1], -7, 1e-4);
  const auto bounded = CoordinateDescent({{0, -10, 2, 1}, {0, -5, 10, 1}}, loss, 20);
  EXPECT_EQ(bounded, (std::vector<double>{2, -5}));
}

TEST(FitGpu, RecoversWhatTheMeasurementsWereMadeWith) {
  const Truth truth;
  const auto fitted = FitGpu(Base(), SamplesOf(truth), "a test");
  ASSERT_TRUE(fitted.ok()) << fitted.status().message();
  const GpuModel& gpu = *fitted->profile.gpu;
  EXPECT_LT(gpu.gemm.fit_median.value, 0.01);
  EXPECT_LT(gpu.gemm.fit_p90.value, 0.03);
  EXPECT_EQ(gpu.gemm.fit_rows.value, 36);
  EXPECT_EQ(gpu.gemm.max_efficiency.source.text, "a test");
  for (const AttentionRate& rate : gpu.attention) {
    if (rate.head_dim != 128 || rate.precision != Precision::kBf16) continue;
    EXPECT_NEAR(rate.rate.value.value(), truth.attention_rate, 0.01 * truth.attention_rate);
    EXPECT_NEAR(rate.half_length.value, truth.half_length, 0.05 * truth.half_length);
  }
  ASSERT_EQ(gpu.kernels.size(), 1u);
  EXPECT_NEAR(gpu.kernels[0].efficiency.value, truth.kernel_efficiency, 0.006);
  EXPECT_NEAR(gpu.kernels[0].fixed.value.value(), truth.kernel_fixed, 0.1e-6);
  EXPECT_NEAR(fitted->profile.memory_efficiency.value, 4.2 / 4.8, 1e-4);
  // What was not measured stays.
  EXPECT_EQ(gpu.collectives, Base().gpu->collectives);
  EXPECT_EQ(fitted->profile.peaks, Base().peaks);
  const auto again = ParseDeviceProfile(ToYaml(fitted->profile), "again");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, fitted->profile);
}

/// Three times as long with odd columns, twice with odd sums.
TEST(FitGpu, FindsWhatRowsOfAnOddLengthCost) {
  GpuSamples samples = SamplesOf({});
  for (ProductTime& p : samples.products) p.kind = "linear";
  const auto aligned = FitGpu(Base(), samples, "a test");
  ASSERT_TRUE(aligned.ok());
  const auto add = [&](const GemmShape& shape, double share) {
    GemmFit fit = FitFor(*aligned->profile.gpu, Precision::kBf16, "linear");
    fit.alignment.clear();
    const double fixed = fit.fixed.value.value();
    const double best =
        GpuGemmTime(shape, fit, 132, FlopsPerSecond(989.4e12), BytesPerSecond(4.8e12)).value();
    samples.products.push_back(
        {shape, "linear", samples.graph_launch + Seconds(fixed + (best - fixed) / share)});
  };
  add({2048, 2561, 5120}, 1.0 / 3);
  add({2048, 2560, 5121}, 0.5);
  add({2048, 2562, 5120}, 0.8);  // no twin along the sums: not told
  const auto fitted = FitGpu(Base(), samples, "a test");
  ASSERT_TRUE(fitted.ok()) << fitted.status().message();
  const GemmFit& fit = FitFor(*fitted->profile.gpu, Precision::kBf16, "linear");
  ASSERT_EQ(fit.alignment.size(), 1u);
  EXPECT_EQ(fit.alignment[0].bytes, 2);
  EXPECT_NEAR(fit.alignment[0].columns.value, 1.0 / 3, 0.02);
  EXPECT_NEAR(fit.alignment[0].sums.value, 0.5, 0.02);
  EXPECT_EQ(fit.max_efficiency,
            FitFor(*aligned->profile.gpu, Precision::kBf16, "linear").max_efficiency);
}

TEST(FitGpu, KernelsArePricedAsTheyWereMeasured) {
  const GpuSamples samples = SamplesOf({});
  const auto fitted = FitGpu(Base(), samples, "a test");
  ASSERT_TRUE(fitted.ok());
  const auto model = CostModel::Make(fitted->profile, {{Precision::kBf16}, true});
  ASSERT_TRUE(model.ok());
  for (const KernelTime& s : samples.kernels) {
    Work work;
    work.kernel = s.kernel;
    work.read = s.bytes;
    EXPECT_NEAR(ToSeconds(model->PriceOp(work)).value(), s.time.value(), 0.01 * s.time.value());
    work.kernel = "another";
    EXPECT_LT(ToSeconds(model->PriceOp(work)).value(), s.time.value()) << "at the copy rate";
  }
}

TEST(FitGpu, TheReferenceClockIsThatOfTheMeasurements) {
  GpuSamples samples = SamplesOf({});
  const auto unknown = FitGpu(Base(), samples, "a test");
  ASSERT_TRUE(unknown.ok()) << unknown.status().message();
  EXPECT_EQ(unknown->profile.gpu->power_clock, Base().gpu->power_clock);
  samples.mix_clock = 0.81;
  const auto known = FitGpu(Base(), samples, "a test");
  ASSERT_TRUE(known.ok()) << known.status().message();
  EXPECT_EQ(known->profile.gpu->power_clock->reference.value, 0.81);
  EXPECT_EQ(known->profile.gpu->power_clock->products, Base().gpu->power_clock->products);
  for (const AttentionRate& rate : known->profile.gpu->attention) {
    if (rate.head_dim != 128 || rate.precision != Precision::kBf16) continue;
    EXPECT_GT(rate.clock.value, 0.8) << "kept, though the rate is new";
  }
  DeviceProfile plain = Base();
  plain.gpu->power_clock.reset();
  const auto without = FitGpu(plain, samples, "a test");
  ASSERT_TRUE(without.ok());
  EXPECT_FALSE(without->profile.gpu->power_clock) << "what draws power was not measured";
}

TEST(FitGpu, RefusesWhatItCannotFit) {
  const auto refusal = [](const std::function<void(DeviceProfile&, GpuSamples&)>& change) {
    DeviceProfile base = Base();
    GpuSamples samples = SamplesOf({});
    change(base, samples);
    const auto fitted = FitGpu(base, samples, "a test");
    EXPECT_FALSE(fitted.ok());
    return fitted.ok() ? std::string() : fitted.status().message();
  };
  EXPECT_THAT(refusal([](DeviceProfile& base, GpuSamples&) { base.gpu.reset(); }),
              HasSubstr("no GPU"));
  EXPECT_THAT(refusal([](DeviceProfile&, GpuSamples& s) { s.products.resize(5); }),
              HasSubstr("5 products"));
  EXPECT_THAT(refusal([](DeviceProfile&, GpuSamples& s) { s.kernels[1].time = Seconds(0); }),
              HasSubstr("above 0"));
  EXPECT_THAT(refusal([](DeviceProfile&, GpuSamples& s) { s.launch = Seconds(NAN); }),
              HasSubstr("above 0"));
  EXPECT_THAT(refusal([](DeviceProfile&, GpuSamples& s) { s.mix_clock = 1.1; }),
              HasSubstr("mix_clock 1.1"));
  EXPECT_THAT(refusal([](DeviceProfile& base, GpuSamples&) { base.peaks.clear(); }),
              HasSubstr("bf16"));
}

}  // namespace
}  // namespace meshwright::cost
