// GEMMs of the GPU against the CPU kernels in fp64 on the same rounded inputs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/gemm.h"
#include "tests/runtime/cuda/gpu_op.h"
#include "tests/runtime/kernel_harness.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::DType;
using planner::OpKind;

struct Shape {
  int64_t rows, in, out;
};
struct Case {
  Shape shape;
  DType dtype;
  int64_t shift = 0;  ///< bytes off alignment

  DType gradient() const { return DType::kF32; }
  /// Relative to the largest value: rounding of the result, or sums in fp32.
  /// Of the largest value: a step of bf16, since a bias may be added after rounding.
  double tolerance() const { return dtype == DType::kBf16 ? 8e-3 : 1e-5; }
};

KernelHarness Twin(const Case& c) {
  const auto [rows, in, out] = c.shape;
  KernelHarness h(DType::kF64);
  h.Add("x", {rows, in}, Rounded(Random(rows * in, 1), c.dtype));
  h.Add("w", {out, in}, Rounded(Random(out * in, 2), c.dtype));
  h.Add("bias", {out}, Rounded(Random(out, 3), c.dtype));
  h.Add("dy", {rows, out}, Rounded(Random(rows * out, 4), c.dtype));
  h.Add("dw", {out, in}, Rounded(Random(out * in, 5), DType::kF32));
  h.Add("y", {rows, out});
  h.Add("dx", {rows, in});
  return h;
}

/// The twin's tensors on the device, results poisoned.
void Fill(GpuOp& g, KernelHarness& twin, const Case& c) {
  const auto [rows, in, out] = c.shape;
  g.Add("x", {rows, in}, c.dtype, twin.Get("x"), c.shift);
  g.Add("w", {out, in}, c.dtype, twin.Get("w"), c.shift);
  g.Add("bias", {out}, c.dtype, twin.Get("bias"), c.shift);
  g.Add("dy", {rows, out}, c.dtype, twin.Get("dy"), c.shift);
  g.Add("dw", {out, in}, c.gradient(), twin.Get("dw"), c.shift / 4 * 4);
  g.Add("y", {rows, out}, c.dtype, c.shift);
  g.Add("dx", {rows, in}, c.dtype, c.shift);
}

const KernelHarness::Bindings kForward = {{"x", "x"}, {"weight", "w"}, {"y", "y"}};
const KernelHarness::Bindings kBiased = {{"x", "x"}, {"weight", "w"}, {"y", "y"}, {"bias", "bias"}};
const KernelHarness::Bindings kInput = {{"dy", "dy"}, {"weight", "w"}, {"dx", "dx"}};
const KernelHarness::Bindings kWeight = {{"dy", "dy"}, {"x", "x"}, {"weight_grad", "dw"}};

class GemmTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NoGpu();
    if (!reason.empty()) GTEST_SKIP() << "no GPU: " << reason;
    Open({});
  }
  void Open(const CudaDeviceOptions& options) {
    device_.reset();
    auto device = CudaDevice::Open(options, {true});
    ASSERT_TRUE(device.ok()) << device.status().message();
    device_ = std::move(*device);
    device_->gemm().set_tune(false);
  }

  void ExpectAllProducts(const Case& c) {
    KernelHarness twin = Twin(c);
    GpuOp g(*device_);
    Fill(g, twin, c);
    for (const auto* bindings : {&kForward, &kBiased}) {
      ASSERT_TRUE(twin.Run(OpKind::kLinear, *bindings).ok());
      g.Poison("y");
      const Status status = g.Run(Linear, OpKind::kLinear, *bindings);
      ASSERT_TRUE(status.ok()) << status.message();
      ExpectClose(g.Get("y"), twin.Get("y"), c.tolerance(), "y");
    }
    ASSERT_TRUE(twin.Run(OpKind::kLinearInputGrad, kInput).ok());
    Status status = g.Run(LinearInputGrad, OpKind::kLinearInputGrad, kInput);
    ASSERT_TRUE(status.ok()) << status.message();
    ExpectClose(g.Get("dx"), twin.Get("dx"), c.tolerance(), "dx");

    twin.add_to_products = g.add_to_products = true;
    g.Set("y", twin.Get("y"));
    g.Set("dx", twin.Get("dx"));
    ASSERT_TRUE(twin.Run(OpKind::kLinear, kBiased).ok());
    ASSERT_TRUE(twin.Run(OpKind::kLinearInputGrad, kInput).ok());
    ASSERT_TRUE(g.Run(Linear, OpKind::kLinear, kBiased).ok());
    ASSERT_TRUE(g.Run(LinearInputGrad, OpKind::kLinearInputGrad, kInput).ok());
    ExpectClose(g.Get("y"), twin.Get("y"), c.tolerance(), "y added to");
    ExpectClose(g.Get("dx"), twin.Get("dx"), c.tolerance(), "dx added to");
    twin.add_to_products = g.add_to_products = false;

    // Added to the numbers there, then written over NaN, then added to the sum.
    for (const bool first : {false, true, false}) {
      if (first) g.Poison("dw");
      twin.first_micro_batch = g.first_micro_batch = first;
      ASSERT_TRUE(twin.Run(OpKind::kLinearWeightGrad, kWeight).ok());
      status = g.Run(LinearWeightGrad, OpKind::kLinearWeightGrad, kWeight);
      ASSERT_TRUE(status.ok()) << status.message();
      ExpectClose(g.Get("dw"), twin.Get("dw"), 1e-5, first ? "dw written" : "dw added");
    }
  }

  std::unique_ptr<CudaDevice> device_;
};

const std::vector<Shape>& Shapes() {
  static const std::vector<Shape> shapes = {{7, 5, 3},      {64, 64, 64},   {33, 129, 65},
                                            {128, 136, 72}, {1, 8, 16},     {257, 100, 1},
                                            {96, 1, 40},    {130, 260, 514}};
  return shapes;
}

TEST_F(GemmTest, MatchesTheCpuInBf16) {
  for (const Shape& shape : Shapes()) {
    SCOPED_TRACE(testing::Message() << shape.rows << "x" << shape.in << "x" << shape.out);
    ExpectAllProducts({shape, DType::kBf16});
  }
}

TEST_F(GemmTest, MatchesTheCpuInFp32) {
  for (const Shape& shape : Shapes()) {
    SCOPED_TRACE(testing::Message() << shape.rows << "x" << shape.in << "x" << shape.out);
    ExpectAllProducts({shape, DType::kF32});
  }
}

TEST_F(GemmTest, MatchesTheCpuAtOddAddresses) {
  for (int64_t shift : {2, 4, 8, 16}) {
    SCOPED_TRACE(shift);
    ExpectAllProducts({{72, 136, 64}, DType::kBf16, shift});
    if (shift >= 4) ExpectAllProducts({{72, 136, 64}, DType::kF32, shift});
  }
}

TEST_F(GemmTest, MatchesTheCpuAtSizesOfAModel) {
  ExpectAllProducts({{1024, 768, 2048}, DType::kBf16});
}

TEST_F(GemmTest, TunedAlgorithmsMatchToo) {
  device_->gemm().set_tune(true);
  const Case c = {{512, 1024, 768}, DType::kBf16};
  KernelHarness twin = Twin(c);
  GpuOp g(*device_);
  Fill(g, twin, c);
  const auto prepare = [&](const OpCall& call) { return device_->gemm().Prepare(call); };
  for (const auto& [kind, bindings] :
       {std::pair(OpKind::kLinear, &kForward), std::pair(OpKind::kLinear, &kBiased),
        std::pair(OpKind::kLinearInputGrad, &kInput),
        std::pair(OpKind::kLinearWeightGrad, &kWeight)}) {
    const Status status = g.With(kind, *bindings, prepare);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  g.first_micro_batch = true;
  ASSERT_TRUE(g.With(OpKind::kLinearWeightGrad, kWeight, prepare).ok());
  EXPECT_EQ(device_->gemm().choices().size(), 5U);
  for (const auto& [key, choice] : device_->gemm().choices()) {
    EXPECT_GT(choice.seconds, 0.0) << ToString(key);
    EXPECT_LE(choice.seconds, choice.first_seconds) << ToString(key);
    EXPECT_LE(choice.workspace_bytes, device_->workspace_cap()) << ToString(key);
  }
  ExpectAllProducts(c);
}

TEST_F(GemmTest, ChoicesOutliveTheEngineAndTravel) {
  const std::string path = testing::TempDir() + "/gemm_cuda_test.jsonl";
  std::filesystem::remove(path);
  CudaDeviceOptions options;
  options.tuning_file = path;
  Open(options);
  GemmKey key;
  key.m = 512, key.n = 640, key.k = 768;
  key.lda = 768, key.ldb = 768, key.ldd = 640;
  key.transpose_b = true;
  Status status = device_->gemm().Tune(std::span(&key, 1));
  ASSERT_TRUE(status.ok()) << status.message();
  const GemmChoices choices = device_->gemm().choices();
  const std::string text = device_->gemm().ExportChoices();
  Open(options);
  EXPECT_EQ(device_->gemm().choices(), choices);
  EXPECT_TRUE(device_->gemm().Prepare(std::span(&key, 1)).ok());
  Open({});
  EXPECT_TRUE(device_->gemm().choices().empty());
  status = device_->gemm().ImportChoices(text);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(device_->gemm().choices(), choices);
  CudaDeviceOptions deterministic;
  deterministic.deterministic = true;
  Open(deterministic);
  EXPECT_EQ(device_->gemm().ImportChoices(text).code(), StatusCode::kInvalidInput);
  std::filesystem::remove(path);
}

TEST_F(GemmTest, DeterministicProductsRepeatTheirBits) {
  CudaDeviceOptions options;
  options.deterministic = true;
  Open(options);
  // Few outputs and long sums: where splitting the sum would pay.
  const Case c = {{8192, 64, 128}, DType::kBf16};
  KernelHarness twin = Twin(c);
  GpuOp g(*device_);
  Fill(g, twin, c);
  g.first_micro_batch = true;
  std::vector<double> first;
  for (int i = 0; i < 5; ++i) {
    g.Poison("dw");
    ASSERT_TRUE(g.Run(LinearWeightGrad, OpKind::kLinearWeightGrad, kWeight).ok());
    if (i == 0) first = g.Get("dw");
    EXPECT_EQ(g.Get("dw"), first);
  }
}

TEST_F(GemmTest, FewerMultiprocessorsCanBeAskedFor) {
  const Case c = {{512, 512, 512}, DType::kBf16};
  KernelHarness twin = Twin(c);
  GpuOp g(*device_);
  Fill(g, twin, c);
  ASSERT_TRUE(twin.Run(OpKind::kLinear, kForward).ok());
  const Status status = g.With(OpKind::kLinear, kForward, [&](const OpCall& call) -> Status {
    MW_ASSIGN_OR_RETURN(const GemmKey key, GemmEngine::KeyOf(call, device_->sm_count() - 16));
    const GemmOperands operands = {call.Address(0), call.Address(1), call.Address(3), nullptr};
    MW_RETURN_IF_ERROR(device_->gemm().Run(key, operands, call.op.stream));
    MW_CUDA_CALL(cudaDeviceSynchronize());
    return Status::Ok();
  });
  ASSERT_TRUE(status.ok()) << status.message();
  ExpectClose(g.Get("y"), twin.Get("y"), 4e-3, "y");
}

TEST_F(GemmTest, Fp64IsRefused) {
  GpuOp g(*device_);
  g.Add("x", {8, 8}, DType::kF64);
  g.Add("w", {8, 8}, DType::kF64);
  g.Add("y", {8, 8}, DType::kF64);
  const Status status = g.Run(Linear, OpKind::kLinear, kForward);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), testing::HasSubstr("fp64"));
}

}  // namespace
}  // namespace meshwright::runtime::cuda
