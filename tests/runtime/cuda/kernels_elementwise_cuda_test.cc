// Sums, copies, bias, rotary embeddings and activations against their CPU twins.
#include "tests/runtime/cuda/twin_op.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::DType;
using planner::OpKind;

class CudaElementwise : public CudaKernelTest {};
MW_CUDA_KERNEL_TESTS(CudaElementwise);

constexpr int64_t kLarge = int64_t{32} << 20;  ///< elements: 64 MiB in bf16

TEST_P(CudaElementwise, Add) {
  for (int64_t n : {int64_t{1}, int64_t{7}, int64_t{2048}, int64_t{5001}, kLarge + 3}) {
    for (int64_t shift : {0, 4}) {
      if (shift != 0 && n > kLarge) continue;
      TwinOp t(GetParam());
      t.shift = shift;
      t.Add("a", {n}, Random(n, 1));
      t.Add("b", {n}, Random(n, 2));
      t.Add("out", {n});
      MW_ASSERT_OK(t.Run(OpKind::kAdd, {{"a", "a"}, {"b", "b"}, {"out", "out"}}));
      t.Expect("out", RoundedOnce(GetParam()));
      if (n > kLarge) continue;
      MW_ASSERT_OK(t.Run(OpKind::kAdd, {{"a", "a"}, {"b", "b"}, {"out", "a"}}));
      t.Expect("a", RoundedOnce(GetParam()));
    }
  }
}

TEST_P(CudaElementwise, Copy) {
  TwinOp t(GetParam());
  t.Add("a", {1001}, Random(1001, 1));
  t.Add("out", {1001});
  MW_ASSERT_OK(t.Run(OpKind::kCopy, {{"a", "a"}, {"out", "out"}}));
  EXPECT_EQ(t.Gpu("out"), t.Gpu("a"));
}

struct Matrix {
  int64_t rows, width;
};
constexpr Matrix kMatrices[] = {{1, 1}, {3, 5}, {17, 64}, {129, 1000}, {1000, 4096}, {70, 14336}};

TEST_P(CudaElementwise, Bias) {
  for (const auto& [rows, h] : kMatrices) {
    for (int64_t shift : {0, 4}) {
      TwinOp t(GetParam());
      t.shift = shift;
      t.Add("bias", {h}, Random(h, 1));
      t.Add("y", {rows, h}, Random(rows * h, 2));
      MW_ASSERT_OK(t.Run(OpKind::kBiasAdd, {{"bias", "bias"}, {"y", "y"}}));
      t.Expect("y", RoundedOnce(GetParam()));
    }
  }
}

void CheckBiasGrad(DType dtype, const Matrix& m, int64_t shift) {
  const auto [rows, h] = m;
  TwinOp t(dtype);
  t.shift = shift;
  t.Add("dy", {rows, h}, Random(rows * h, 1));
  t.AddFloat("g", {h});
  t.cpu.first_micro_batch = true;
  MW_ASSERT_OK(t.Run(OpKind::kBiasGrad, {{"dy", "dy"}, {"bias_grad", "g"}}));
  t.Expect("g", {1e-5, 1e-5});
  const std::vector<double> found = t.Gpu("g");
  for (int i = 0; i < 5; ++i) {  // the same bits, whichever block is the last
    MW_ASSERT_OK(t.RunGpu(OpKind::kBiasGrad, {{"dy", "dy"}, {"bias_grad", "g"}}));
    EXPECT_EQ(t.Gpu("g"), found);
  }
  t.cpu.first_micro_batch = false;
  MW_ASSERT_OK(t.Run(OpKind::kBiasGrad, {{"dy", "dy"}, {"bias_grad", "g"}}));
  t.Expect("g", {1e-5, 1e-5});
}

/// Also rows that no split divides, and more columns of blocks than there are counters.
constexpr Matrix kManyRows[] = {{16384, 8}, {9999, 264}, {2049, 1600}, {3, 300008}, {5, 33001}};

TEST_P(CudaElementwise, BiasGradWritesThenAdds) {
  for (int64_t shift : {0, 4}) {
    for (const Matrix& m : kMatrices) CheckBiasGrad(GetParam(), m, shift);
    for (const Matrix& m : kManyRows) CheckBiasGrad(GetParam(), m, shift);
  }
}

TEST_P(CudaElementwise, Rotary) {
  struct Shape {
    int64_t sequence, batch, heads, kv_heads, head_dim;
  };
  for (const Shape& s :
       {Shape{1, 1, 1, 1, 2}, Shape{7, 2, 3, 1, 8}, Shape{9, 2, 5, 5, 6}, Shape{33, 1, 4, 2, 64},
        Shape{16, 3, 32, 8, 128}, Shape{130, 1, 2, 1, 256}, Shape{5, 2, 1, 1, 514}}) {
    for (bool inverse : {false, true}) {
      TwinOp t(GetParam());
      const int64_t packed = (s.heads + 2 * s.kv_heads) * s.head_dim;
      t.cpu.attributes.sequence = s.sequence;
      t.cpu.attributes.batch = s.batch;
      t.cpu.attributes.heads = s.heads;
      t.cpu.attributes.kv_heads = s.kv_heads;
      t.cpu.attributes.head_dim = s.head_dim;
      t.cpu.attributes.rope_theta = 500000.0;
      t.cpu.attributes.inverse = inverse;
      t.Add("qkv", {s.sequence, s.batch, packed}, Random(s.sequence * s.batch * packed, 1));
      MW_ASSERT_OK(t.Run(OpKind::kRotary, {{"qkv", "qkv"}}));
      t.Expect("qkv", RoundedOnce(GetParam()));
    }
  }
}

constexpr planner::Activation kActivations[] = {
    planner::Activation::kGelu, planner::Activation::kGeluTanh, planner::Activation::kSilu,
    planner::Activation::kRelu, planner::Activation::kQuickGelu};

/// Normal values, and some at the ends where exponentials overflow.
std::vector<double> Inputs(int64_t n, unsigned seed) {
  std::vector<double> values = Random(n, seed);
  constexpr double kEnds[] = {0.0, 100.0, -100.0, 12.0, -12.0, -88.5};
  for (size_t i = 0; i < std::size(kEnds) && 3 * i < values.size(); ++i) values[3 * i] = kEnds[i];
  for (double& v : values) v = std::isfinite(v) ? v : 0.0;
  return values;
}

void CheckActivation(DType dtype, planner::Activation activation, bool gated, Matrix m,
                     int64_t shift) {
  const auto [rows, f] = m;
  const int64_t width = gated ? 2 * f : f;
  TwinOp t(dtype);
  t.shift = shift;
  t.cpu.attributes.activation = activation;
  t.cpu.attributes.gated = gated;
  t.Add("u", {rows, width}, Inputs(rows * width, 1));
  t.Add("s", {rows, f});
  MW_ASSERT_OK(t.Run(OpKind::kActivation, {{"u", "u"}, {"s", "s"}}));
  t.Expect("s", RoundedOnce(dtype));
  t.Add("ds", {rows, f}, Random(rows * f, 2));
  t.Add("du", {rows, width});
  MW_ASSERT_OK(t.Run(OpKind::kActivationGrad, {{"u", "u"}, {"ds", "ds"}, {"du", "du"}}));
  t.Expect("du", RoundedOnce(dtype));
  // In place, with the activation again.
  MW_ASSERT_OK(
      t.Run(OpKind::kActivationGrad, {{"u", "u"}, {"ds", "ds"}, {"du", "u"}, {"s", "ds"}}));
  t.Expect("u", RoundedOnce(dtype));
  t.Expect("ds", RoundedOnce(dtype));
}

TEST_P(CudaElementwise, Activations) {
  for (planner::Activation activation : kActivations) {
    for (bool gated : {false, true}) {
      for (const Matrix& m : {Matrix{1, 1}, Matrix{3, 7}, Matrix{5, 64}, Matrix{33, 1000}}) {
        CheckActivation(GetParam(), activation, gated, m, 0);
        CheckActivation(GetParam(), activation, gated, m, 4);
      }
    }
  }
}

TEST_P(CudaElementwise, LargeGatedActivation) {
  CheckActivation(GetParam(), planner::Activation::kSilu, true, {1024, 14336}, 0);
}

TEST_P(CudaElementwise, ReluKeepsNaN) {
  TwinOp t(GetParam());
  t.cpu.attributes.activation = planner::Activation::kRelu;
  t.AddGpu("u", {1, 2}, GetParam(), {std::nan(""), -1.0});
  t.AddGpu("s", {1, 2}, GetParam());
  MW_ASSERT_OK(t.RunGpu(OpKind::kActivation, {{"u", "u"}, {"s", "s"}}));
  EXPECT_TRUE(std::isnan(t.Gpu("s")[0]));
  EXPECT_EQ(t.Gpu("s")[1], 0.0);
}

TEST_P(CudaElementwise, OtherDTypesAreRefused) {
  TwinOp t(GetParam());
  t.AddGpu("a", {4}, DType::kF64, {1, 2, 3, 4});
  t.AddGpu("out", {4}, DType::kF64);
  const Status status = t.RunGpu(OpKind::kAdd, {{"a", "a"}, {"b", "a"}, {"out", "out"}});
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("bf16 or fp32"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace meshwright::runtime::cuda
