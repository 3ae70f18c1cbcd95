#include <limits>

#include "runtime/cpu_blas.h"
#include "tests/runtime/kernel_harness.h"

namespace meshwright::runtime {
namespace {

using planner::DType;
using planner::OpKind;

constexpr int64_t kRows = 7;
constexpr int64_t kIn = 5;
constexpr int64_t kOut = 3;

KernelHarness MakeLinear(DType dtype = DType::kF64) {
  KernelHarness h(dtype);
  h.Add("x", {kRows, kIn}, Random(kRows * kIn, 1));
  h.Add("w", {kOut, kIn}, Random(kOut * kIn, 2));
  h.Add("bias", {kOut}, Random(kOut, 3));
  h.Add("dy", {kRows, kOut}, Random(kRows * kOut, 4));
  h.Add("y", {kRows, kOut});
  h.Add("dx", {kRows, kIn});
  h.Add("dw", {kOut, kIn});
  h.Add("dbias", {kOut});
  return h;
}

TEST(LinearKernel, MatchesDefinitionInBothPrecisions) {
  for (DType dtype : {DType::kF64, DType::kF32}) {
    KernelHarness h = MakeLinear(dtype);
    for (bool with_bias : {false, true}) {
      KernelHarness::Bindings b = {{"x", "x"}, {"weight", "w"}, {"y", "y"}};
      if (with_bias) b.emplace_back("bias", "bias");
      h.Poison("y");
      ASSERT_TRUE(h.Run(OpKind::kLinear, b).ok());
      const auto x = h.Get("x"), w = h.Get("w"), bias = h.Get("bias");
      std::vector<double> y;
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t o = 0; o < kOut; ++o) {
          double sum = with_bias ? bias[o] : 0;
          for (size_t i = 0; i < kIn; ++i) sum += x[r * kIn + i] * w[o * kIn + i];
          y.push_back(sum);
        }
      }
      ExpectClose(h.Get("y"), y, dtype == DType::kF64 ? 1e-14 : 1e-6, "y");
    }
  }
}

TEST(LinearKernel, GradientsMatchDifferences) {
  KernelHarness h = MakeLinear();
  const auto loss = [&] {
    EXPECT_TRUE(
        h.Run(OpKind::kLinear, {{"x", "x"}, {"weight", "w"}, {"bias", "bias"}, {"y", "y"}}).ok());
    return Dot(h.Get("dy"), h.Get("y"));
  };
  h.first_micro_batch = true;
  ASSERT_TRUE(h.Run(OpKind::kLinearInputGrad, {{"dy", "dy"}, {"weight", "w"}, {"dx", "dx"}}).ok());
  ASSERT_TRUE(
      h.Run(OpKind::kLinearWeightGrad, {{"dy", "dy"}, {"x", "x"}, {"weight_grad", "dw"}}).ok());
  ASSERT_TRUE(h.Run(OpKind::kBiasGrad, {{"dy", "dy"}, {"bias_grad", "dbias"}}).ok());
  ExpectGradient(h, "x", loss, h.Get("dx"));
  ExpectGradient(h, "w", loss, h.Get("dw"));
  ExpectGradient(h, "bias", loss, h.Get("dbias"));
}

TEST(LinearKernel, OutputsCanBeAddedTo) {
  KernelHarness h = MakeLinear();
  for (const bool with_bias : {false, true}) {
    KernelHarness::Bindings forward = {{"x", "x"}, {"weight", "w"}, {"y", "y"}};
    if (with_bias) forward.emplace_back("bias", "bias");
    const KernelHarness::Bindings backward = {{"dy", "dy"}, {"weight", "w"}, {"dx", "dx"}};
    std::vector<double> y, dx;
    for (const bool adds : {false, true}) {
      h.add_to_products = adds;
      if (!adds) h.Poison("y"), h.Poison("dx");
      ASSERT_TRUE(h.Run(OpKind::kLinear, forward).ok());
      ASSERT_TRUE(h.Run(OpKind::kLinearInputGrad, backward).ok());
      if (!adds) y = h.Get("y"), dx = h.Get("dx");
    }
    for (double& value : y) value *= 2;
    for (double& value : dx) value *= 2;
    ExpectClose(h.Get("y"), y, 1e-14, "y");
    ExpectClose(h.Get("dx"), dx, 1e-14, "dx");
  }
}

TEST(LinearKernel, WeightAndBiasGradientsAccumulate) {
  KernelHarness h = MakeLinear();
  for (bool first : {true, false}) {
    h.first_micro_batch = first;
    ASSERT_TRUE(
        h.Run(OpKind::kLinearWeightGrad, {{"dy", "dy"}, {"x", "x"}, {"weight_grad", "dw"}}).ok());
    ASSERT_TRUE(h.Run(OpKind::kBiasGrad, {{"dy", "dy"}, {"bias_grad", "dbias"}}).ok());
  }
  const auto dy = h.Get("dy"), x = h.Get("x");
  std::vector<double> dw(kOut * kIn), dbias(kOut);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t o = 0; o < kOut; ++o) {
      dbias[o] += 2 * dy[r * kOut + o];
      for (size_t i = 0; i < kIn; ++i) dw[o * kIn + i] += 2 * dy[r * kOut + o] * x[r * kIn + i];
    }
  }
  ExpectClose(h.Get("dw"), dw, 1e-14, "dw");
  ExpectClose(h.Get("dbias"), dbias, 1e-14, "dbias");
}

TEST(LinearKernel, BiasAddIsInPlace) {
  KernelHarness h = MakeLinear();
  const auto dy = h.Get("dy"), bias = h.Get("bias");
  ASSERT_TRUE(h.Run(OpKind::kBiasAdd, {{"bias", "bias"}, {"y", "dy"}}).ok());
  std::vector<double> expected(dy);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias[i % kOut];
  EXPECT_EQ(h.Get("dy"), expected);
}

TEST(LinearKernel, AddAndCopyAlsoInPlace) {
  KernelHarness h;
  h.Add("a", {3, 5}, Random(15, 1));
  h.Add("b", {3, 5}, Random(15, 2));
  h.Add("out", {3, 5});
  const auto a = h.Get("a"), b = h.Get("b");
  std::vector<double> sum(a);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  ASSERT_TRUE(h.Run(OpKind::kAdd, {{"a", "a"}, {"b", "b"}, {"out", "out"}}).ok());
  EXPECT_EQ(h.Get("out"), sum);
  ASSERT_TRUE(h.Run(OpKind::kCopy, {{"a", "a"}, {"out", "out"}}).ok());
  EXPECT_EQ(h.Get("out"), a);
  ASSERT_TRUE(h.Run(OpKind::kAdd, {{"a", "a"}, {"b", "b"}, {"out", "b"}}).ok());
  EXPECT_EQ(h.Get("b"), sum);
}

TEST(LinearKernel, SizesBeyondBlasIntegersAreRefused) {
  double x = 0;
  const int64_t large = int64_t{std::numeric_limits<int>::max()} + 1;
  const Status status = MatrixProduct<double>(large, 1, 1, 1.0, {&x, 1}, {&x, 1}, 0.0, {&x, 1});
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("2147483648"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace meshwright::runtime
