// Attention of the GPU against the CPU kernel in fp64 on the same rounded inputs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/ir/attention_workspace.h"
#include "runtime/cuda/attention.h"
#include "runtime/cuda/cuda_kernels.h"
#include "tests/runtime/cuda/gpu_op.h"
#include "tests/runtime/kernel_harness.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::AttentionShape;
using planner::DType;
using planner::OpKind;

const KernelHarness::Bindings kForward = {
    {"qkv", "qkv"}, {"o", "o"}, {"lse", "lse"}, {"workspace", "workspace"}};
const KernelHarness::Bindings kBackward = {{"qkv", "qkv"},   {"o", "o"},
                                           {"lse", "lse"},   {"do", "do"},
                                           {"dqkv", "dqkv"}, {"workspace", "workspace"}};

planner::OpAttributes AttributesOf(const AttentionShape& s) {
  planner::OpAttributes a;
  a.sequence = s.sequence, a.batch = s.batch;
  a.heads = s.heads, a.kv_heads = s.kv_heads, a.head_dim = s.head_dim;
  a.window = s.window, a.causal = s.causal, a.scale = s.scale;
  return a;
}

KernelHarness Twin(const AttentionShape& s, DType dtype) {
  const int64_t tokens = s.sequence * s.batch;
  KernelHarness h(DType::kF64);
  h.attributes = AttributesOf(s);
  h.Add("qkv", {s.sequence, s.batch, s.packed()}, Rounded(Random(tokens * s.packed(), 1), dtype));
  h.Add("do", {s.sequence, s.batch, s.heads * s.head_dim},
        Rounded(Random(tokens * s.heads * s.head_dim, 2), dtype));
  h.Add("o", {s.sequence, s.batch, s.heads * s.head_dim});
  h.Add("lse", {s.batch, s.heads, s.sequence});
  h.Add("dqkv", {s.sequence, s.batch, s.packed()});
  h.Add("workspace", {2 * 64 * s.sequence});
  return h;
}

/// Workspace of backward, which suffices forward too.
int64_t WorkspaceElements(const AttentionShape& s, DType dtype, bool deterministic) {
  const int64_t bytes = std::max(planner::AttentionWorkspaceBytes(s, dtype, true, deterministic),
                                 planner::AttentionWorkspaceBytes(s, dtype, false, deterministic));
  return (bytes + 3) / 4;
}

void Fill(GpuOp& g, KernelHarness& twin, const AttentionShape& s, DType dtype, bool deterministic) {
  g.attributes = AttributesOf(s);
  g.Add("qkv", {s.sequence, s.batch, s.packed()}, dtype, twin.Get("qkv"));
  g.Add("do", {s.sequence, s.batch, s.heads * s.head_dim}, dtype, twin.Get("do"));
  g.Add("o", {s.sequence, s.batch, s.heads * s.head_dim}, dtype);
  g.Add("lse", {s.batch, s.heads, s.sequence}, DType::kF32);
  g.Add("dqkv", {s.sequence, s.batch, s.packed()}, dtype);
  g.Add("workspace", {WorkspaceElements(s, dtype, deterministic)}, DType::kF32);
}

/// Columns [begin, begin + width) of packed rows.
std::vector<double> Columns(const std::vector<double>& rows, int64_t packed, int64_t begin,
                            int64_t width) {
  std::vector<double> part;
  for (size_t row = 0; row < rows.size(); row += static_cast<size_t>(packed)) {
    const auto at = rows.begin() + static_cast<int64_t>(row) + begin;
    part.insert(part.end(), at, at + width);
  }
  return part;
}

class AttentionTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NoGpu();
    if (!reason.empty()) GTEST_SKIP() << "no GPU: " << reason;
    Open(false);
  }
  void Open(bool deterministic) {
    device_.reset();
    CudaDeviceOptions options;
    options.deterministic = deterministic;
    auto device = CudaDevice::Open(options, {true});
    ASSERT_TRUE(device.ok()) << device.status().message();
    device_ = std::move(*device);
  }

  void Forward(GpuOp& g) {
    g.Poison("workspace");
    g.Poison("o");
    g.Poison("lse");
    const Status status = g.Run(Attention, OpKind::kAttention, kForward);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void Backward(GpuOp& g) {
    g.Poison("workspace");
    g.Poison("dqkv");
    const Status status = g.Run(AttentionGrad, OpKind::kAttentionGrad, kBackward);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  void ExpectMatches(const AttentionShape& s, DType dtype) {
    SCOPED_TRACE(testing::Message() << "S" << s.sequence << " b" << s.batch << " heads " << s.heads
                                    << "/" << s.kv_heads << " d" << s.head_dim << " causal "
                                    << s.causal << " window " << s.window);
    KernelHarness twin = Twin(s, dtype);
    ASSERT_TRUE(twin.Run(OpKind::kAttention, kForward).ok());
    ASSERT_TRUE(twin.Run(OpKind::kAttentionGrad, kBackward).ok());
    GpuOp g(*device_);
    Fill(g, twin, s, dtype, device_->deterministic());
    Forward(g);
    if (HasFatalFailure()) return;
    const bool bf16 = dtype == DType::kBf16;
    // bf16: probabilities and score gradients are rounded to 8 bits before they are multiplied.
    EXPECT_LE(RelativeDistance(g.Get("o"), twin.Get("o")), bf16 ? 6e-3 : 3e-6);
    EXPECT_LE(RelativeDistance(g.Get("lse"), twin.Get("lse")), bf16 ? 1e-4 : 1e-6);
    Backward(g);
    if (HasFatalFailure()) return;
    const auto found = g.Get("dqkv");
    const auto expected = twin.Get("dqkv");
    const int64_t q = s.heads * s.head_dim;
    const int64_t k = s.kv_heads * s.head_dim;
    const double tolerance = bf16 ? 1.2e-2 : 1e-5;
    const auto distance = [&](int64_t begin, int64_t width) {
      return RelativeDistance(Columns(found, s.packed(), begin, width),
                              Columns(expected, s.packed(), begin, width));
    };
    EXPECT_LE(distance(0, q), tolerance) << "dq";
    EXPECT_LE(distance(q, k), tolerance) << "dk";
    EXPECT_LE(distance(q + k, k), tolerance) << "dv";
  }

  std::unique_ptr<CudaDevice> device_;
};

TEST_F(AttentionTest, MatchesTheCpuInFp32) {
  for (const AttentionShape& s :
       {AttentionShape{5, 2, 3, 3, 4, 0, true, 0.37}, AttentionShape{7, 1, 4, 2, 3, 0, true, 0.37},
        AttentionShape{9, 2, 2, 1, 4, 3, true, 0.37}, AttentionShape{6, 2, 2, 2, 5, 0, false, 0.37},
        AttentionShape{8, 1, 2, 1, 3, 3, false, 0.37}, AttentionShape{1, 1, 1, 1, 2, 0, true, 0.37},
        AttentionShape{300, 2, 4, 2, 24, 0, true, 0.2},
        AttentionShape{520, 1, 2, 2, 8, 70, true, 0.37},
        AttentionShape{600, 2, 6, 2, 64, 300, false, 0.125}}) {
    ExpectMatches(s, DType::kF32);
  }
}

TEST_F(AttentionTest, MatchesTheCpuInBf16) {
  for (const AttentionShape& s : {AttentionShape{128, 2, 4, 4, 64, 0, true, 0.125},
                                  AttentionShape{256, 1, 8, 2, 128, 0, true, 0.09},
                                  AttentionShape{192, 3, 4, 1, 96, 0, true, 0.1},
                                  AttentionShape{256, 2, 2, 2, 256, 0, true, 0.0625},
                                  AttentionShape{384, 1, 6, 2, 192, 0, true, 0.07}}) {
    ExpectMatches(s, DType::kBf16);
  }
}

TEST_F(AttentionTest, MatchesTheCpuInBf16AtOddLengths) {
  for (const AttentionShape& s : {AttentionShape{100, 2, 2, 2, 64, 0, true, 0.125},
                                  AttentionShape{1000, 1, 4, 1, 128, 0, true, 0.09},
                                  AttentionShape{257, 2, 3, 3, 72, 0, true, 0.1}}) {
    ExpectMatches(s, DType::kBf16);
  }
}

TEST_F(AttentionTest, MatchesTheCpuInBf16WithOtherMasks) {
  for (const AttentionShape& s : {AttentionShape{128, 2, 4, 2, 64, 0, false, 0.125},
                                  AttentionShape{512, 1, 4, 2, 64, 100, true, 0.125},
                                  AttentionShape{512, 2, 4, 4, 128, 256, true, 0.09},
                                  AttentionShape{256, 1, 2, 2, 64, 4096, true, 0.125}}) {
    ExpectMatches(s, DType::kBf16);
  }
}

TEST_F(AttentionTest, MatchesTheCpuAtTheSizeOfAModel) {
  ExpectMatches({2048, 1, 8, 2, 128, 0, true, 0.0884}, DType::kBf16);
}

TEST_F(AttentionTest, DeterministicGradientsMatchAndRepeatTheirBits) {
  Open(true);
  for (const AttentionShape& s : {AttentionShape{512, 3, 4, 4, 64, 0, true, 0.125},
                                  AttentionShape{1024, 2, 8, 2, 128, 0, true, 0.09},
                                  AttentionShape{300, 2, 4, 2, 64, 0, true, 0.125}}) {
    ExpectMatches(s, DType::kBf16);
    KernelHarness twin = Twin(s, DType::kBf16);
    GpuOp g(*device_);
    Fill(g, twin, s, DType::kBf16, true);
    Forward(g);
    std::vector<double> first;
    for (int i = 0; i < 4; ++i) {
      Backward(g);
      if (HasFatalFailure()) return;
      if (i == 0) first = g.Get("dqkv");
      EXPECT_EQ(g.Get("dqkv"), first);
    }
  }
}

TEST_F(AttentionTest, PlansNeedNoMoreThanStated) {
  for (const bool deterministic : {false, true}) {
    Open(deterministic);
    const AttentionShape s = {2048, 2, 16, 4, 128, 0, true, 0.09};
    KernelHarness twin = Twin(s, DType::kBf16);
    GpuOp g(*device_);
    Fill(g, twin, s, DType::kBf16, deterministic);
    for (const auto& [kind, bindings] : {std::pair(OpKind::kAttention, &kForward),
                                         std::pair(OpKind::kAttentionGrad, &kBackward)}) {
      const auto needs = g.With(kind, *bindings, [&](const OpCall& call) -> Result<int64_t> {
        MW_RETURN_IF_ERROR(device_->attention().Prepare(call));
        return device_->attention().WorkspaceBytes(call);
      });
      ASSERT_TRUE(needs.ok()) << needs.status().message();
      EXPECT_LE(*needs, planner::AttentionWorkspaceBytes(
                            s, DType::kBf16, kind == OpKind::kAttentionGrad, deterministic));
    }
  }
}

TEST_F(AttentionTest, ShortWorkspaceIsRefusedBeforeTheStepWithBothNumbers) {
  const AttentionShape s = {256, 2, 4, 2, 64, 0, true, 0.125};
  KernelHarness twin = Twin(s, DType::kBf16);
  for (const DType dtype : {DType::kBf16, DType::kF32}) {
    GpuOp g(*device_);
    Fill(g, twin, s, dtype, false);
    g.Add("short", {16}, DType::kF32);
    auto bindings = kBackward;
    bindings.back().second = "short";
    const Status status = g.With(OpKind::kAttentionGrad, bindings, [&](const OpCall& call) {
      return device_->attention().Prepare(call);
    });
    EXPECT_EQ(status.code(), StatusCode::kInfeasible);
    EXPECT_THAT(status.message(), testing::HasSubstr("64 bytes"));
    EXPECT_THAT(status.message(), testing::HasSubstr("needs "));
  }
}

TEST_F(AttentionTest, ShapesWithoutAPlanAreRefused) {
  const AttentionShape s = {64, 1, 2, 2, 20, 0, true, 0.2};
  KernelHarness twin = Twin(s, DType::kBf16);
  GpuOp g(*device_);
  Fill(g, twin, s, DType::kBf16, false);
  const Status status = g.Run(Attention, OpKind::kAttention, kForward);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), testing::HasSubstr("head_dim 20"));
}

}  // namespace
}  // namespace meshwright::runtime::cuda
