#include "planner/stack/fabric.h"

#include <gtest/gtest.h>

#include "topologies/cluster_io.h"

namespace meshwright::planner::stack {
namespace {

Fabric FabricOfShipped(const std::string& name, int64_t devices) {
  const auto cluster = topologies::ResolveCluster(name, {});
  EXPECT_TRUE(cluster.ok());
  const auto sized = cluster->WithDevices(devices);
  EXPECT_TRUE(sized.ok());
  const Result<Fabric> fabric = FabricOf(*sized);
  EXPECT_TRUE(fabric.ok()) << fabric.status().message();
  return *fabric;
}

TEST(Fabric, ReadsWhatTheClusterDescribes) {
  const Fabric a100 = FabricOfShipped("dgx-a100-80", 16);
  EXPECT_EQ(a100.domain_gpus, 8);
  EXPECT_DOUBLE_EQ(a100.local_bandwidth.value(), 300e9);
  EXPECT_DOUBLE_EQ(a100.network_share.value(), 25e9);     // one HDR adapter a GPU
  EXPECT_DOUBLE_EQ(a100.host_bandwidth.value(), 31.5e9);  // PCIe 4
  const Fabric rack = FabricOfShipped("gb200-nvl72", 144);
  EXPECT_EQ(rack.domain_gpus, 72);
  EXPECT_EQ(rack.host_gpus, 4);
  EXPECT_DOUBLE_EQ(rack.network_share.value(), 50e9);
}

TEST(Fabric, GroupsAgreeWithTheGraph) {
  const auto cluster = topologies::ResolveCluster("dgx-h100", {})->WithDevices(32).value();
  const Fabric fabric = FabricOf(cluster).value();
  const struct {
    int64_t size, stride;
  } groups[] = {{8, 1}, {4, 1}, {2, 4}, {16, 1}, {4, 8}, {8, 4}, {16, 2}, {32, 1}, {2, 6}};
  for (const auto& g : groups) {
    std::vector<int> devices;
    for (int64_t i = 0; i < g.size; ++i) devices.push_back(static_cast<int>(i * g.stride));
    const topologies::GroupPath expected = cluster.Group(devices).value();
    const cost::PathFacts path = PathOf(fabric, g.size, g.stride);
    EXPECT_EQ(path.ranks, g.size);
    EXPECT_EQ(path.hosts, expected.hosts) << g.size << " by " << g.stride;
    EXPECT_EQ(path.ranks_per_host, expected.max_per_host);
    EXPECT_TRUE(Validate(path).ok());
    if (expected.hosts > 1) {
      // All groups of that form talk at once: each member has its share of the NICs.
      EXPECT_DOUBLE_EQ(path.network_bandwidth.value(),
                       expected.network_share.value() * expected.max_per_host);
    }
  }
}

TEST(Fabric, RanksFollowTheOrder) {
  Split split;
  split.tp = 4;
  split.cp = 2;
  split.dp = 8;
  split.pp = 2;
  Groups groups = GroupsOf(split);
  EXPECT_EQ(groups.context_stride, 4);
  EXPECT_EQ(groups.data_stride, 8);
  EXPECT_EQ(groups.stage_stride, 64);
  split.order = RankOrder::kStagesInside;
  groups = GroupsOf(split);
  EXPECT_EQ(groups.data_stride, 16);
  EXPECT_EQ(groups.stage_stride, 8);
}

}  // namespace
}  // namespace meshwright::planner::stack
