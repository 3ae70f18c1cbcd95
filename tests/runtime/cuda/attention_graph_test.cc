// Asks cuDNN without a GPU whether it recognises the attention graphs, and how much memory its
// engines want, against a description of an H200.
#include "runtime/cuda/attention_graph.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace meshwright::runtime::cuda {
namespace {

using planner::AttentionShape;
using planner::DType;
using testing::HasSubstr;

/// An H200 in cuDNN's terms: datasheet values and those that cudaDeviceGetAttribute names so.
constexpr const char* kH200 = R"({"deviceName": "NVIDIA H200", "cudaDeviceId": 0,
  "deviceVer": 900, "driverVer": 13000, "maxGridSize": [2147483647, 65535, 65535],
  "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "multiProcessorCount": 132,
  "warpSize": 32, "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
  "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,
  "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,
  "supportCoopLaunch": 1, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000,
  "l2CacheSize": 62914560, "totalGlobalMem": 150754820096})";

class AttentionGraphTest : public testing::Test {
 protected:
  void SetUp() override {
    // cuDNN wants a driver library even to answer without a device; the toolkit's stub will do.
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr &&
        dlopen(MESHWRIGHT_CUDA_STUB, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      GTEST_SKIP() << "neither a driver library nor the toolkit's stub of it: " << dlerror();
    }
    auto properties = CudnnTarget::PropertiesFromJson(kH200);
    ASSERT_TRUE(properties.ok()) << properties.status().message();
    properties_ = std::make_unique<CudnnDescriptor>(std::move(*properties));
    target_.properties = properties_.get();
  }

  /// Bytes of the workspace operand with each engine, in the heuristics' order.
  Result<std::vector<int64_t>> Needs(const AttentionGraphSpec& spec) {
    CudnnGraphBuilder builder;
    MW_ASSIGN_OR_RETURN(const CudnnDescriptor graph, BuildAttentionGraph(spec, target_, &builder));
    MW_ASSIGN_OR_RETURN(const auto engines, CudnnEngines(graph, target_, 8));
    std::vector<int64_t> needs;
    for (const CudnnDescriptor& engine : engines) {
      MW_ASSIGN_OR_RETURN(const int64_t bytes, engine.GetInt(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE));
      needs.push_back(LayOutScratch(spec, bytes).total);
    }
    return needs;
  }

  std::unique_ptr<CudnnDescriptor> properties_;
  CudnnTarget target_;
};

std::string Name(const AttentionGraphSpec& spec) {
  const AttentionShape& s = spec.shape;
  std::string name = "S" + std::to_string(s.sequence) + " b" + std::to_string(s.batch) + " heads " +
                     std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " d" +
                     std::to_string(s.head_dim) + " window " + std::to_string(s.window);
  if (!s.causal) name += " not causal";
  if (spec.backward) name += " backward";
  if (spec.deterministic) name += " deterministic";
  return name;
}

/// All variants of one shape.
std::vector<AttentionGraphSpec> Variants(const AttentionShape& shape) {
  std::vector<AttentionGraphSpec> variants;
  for (const bool backward : {false, true}) {
    variants.push_back({shape, backward, false, shape.batch});
  }
  variants.push_back({shape, true, true, 1});
  return variants;
}

std::vector<AttentionShape> Shapes() {
  std::vector<AttentionShape> shapes;
  for (int64_t sequence : {256, 1000, 1024, 2048, 4096, 8192}) {
    for (int64_t d : {64, 96, 128, 192, 256}) {
      for (const auto& [heads, kv_heads] :
           std::vector<std::pair<int64_t, int64_t>>{{32, 8}, {16, 16}, {4, 1}, {25, 25}, {12, 4}}) {
        shapes.push_back({sequence, 2, heads, kv_heads, d, 0, true, 0.125});
      }
    }
  }
  shapes.push_back({2048, 2, 16, 16, 64, 0, false, 0.125});
  shapes.push_back({2048, 2, 32, 8, 128, 0, false, 0.125});
  shapes.push_back({2048, 2, 16, 16, 64, 512, true, 0.125});
  shapes.push_back({4096, 1, 32, 8, 128, 1024, true, 0.125});
  shapes.push_back({16384, 1, 32, 8, 128, 0, true, 0.125});
  return shapes;
}

TEST_F(AttentionGraphTest, EveryVariantHasAnEngineWithinTheStatedWorkspace) {
  for (const AttentionShape& shape : Shapes()) {
    for (const AttentionGraphSpec& spec : Variants(shape)) {
      SCOPED_TRACE(Name(spec));
      const auto needs = Needs(spec);
      ASSERT_TRUE(needs.ok()) << needs.status().message();
      const int64_t stated =
          planner::AttentionWorkspaceBytes(shape, DType::kBf16, spec.backward, spec.deterministic);
      EXPECT_LE(needs->front(), stated);
      // Not wildly more than the plan has to set aside, either.
      if (needs->front() > (int64_t{16} << 20)) {
        EXPECT_GE(2 * needs->front(), stated);
      }
    }
  }
}

TEST_F(AttentionGraphTest, NoEngineKeepsTheScores) {
  // A graph that is matched only in parts would write score matrices: 4 bytes times b H S S.
  const AttentionShape shape = {4096, 2, 32, 8, 128, 0, true, 0.125};
  const int64_t scores = 4 * shape.batch * shape.heads * shape.sequence * shape.sequence;
  for (const AttentionGraphSpec& spec : Variants(shape)) {
    const auto needs = Needs(spec);
    ASSERT_TRUE(needs.ok()) << needs.status().message();
    EXPECT_LT(needs->front(), scores / 2) << Name(spec);
  }
}

TEST(AttentionShapes, ThatNoPlanTakesAreRefused) {
  const Status head = CheckAttentionShape({1024, 1, 4, 4, 100, 0, true, 1.0});
  EXPECT_EQ(head.code(), StatusCode::kUnsupported);
  EXPECT_THAT(head.message(), HasSubstr("head_dim 100"));
  EXPECT_EQ(CheckAttentionShape({1024, 1, 4, 4, 264, 0, true, 1.0}).code(),
            StatusCode::kUnsupported);
  const Status window = CheckAttentionShape({1024, 1, 4, 4, 64, 128, false, 1.0});
  EXPECT_EQ(window.code(), StatusCode::kUnsupported);
  EXPECT_THAT(window.message(), HasSubstr("window 128"));
  EXPECT_TRUE(CheckAttentionShape({1000, 3, 6, 2, 88, 100, true, 1.0}).ok());
}

TEST(AttentionWorkspace, GrowsWithWhatItHolds) {
  using planner::AttentionWorkspaceBytes;
  const AttentionShape mha = {4096, 2, 32, 32, 128, 0, true, 1.0};
  AttentionShape gqa = mha;
  gqa.kv_heads = 8;
  const int64_t rows = mha.batch * mha.heads * mha.sequence;
  const int64_t plain = AttentionWorkspaceBytes(mha, DType::kBf16, true, false);
  EXPECT_GE(plain, rows * mha.head_dim * 4 + rows * 4);
  EXPECT_EQ(AttentionWorkspaceBytes(gqa, DType::kBf16, true, false) - plain,
            2 * 2 * rows * gqa.head_dim);
  EXPECT_GE(AttentionWorkspaceBytes(mha, DType::kBf16, true, true),
            2 * mha.heads * mha.sequence * mha.sequence);
  EXPECT_LT(AttentionWorkspaceBytes(mha, DType::kBf16, false, false), int64_t{2} << 20);
  // fp32: one block of queries of all key-value heads; twice that backward.
  const int64_t fp32 = AttentionWorkspaceBytes(gqa, DType::kF32, false, false);
  EXPECT_EQ(fp32, 8 * planner::kFp32AttentionQueryBlock * 4096 * 4);
  EXPECT_EQ(AttentionWorkspaceBytes(gqa, DType::kF32, true, false), 2 * fp32);
}

}  // namespace
}  // namespace meshwright::runtime::cuda
