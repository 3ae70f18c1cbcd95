// Programs of communication_rates; needs no GPU.
#include "runtime/cuda/communication_cases.h"

#include <gtest/gtest.h>

#include "planner/ir/op_schema.h"
#include "runtime/issue_order.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::CommunicatorKind;
using planner::OpKind;

constexpr int64_t kMost = 1 << 20;

TEST(RateProgram, IsLegalOnEveryRankAndRepeatsTheOperation) {
  for (const int ranks : {2, 3, 8}) {
    for (const RateCase& c : RateCases(4 << 10, kMost)) {
      const int members = c.message() ? 2 : ranks;
      for (int rank = 0; rank < members; ++rank) {
        const planner::RankProgram program =
            RateProgram(c, rank, {"group", c.traffic, members}, ArenaBytes(kMost));
        const auto order = MakeIssueOrder(program);
        ASSERT_TRUE(order.ok()) << order.status().message();
        ASSERT_EQ(order->ops.size(), static_cast<size_t>(c.calls));
        EXPECT_EQ(program.tasks.size(),
                  c.traffic == CommunicatorKind::kTensor ? 1 : order->ops.size());
        const planner::Op& op = *order->ops.front().op;
        EXPECT_EQ(op.kind, c.message() && rank == 1 ? OpKind::kRecv : c.kind);
        EXPECT_EQ(op.stream, kRateStream);
        const planner::OpWork work = planner::WorkOf(program.blocks.front(), op, program);
        EXPECT_LE(work.message_bytes, c.bytes);
        EXPECT_GT(work.message_bytes, c.bytes - 2 * ranks);
      }
    }
  }
}

TEST(RateCases, CoverAllOperationsAndSizes) {
  const auto cases = RateCases(4 << 10, 256 << 20);
  EXPECT_EQ(cases.size(), 7U * 9U);
  EXPECT_EQ(cases.front().bytes, 4 << 10);
  EXPECT_EQ(cases.back().bytes, 256 << 20);
  EXPECT_EQ(cases.back().kind, OpKind::kSend);
}

TEST(BusBandwidth, CountsWhatALinkCarries) {
  const auto of = [](OpKind kind, int gpus) {
    return BusBandwidth({kind, CommunicatorKind::kTensor, 1'000'000, 1}, gpus, 10.0);
  };
  EXPECT_NEAR(of(OpKind::kSend, 2), 100.0, 1e-9);
  EXPECT_NEAR(of(OpKind::kAllReduce, 2), 100.0, 1e-9);
  EXPECT_NEAR(of(OpKind::kAllReduce, 8), 175.0, 1e-9);
  EXPECT_NEAR(of(OpKind::kAllGather, 2), 50.0, 1e-9);
  EXPECT_NEAR(of(OpKind::kReduceScatter, 4), 75.0, 1e-9);
}

}  // namespace
}  // namespace meshwright::runtime::cuda
