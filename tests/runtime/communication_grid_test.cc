// What is measured of communication; needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "runtime/gpu_run.h"
#include "runtime/measure_communication.h"

namespace meshwright::runtime {
namespace {

using planner::CommunicatorKind;
using planner::OpKind;
using planner::PeerCarrier;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(CommunicationGroups, ArePairsAndTheWholeHost) {
  EXPECT_THAT(CommunicationGroups(1), IsEmpty());
  EXPECT_THAT(CommunicationGroups(2), ElementsAre(2));
  EXPECT_THAT(CommunicationGroups(3), ElementsAre(2, 3));
  EXPECT_THAT(CommunicationGroups(8), ElementsAre(2, 8));
}

TEST(CommunicationGrid, HasEverySizeOfEveryOperationOnce) {
  const auto grid = CommunicationGrid(2, true);
  // Three collectives of tensor and data traffic and the edge; without NCCL moves in two ways,
  // messages by kernels up to 16 MiB.
  EXPECT_EQ(grid.size(), (3 * 2 + 1 + 4 * 2 + 1) * 9u + 6);
  std::set<std::tuple<OpKind, CommunicatorKind, PeerCarrier, int64_t>> seen;
  for (const CommunicationCase& c : grid) {
    EXPECT_TRUE(seen.emplace(c.kind, c.traffic, c.carrier, c.bytes).second);
    EXPECT_EQ(c.ranks, 2);
    EXPECT_EQ(c.kind == OpKind::kSend, c.traffic == CommunicatorKind::kEdge);
    EXPECT_GE(c.bytes, 64 << 10);
    EXPECT_LE(c.bytes, 256 << 20);
  }
  const auto held_out = std::count_if(grid.begin(), grid.end(),
                                      [](const CommunicationCase& c) { return c.held_out; });
  EXPECT_EQ(held_out, 33);
}

TEST(CommunicationGrid, HasTheLimitsOfARun) {
  const GpuOptions limits;
  for (const CommunicationCase& c : CommunicationGrid(8, true)) {
    if (c.carrier == PeerCarrier::kKernels) {
      EXPECT_EQ(c.ctas, planner::PeerKernelCtas(c.traffic));
      continue;
    }
    const int expected = c.carrier == PeerCarrier::kCopyEngines   ? 0
                         : c.traffic == CommunicatorKind::kTensor ? limits.tensor_ctas
                         : c.traffic == CommunicatorKind::kData   ? limits.data_ctas
                                                                  : limits.edge_ctas;
    EXPECT_EQ(c.ctas, expected);
  }
}

TEST(CommunicationGrid, LargerGroupsComeLaterAndHaveNcclAndNoEdges) {
  const auto grid = CommunicationGrid(8, true);
  EXPECT_TRUE(std::is_sorted(
      grid.begin(), grid.end(),
      [](const CommunicationCase& a, const CommunicationCase& b) { return a.ranks < b.ranks; }));
  for (const CommunicationCase& c : grid) {
    if (c.ranks == 2) continue;
    EXPECT_EQ(c.ranks, 8);
    EXPECT_EQ(c.carrier, PeerCarrier::kNccl);
    EXPECT_NE(c.kind, OpKind::kSend);
  }
  EXPECT_EQ(CommunicationGrid(2, false).size(), (3 * 2 + 1) * 9u);
}

TEST(BesideGrid, RunsEachOperationInOneMeasuredSize) {
  const auto grid = CommunicationGrid(4, true);
  const auto beside = BesideGrid(4, true);
  EXPECT_EQ((beside.size() - 1) * 9 + 6, grid.size());
  for (const CommunicationCase& c : beside) {
    EXPECT_NE(std::find(grid.begin(), grid.end(), c), grid.end());
  }
}

}  // namespace
}  // namespace meshwright::runtime
