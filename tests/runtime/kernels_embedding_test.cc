#include "tests/runtime/kernel_harness.h"

namespace meshwright::runtime {
namespace {

using planner::DType;
using planner::OpKind;

constexpr int64_t kVocab = 6;
constexpr int64_t kWidth = 3;
const std::vector<int32_t> kIds = {4, 0, 5, 4, 1, 3, 3, 4};  // S 4, b 2

KernelHarness MakeEmbedding(int64_t tp, int64_t tp_index) {
  KernelHarness h;
  h.binding.tp_index = tp_index;
  const auto table = Random(kVocab * kWidth, 1);
  const int64_t rows = kVocab / tp;
  const auto begin = table.begin() + tp_index * rows * kWidth;
  h.Add("w", {rows, kWidth}, std::vector<double>(begin, begin + rows * kWidth));
  h.AddInts("tokens", {4, 2}, kIds);
  h.Add("y", {4, 2, kWidth});
  h.Add("dy", {4, 2, kWidth}, Random(8 * kWidth, 2));
  h.Add("dw", {rows, kWidth});
  return h;
}

TEST(EmbeddingKernel, RanksSumToTheWholeTable) {
  const auto table = Random(kVocab * kWidth, 1);
  for (int64_t tp : {1, 2, 3}) {
    std::vector<double> sum(8 * kWidth, 0.0);
    for (int64_t rank = 0; rank < tp; ++rank) {
      KernelHarness h = MakeEmbedding(tp, rank);
      ASSERT_TRUE(h.Run(OpKind::kEmbed, {{"tokens", "tokens"}, {"weight", "w"}, {"y", "y"}}).ok());
      const auto y = h.Get("y");
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += y[i];
    }
    for (size_t i = 0; i < sum.size(); ++i) {
      EXPECT_EQ(sum[i], table[static_cast<size_t>(kIds[i / kWidth]) * kWidth + i % kWidth])
          << "tp " << tp;
    }
  }
}

TEST(EmbeddingKernel, GradientGathersRowsAndAccumulates) {
  for (int64_t tp : {1, 2}) {
    std::vector<double> whole;
    for (int64_t rank = 0; rank < tp; ++rank) {
      KernelHarness h = MakeEmbedding(tp, rank);
      for (bool first : {true, false}) {
        h.first_micro_batch = first;
        ASSERT_TRUE(
            h.Run(OpKind::kEmbedGrad, {{"tokens", "tokens"}, {"dy", "dy"}, {"weight_grad", "dw"}})
                .ok());
      }
      const auto dw = h.Get("dw");
      whole.insert(whole.end(), dw.begin(), dw.end());
    }
    const auto dy = Random(8 * kWidth, 2);
    std::vector<double> expected(kVocab * kWidth, 0.0);
    for (size_t i = 0; i < dy.size(); ++i) {
      expected[static_cast<size_t>(kIds[i / kWidth]) * kWidth + i % kWidth] += 2 * dy[i];
    }
    ExpectClose(whole, expected, 1e-15, "dw");  // row 2 is used by no token: zero, not NaN
  }
}

TEST(PositionsKernel, AddsAndGathersByGlobalPosition) {
  const auto table = Random(5 * kWidth, 3);
  for (int64_t tp : {1, 2}) {
    const int64_t local = 4 / tp;
    std::vector<double> gradient(5 * kWidth, 0.0);
    const auto dy = Random(8 * kWidth, 4);
    for (int64_t rank = 0; rank < tp; ++rank) {
      KernelHarness h;
      h.binding.tp_index = rank;
      h.attributes.batch = 2;
      h.attributes.sequence = 4;
      h.attributes.sequence_sharded = tp > 1;
      const auto begin = dy.begin() + rank * local * 2 * kWidth;
      const std::vector<double> slice(begin, begin + local * 2 * kWidth);
      h.Add("p", {5, kWidth}, table);
      h.Add("y", {local, 2, kWidth}, slice);
      h.Add("dy", {local, 2, kWidth}, slice);
      h.Add("dp", {5, kWidth});
      ASSERT_TRUE(h.Run(OpKind::kAddPositions, {{"positions", "p"}, {"y", "y"}}).ok());
      const auto y = h.Get("y");
      for (size_t i = 0; i < y.size(); ++i) {
        const size_t position = static_cast<size_t>(rank * local) + i / (2 * kWidth);
        EXPECT_EQ(y[i], slice[i] + table[position * kWidth + i % kWidth]);
      }
      for (bool first : {true, false}) {
        h.first_micro_batch = first;
        ASSERT_TRUE(h.Run(OpKind::kPositionsGrad, {{"dy", "dy"}, {"positions_grad", "dp"}}).ok());
      }
      const auto dp = h.Get("dp");
      for (size_t i = 0; i < dp.size(); ++i) gradient[i] += dp[i];
    }
    std::vector<double> expected(5 * kWidth, 0.0);
    for (size_t i = 0; i < dy.size(); ++i)
      expected[i / (2 * kWidth) * kWidth + i % kWidth] += 2 * dy[i];
    ExpectClose(gradient, expected, 1e-15, "positions gradient");
  }
}

TEST(PositionsKernel, PositionsBeyondTheTableAreRefused) {
  KernelHarness h;
  h.attributes.batch = 1;
  h.Add("p", {3, 2}, Random(6, 1));
  h.Add("y", {4, 1, 2}, Random(8, 2));
  const Status status = h.Run(OpKind::kAddPositions, {{"positions", "p"}, {"y", "y"}});
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("positions up to 4"), std::string::npos) << status.message();
}

TEST(CountKernel, CountsUnmaskedLabelsAndInverts) {
  KernelHarness h;
  h.AddInts("labels", {2, 3, 1}, {5, -100, 0, -100, -100, 9});
  h.AddLong("count", -1);
  h.AddScalar("inverse", 0);
  ASSERT_TRUE(h.Run(OpKind::kCountTokens, {{"labels", "labels"}, {"count", "count"}}).ok());
  EXPECT_EQ(h.Long("count"), 3);
  ASSERT_TRUE(h.Run(OpKind::kInvertCount, {{"count", "count"}, {"inverse", "inverse"}}).ok());
  EXPECT_DOUBLE_EQ(h.Scalar("inverse"), 1.0 / 3.0);
  h.AddLong("none", 0);
  ASSERT_TRUE(h.Run(OpKind::kInvertCount, {{"count", "none"}, {"inverse", "inverse"}}).ok());
  EXPECT_DOUBLE_EQ(h.Scalar("inverse"), 1.0);
}

TEST(KernelTable, EveryComputingKindHasAKernelAndNoOtherHas) {
  for (size_t k = 0; k < planner::kOpKindCount; ++k) {
    const auto kind = static_cast<OpKind>(k);
    const bool elsewhere =
        planner::IsCollective(kind) || planner::IsMessage(kind) || planner::IsHost(kind);
    EXPECT_EQ(CpuKernels().kernels[k] == nullptr, elsewhere) << planner::ToString(kind);
  }
  EXPECT_EQ(CpuKernels().device, "cpu");
}

TEST(KernelTable, Bf16IsRefusedByNameOfOpAndTensor) {
  KernelHarness h;
  h.Add("a", {2}, DType::kBf16);
  h.Add("out", {2}, DType::kBf16);
  const Status status = h.Run(OpKind::kAdd, {{"a", "a"}, {"b", "a"}, {"out", "out"}});
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("op add: tensor a is bf16"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace meshwright::runtime
