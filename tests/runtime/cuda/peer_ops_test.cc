// Where a rank of a pair reads and writes its partner's memory, from their programs; needs no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <utility>

#include "runtime/cuda/communication_cases.h"
#include "runtime/cuda/peer_copies.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::CommunicatorKind;
using planner::OpKind;
using planner::RankProgram;

constexpr int64_t kBytes = 64 << 20;
constexpr int64_t kArena = 2 * kBytes;

RankProgram ProgramOf(const RateCase& c, int rank) {
  return RateProgram(c, rank, {"pair", c.traffic, 2}, kArena);
}

/// Of rank `rank`; empty when NCCL carries all or the ranks do not match.
std::vector<PeerOp> OpsOf(const RateCase& c, const RateCase& partner, int rank) {
  const RankProgram own = ProgramOf(c, rank);
  const RankProgram theirs = ProgramOf(partner, 1 - rank);
  std::vector<PeerSide> members = {{&own, 0}, {&theirs, 0}};
  if (rank == 1) std::swap(members[0], members[1]);
  const auto ops = PeerOps(members, static_cast<size_t>(rank), {c.traffic, 2, std::nullopt});
  EXPECT_TRUE(ops.ok()) << ops.status().message();
  return ops.ok() && *ops ? **ops : std::vector<PeerOp>();
}

TEST(PeerOps, ARankUsesThePartnersMemoryWhereThePartnerSays) {
  const auto from = [](OpKind kind, CommunicatorKind traffic, int rank) {
    const RateCase c{kind, traffic, kBytes, 3};
    const auto ops = OpsOf(c, c, rank);
    EXPECT_EQ(ops.size(), 3U);
    if (ops.empty()) return int64_t{-1};
    EXPECT_EQ(ops[0].bytes, kBytes);
    return ops[0].theirs;
  };
  for (const int rank : {0, 1}) {
    EXPECT_EQ(from(OpKind::kAllReduce, CommunicatorKind::kTensor, rank), 0);
    // The partner's output and input; what of them is reckoned by the channel.
    EXPECT_EQ(from(OpKind::kAllGather, CommunicatorKind::kTensor, rank), 0);
    EXPECT_EQ(from(OpKind::kAllGather, CommunicatorKind::kData, rank), 0);
    EXPECT_EQ(from(OpKind::kReduceScatter, CommunicatorKind::kTensor, rank), 0);
    EXPECT_EQ(from(OpKind::kReduceScatter, CommunicatorKind::kData, rank), 0);
  }
}

TEST(PeerOps, AMessageMeetsItsReceiver) {
  const RateCase c{OpKind::kSend, CommunicatorKind::kEdge, kBytes, 2};
  EXPECT_EQ(OpsOf(c, c, 0).at(0).kind, OpKind::kSend);
  EXPECT_EQ(OpsOf(c, c, 1).at(1).kind, OpKind::kRecv);
}

TEST(PeerOps, WhatCannotBeCutInVectorsIsLeftToNccl) {
  RateCase c{OpKind::kAllReduce, CommunicatorKind::kTensor, 64, 1};
  EXPECT_EQ(OpsOf(c, c, 0).size(), 1U);
  c.bytes = 48;
  EXPECT_EQ(OpsOf(c, c, 0).size(), 0U);
}

TEST(MessageRing, NoMessageLiesOverOneThatMayNotHaveBeenTaken) {
  constexpr int64_t kRing = 1000;
  std::mt19937 random(7);  // NOLINT: the same sizes in every run
  for (const int most : {20, 500}) {
    MessageRing sender(kRing), receiver(kRing);
    std::deque<std::pair<uint32_t, std::pair<int64_t, int64_t>>> under_way;
    uint32_t asked = 0;
    int waits = 0;
    for (uint32_t n = 1; n <= 20'000; ++n) {
      const int64_t bytes = std::uniform_int_distribution<int64_t>(1, most)(random);
      const MessageRing::Place place = sender.Next(bytes);
      const MessageRing::Place same = receiver.Next(bytes);
      EXPECT_EQ(place.offset, same.offset);
      EXPECT_EQ(place.number, n);
      EXPECT_LE(place.offset + bytes, kRing);
      if (place.waits) {
        ++waits;
        EXPECT_LT(place.taken, n) << "of its own or later messages: for ever";
        asked = std::max(asked, place.taken);
      }
      while (!under_way.empty() && under_way.front().first <= asked) under_way.pop_front();
      for (const auto& [number, range] : under_way) {
        ASSERT_TRUE(range.second <= place.offset || range.first >= place.offset + bytes)
            << "message " << n << " over " << number;
      }
      under_way.push_back({n, {place.offset, place.offset + bytes}});
    }
    EXPECT_GT(waits, 0);
    if (most == 20) {
      EXPECT_LT(waits, 20'000 / 20) << "one wait for many messages";
    }
  }
}

TEST(MessageRingBytes, WhoReceivesSmallMessagesHasRoomForTwo) {
  const auto bytes = [](OpKind kind, int64_t size, int rank) {
    const RankProgram program = ProgramOf({kind, CommunicatorKind::kEdge, size, 1}, rank);
    return planner::MessageRingBytes(program, 0);
  };
  EXPECT_EQ(bytes(OpKind::kSend, 16 << 20, 1), 32 << 20);
  EXPECT_EQ(bytes(OpKind::kSend, 64, 1), 1 << 20);
  EXPECT_EQ(bytes(OpKind::kSend, 17 << 20, 1), 0);
  EXPECT_EQ(bytes(OpKind::kSend, 64, 0), 0) << "it sends";
  EXPECT_EQ(bytes(OpKind::kAllReduce, 64, 1), 0);
}

TEST(PeerRoutes, SumsGoByKernelsAndLargeMovesByCopyEngines) {
  using planner::DType;
  using planner::PeerCarrier;
  PeerRoutes routes{CommunicatorKind::kTensor, 2, std::nullopt};
  const auto of = [&](OpKind kind, int64_t bytes, DType dtype = DType::kBf16) {
    return routes.Of(kind, bytes, dtype);
  };
  EXPECT_EQ(of(OpKind::kAllReduce, kBytes), PeerCarrier::kKernels);
  EXPECT_EQ(of(OpKind::kReduceScatter, 64), PeerCarrier::kKernels);
  EXPECT_EQ(of(OpKind::kAllGather, kBytes), PeerCarrier::kCopyEngines);
  EXPECT_EQ(of(OpKind::kAllGather, 1 << 20), PeerCarrier::kKernels);
  EXPECT_EQ(of(OpKind::kSend, kBytes), PeerCarrier::kCopyEngines);
  EXPECT_EQ(of(OpKind::kRecv, 64), PeerCarrier::kKernels);
  EXPECT_EQ(of(OpKind::kAllReduce, kBytes, DType::kF64), PeerCarrier::kNccl);
  routes.ranks = 4;  // sums are NCCL's, small gathers too
  EXPECT_EQ(of(OpKind::kAllReduce, kBytes), PeerCarrier::kNccl);
  EXPECT_EQ(of(OpKind::kReduceScatter, 64), PeerCarrier::kNccl);
  EXPECT_EQ(of(OpKind::kAllGather, kBytes), PeerCarrier::kCopyEngines);
  EXPECT_EQ(of(OpKind::kAllGather, 16 << 20), PeerCarrier::kNccl);
  EXPECT_EQ(of(OpKind::kShift, 64), PeerCarrier::kKernels);
  EXPECT_EQ(of(OpKind::kShift, 4 << 20), PeerCarrier::kCopyEngines);
  EXPECT_EQ(of(OpKind::kShift, 96), PeerCarrier::kNccl) << "no vector a rank";
  routes.ranks = 2;
  routes.moves = PeerCarrier::kCopyEngines;
  EXPECT_EQ(of(OpKind::kShift, 64), PeerCarrier::kCopyEngines);
  EXPECT_EQ(of(OpKind::kAllReduce, 64), PeerCarrier::kKernels);
}

TEST(PeerOps, RanksThatDoNotMatchHaveNone) {
  const RateCase c{OpKind::kAllReduce, CommunicatorKind::kTensor, kBytes, 2};
  RateCase other = c;
  other.calls = 1;  // within one task: fewer instances
  EXPECT_TRUE(OpsOf(c, other, 0).empty());
  other = c;
  other.bytes /= 2;
  EXPECT_TRUE(OpsOf(c, other, 0).empty());
  other = c;
  other.kind = OpKind::kAllGather;
  EXPECT_TRUE(OpsOf(c, other, 1).empty());
}

}  // namespace
}  // namespace meshwright::runtime::cuda
