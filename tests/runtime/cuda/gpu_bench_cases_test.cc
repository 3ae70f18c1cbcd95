// What a calibration measures: legal ops, within its memory, on a grid of its own. Needs no GPU.
#include "runtime/cuda/gpu_bench_cases.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <tuple>

namespace meshwright::runtime::cuda {
namespace {

using planner::OpKind;

constexpr int64_t kMostBytes = int64_t{12} << 30;  // that MeasureGpu gives them

void ExpectLegal(const BenchCase& c) {
  const BenchOp bench(c, 256);
  const Status status = planner::CheckOp(bench.block, bench.op, bench.program);
  EXPECT_TRUE(status.ok()) << planner::ToString(c.kind) << ": " << status.message();
  EXPECT_LE(bench.bytes, kMostBytes) << planner::ToString(c.kind);
}

TEST(GpuBenchCases, KernelsAreLegalAndHaveSeveralSizes) {
  std::map<OpKind, std::set<int64_t>> sizes;
  for (const BenchCase& c : KernelCases()) {
    ExpectLegal(c);
    sizes[c.kind].insert(BenchOp(c, 256).bytes);
  }
  for (const auto& [kind, bytes] : sizes) EXPECT_GE(bytes.size(), 3u) << planner::ToString(kind);
  for (const OpKind kind :
       {OpKind::kNorm, OpKind::kNormGrad, OpKind::kActivation, OpKind::kActivationGrad,
        OpKind::kSoftmaxStats, OpKind::kCrossEntropyGrad, OpKind::kOptimizerStep,
        OpKind::kEmbedGrad, OpKind::kBiasGrad, OpKind::kRotary}) {
    EXPECT_TRUE(sizes.contains(kind)) << planner::ToString(kind);
  }
}

TEST(GpuBenchCases, AttentionIsLegalInBothPasses) {
  std::set<std::pair<int64_t, int64_t>> seen;
  for (const planner::AttentionShape& shape : AttentionCases()) {
    ExpectLegal(AttentionCase(shape, false, false));
    ExpectLegal(AttentionCase(shape, true, false));
    seen.insert({shape.head_dim, shape.sequence});
  }
  EXPECT_GE(seen.size(), 12u);
}

TEST(GpuBenchCases, ProductsCoverAllPassesOnce) {
  std::set<std::tuple<OpKind, int64_t, int64_t, int64_t>> seen;
  std::map<OpKind, int> passes;
  double flops = 0;
  for (const GpuProductSample& c : ProductCases()) {
    EXPECT_TRUE(seen.insert({c.kind, c.m, c.n, c.k}).second);
    ++passes[c.kind];
    flops += 2.0 * static_cast<double>(c.m) * static_cast<double>(c.n) * static_cast<double>(c.k);
  }
  for (const auto& [kind, count] : passes) EXPECT_GE(count, 20) << planner::ToString(kind);
  EXPECT_EQ(passes.size(), 3u);
  EXPECT_LE(seen.size(), 240u);
  // Some 60 runs of each at about 650 TFLOP/s leave most of a minute to the rest.
  EXPECT_LT(60 * flops / 650e12, 20.0);
}

}  // namespace
}  // namespace meshwright::runtime::cuda
