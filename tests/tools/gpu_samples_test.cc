// Measurements of a GPU as a file, and the shipped profile that was fitted to such a file.
#include "tools/gpu_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "topologies/text.h"

namespace meshwright::tools {
namespace {

using ::testing::HasSubstr;

std::string ShippedText() {
  const auto text = topologies::ReadTextFile(MESHWRIGHT_H200_SAMPLES, size_t{1} << 24);
  EXPECT_TRUE(text.ok()) << text.status().message();
  return text.ok() ? *text : "";
}

TEST(GpuSamples, ReadBackAsWritten) {
  const auto samples = ParseGpuSamples(ShippedText(), "samples");
  ASSERT_TRUE(samples.ok()) << samples.status().message();
  EXPECT_GE(samples->products.size(), 100u);
  const auto again = ParseGpuSamples(GpuSamplesJson(*samples).dump(), "again");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(GpuSamplesJson(*again), GpuSamplesJson(*samples));
}

TEST(GpuSamples, OtherTextIsRefused) {
  const auto refusal = [](const std::string& text) {
    const auto samples = ParseGpuSamples(text, "x.json");
    EXPECT_FALSE(samples.ok());
    return samples.ok() ? std::string() : samples.status().message();
  };
  EXPECT_THAT(refusal(""), HasSubstr("x.json"));
  EXPECT_THAT(refusal("[1, 2]"), HasSubstr("calibrate"));
  EXPECT_THAT(refusal(R"({"format": "another", "version": 1})"), HasSubstr("version"));
  nlohmann::json cut = nlohmann::json::parse(ShippedText());
  cut.erase("products");
  EXPECT_THAT(refusal(cut.dump()), HasSubstr("products"));
}

TEST(GpuSamples, ShippedProfileIsTheirFit) {
  const auto samples = ParseGpuSamples(ShippedText(), "samples");
  const auto shipped = cost::LoadDeviceProfile("h200-sxm");
  ASSERT_TRUE(samples.ok() && shipped.ok());
  const auto fitted = cost::FitGpu(*shipped, *samples, "a test");
  ASSERT_TRUE(fitted.ok()) << fitted.status().message();
  const cost::GpuModel& a = *shipped->gpu;
  const cost::GpuModel& b = *fitted->profile.gpu;
  const auto near = [](double x, double y, const std::string& what) {
    EXPECT_NEAR(x, y, 1e-3 * std::max(std::abs(x), std::abs(y))) << what;
  };
  const auto same_gemm = [&](const cost::GemmFit& x, const cost::GemmFit& y) {
    near(x.max_efficiency.value, y.max_efficiency.value, "max_efficiency");
    near(x.edge.value, y.edge.value, "edge");
    near(x.depth.value, y.depth.value, "depth");
    near(x.quantisation.value, y.quantisation.value, "quantisation");
    near(x.fit_median.value, y.fit_median.value, "fit_median");
    EXPECT_EQ(x.fit_rows.value, y.fit_rows.value);
  };
  ASSERT_EQ(a.kernel_gemm.size(), b.kernel_gemm.size());
  for (size_t i = 0; i < a.kernel_gemm.size(); ++i) {
    EXPECT_EQ(a.kernel_gemm[i].kernel, b.kernel_gemm[i].kernel);
    same_gemm(a.kernel_gemm[i].fit, b.kernel_gemm[i].fit);
    // Short products are measured alone, the others under the power of a step: the fit lies between.
    EXPECT_LT(b.kernel_gemm[i].fit.fit_median.value, 0.05) << b.kernel_gemm[i].kernel;
    EXPECT_EQ(a.kernel_gemm[i].fit.alignment.size(), 4u);
  }
  ASSERT_EQ(a.attention.size(), b.attention.size());
  for (size_t i = 0; i < a.attention.size(); ++i) {
    near(a.attention[i].rate.value.value(), b.attention[i].rate.value.value(), "attention");
  }
  ASSERT_EQ(a.kernels.size(), b.kernels.size());
  for (const cost::KernelFit& kernel : a.kernels) {  // not in the same order
    const auto found =
        std::find_if(b.kernels.begin(), b.kernels.end(),
                     [&](const cost::KernelFit& k) { return k.kernel == kernel.kernel; });
    ASSERT_NE(found, b.kernels.end()) << kernel.kernel;
    near(kernel.efficiency.value, found->efficiency.value, kernel.kernel);
  }
  near(shipped->memory_efficiency.value, fitted->profile.memory_efficiency.value, "memory");
}

}  // namespace
}  // namespace meshwright::tools
