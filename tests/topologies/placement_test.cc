// Which devices ranks get.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "tests/topologies/test_files.h"
#include "topologies/cluster.h"
#include "topologies/cluster_io.h"
#include "topologies/parse_nvidia_smi_topo.h"

namespace meshwright::topologies {
namespace {

using testing::Contains;
using testing::HasSubstr;
using Ids = std::vector<int>;

Cluster Shipped(const std::string& name, std::optional<int> nodes = {}) {
  return *ResolveCluster(name, {nodes, ""});
}

Cluster FromText(const std::string& text, const std::string& gpu) {
  const auto report = ParseNvidiaSmiTopo(text);
  EXPECT_TRUE(report.ok()) << report.status().message();
  TopoOptions options;
  options.gpu = gpu;
  return *ClusterFromTopo(*report, options);
}

std::string Matrix(int gpus, const std::function<std::string(int, int)>& word) {
  std::string text;
  for (int i = 0; i < gpus; ++i) text += "\tGPU" + std::to_string(i);
  for (int i = 0; i < gpus; ++i) {
    text += "\nGPU" + std::to_string(i);
    for (int j = 0; j < gpus; ++j)
      text += "\t" + (i == j ? " X " : word(std::min(i, j), std::max(i, j)));
  }
  return text + "\n";
}

Ids Order(const Cluster& cluster, const Ids& sizes) {
  const auto placement = cluster.BestOrder(sizes);
  EXPECT_TRUE(placement.ok()) << placement.status().message();
  const Ids& ids = placement->device_of_rank;
  EXPECT_EQ(std::set<int>(ids.begin(), ids.end()).size(), ids.size());
  return ids;
}

std::set<std::set<int>> Blocks(const Ids& order, size_t size) {
  std::set<std::set<int>> blocks;
  for (size_t i = 0; i + size <= order.size(); i += size) {
    blocks.insert(std::set<int>(order.begin() + static_cast<std::ptrdiff_t>(i),
                                order.begin() + static_cast<std::ptrdiff_t>(i + size)));
  }
  return blocks;
}

TEST(PlacementTest, PairsWhereTheLinksAreNotWhereRanksWouldBe) {
  const Cluster cluster =
      FromText(Matrix(4, [](int a, int b) { return b - a == 2 ? "NV4" : "PHB"; }), "RTX-3090");
  EXPECT_EQ(Blocks(Order(cluster, {2, 2}), 2), (std::set<std::set<int>>{{0, 2}, {1, 3}}));
  EXPECT_THAT(cluster.BestOrder(Ids{2, 2})->reasons,
              Contains(HasSubstr("blocks of 2: 56.25 GB/s each way by nvlink")));
}

TEST(PlacementTest, CubeMesh) {
  const Cluster cluster = Shipped("dgx-1-v100");
  EXPECT_EQ(Blocks(Order(cluster, {4, 2}), 4),
            (std::set<std::set<int>>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  // Pairs on double links, and two pairs together on a clique.
  const Ids nested = Order(cluster, {2, 2, 2});
  for (const auto& pair : Blocks(nested, 2)) {
    EXPECT_EQ(cluster.WidestPath(*pair.begin(), *pair.rbegin())->bandwidth, BytesPerSecond(50e9));
    EXPECT_EQ(cluster.WidestPath(*pair.begin(), *pair.rbegin())->hops.size(), 2U);
  }
  EXPECT_EQ(Blocks(nested, 4), (std::set<std::set<int>>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
}

// Equal to trying every order of five small random graphs.
TEST(PlacementTest, InnermostBlocksAreOptimal) {
  uint32_t state = 7;
  const auto next = [&] { return (state = state * 1664525 + 1013904223) >> 16; };
  for (int trial = 0; trial < 5; ++trial) {
    std::vector<int> links(36);
    for (int& count : links) count = static_cast<int>(next() % 4);
    const Cluster cluster =
        FromText(Matrix(6,
                        [&](int a, int b) {
                          const int count = links[static_cast<size_t>(a * 6 + b)];
                          return count == 0 ? std::string("SYS") : "NV" + std::to_string(count);
                        }),
                 "H100-SXM");
    const auto narrowest = [&](const Ids& order) {
      double worst = 1e30;
      for (const auto& block : Blocks(order, 2)) {
        worst = std::min(worst, cluster.Group(Ids(block.begin(), block.end()))->bandwidth.value());
      }
      return worst;
    };
    double best = 0;
    Ids order{0, 1, 2, 3, 4, 5};
    do {
      best = std::max(best, narrowest(order));
    } while (std::next_permutation(order.begin(), order.end()));
    EXPECT_EQ(narrowest(Order(cluster, {2, 3})), best) << trial;
  }
}

TEST(PlacementTest, SocketsStayTogetherOnPcie) {
  const Cluster cluster = Shipped("l40s-8");
  EXPECT_EQ(Blocks(Order(cluster, {2, 2, 2}), 2),
            (std::set<std::set<int>>{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(Blocks(Order(cluster, {4, 2}), 4),
            (std::set<std::set<int>>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
}

TEST(PlacementTest, HostsAreFilledInOrder) {
  const Cluster cluster = Shipped("dgx-h100", 4);
  const Ids order = Order(cluster, {8, 4});
  for (int i = 0; i < 32; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  EXPECT_EQ(Order(cluster, {4, 2}).size(), 8U);
  EXPECT_EQ(Order(cluster, {}), (Ids{0}));
}

// Blocks of three leave two GPUs of each host idle rather than cross the network.
TEST(PlacementTest, BlocksDoNotStraddleHostsWhereThereIsRoom) {
  const Cluster cluster = Shipped("dgx-h100", 4);
  const Ids order = Order(cluster, {3, 4});
  for (const auto& block : Blocks(order, 3))
    EXPECT_EQ(cluster.HostOf(*block.begin()), cluster.HostOf(*block.rbegin()));
  const auto full = cluster.BestOrder(Ids{3, 10});
  EXPECT_EQ(full->device_of_rank.size(), 30U);
  EXPECT_THAT(full->reasons, Contains(HasSubstr("do not fit inside the hosts")));
  EXPECT_EQ(Order(cluster, {16, 2}).size(), 32U);
}

TEST(PlacementTest, NvlinkDomainCountsAsOneHost) {
  const Cluster rack = Shipped("gb200-nvl72", 36);
  const Ids order = Order(rack, {8, 9, 2});
  for (const auto& block : Blocks(order, 8))
    EXPECT_EQ(rack.Group(Ids(block.begin(), block.end()))->hosts, 1);
}

TEST(PlacementTest, ManyHostsAreCheap) {
  const Cluster cluster = Shipped("dgx-h100", 4096);
  EXPECT_EQ(Order(cluster, {8, 8, 512}).size(), 32768U);
}

TEST(PlacementTest, SixteenGpusWithoutSwitch) {
  // Eight NVLink pairs, far apart in numbering: too many partitions to try, found greedily.
  const Cluster cluster =
      FromText(Matrix(16, [](int a, int b) { return b - a == 8 ? "NV4" : "SYS"; }), "RTX-3090");
  for (const auto& pair : Blocks(Order(cluster, {2, 8}), 2))
    EXPECT_EQ(*pair.rbegin() - *pair.begin(), 8);
}

TEST(PlacementTest, Errors) {
  const Cluster cluster = Shipped("dgx-h100");
  EXPECT_THAT(cluster.BestOrder(Ids{2, 0}).status().message(), HasSubstr("group size 0"));
  EXPECT_THAT(cluster.BestOrder(Ids{2, 8}).status().message(),
              HasSubstr("16 ranks or more for the 8 devices"));
  EXPECT_FALSE(cluster.BestOrder(Ids{1 << 30, 1 << 30, 1 << 30}).ok());
}

}  // namespace
}  // namespace meshwright::topologies
