#include "topologies/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <set>

#include "tests/topologies/test_files.h"
#include "topologies/cluster_io.h"
#include "topologies/parse_nvidia_smi_topo.h"

namespace meshwright::topologies {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using Ids = std::vector<int>;

Cluster Shipped(const std::string& name, std::optional<int> nodes = {}) {
  const auto cluster = ResolveCluster(name, {nodes, ""});
  EXPECT_TRUE(cluster.ok()) << cluster.status().message();
  return *cluster;
}

Cluster FromTopo(const std::string& text, const std::string& gpu, int nodes = 1,
                 std::optional<BytesPerSecond> nic = {}) {
  const auto report = ParseNvidiaSmiTopo(text);
  EXPECT_TRUE(report.ok()) << report.status().message();
  TopoOptions options;
  options.gpu = gpu;
  options.nodes = nodes;
  options.nic_bandwidth = nic;
  const auto cluster = ClusterFromTopo(*report, options);
  EXPECT_TRUE(cluster.ok()) << cluster.status().message();
  return *cluster;
}

GroupPath GroupOf(const Cluster& cluster, const Ids& devices) {
  const auto group = cluster.Group(devices);
  EXPECT_TRUE(group.ok()) << group.status().message();
  return *group;
}

// A matrix from the words above the diagonal.
std::string Matrix(int gpus, const std::vector<std::string>& nics,
                   const std::function<std::string(int, int)>& word) {
  const int n = gpus + static_cast<int>(nics.size());
  const auto name = [&](int i) {
    return i < gpus ? "GPU" + std::to_string(i) : nics[static_cast<size_t>(i - gpus)];
  };
  std::string text;
  for (int i = 0; i < n; ++i) text += "\t" + name(i);
  for (int i = 0; i < n; ++i) {
    text += "\n" + name(i);
    for (int j = 0; j < n; ++j)
      text += "\t" + (i == j ? " X " : word(std::min(i, j), std::max(i, j)));
  }
  return text + "\n";
}

TEST(ClusterTest, CountsAndIds) {
  const Cluster cluster = Shipped("dgx-h100", 4096);
  EXPECT_EQ(cluster.device_count(), 32768);
  EXPECT_EQ(cluster.host_count(), 4096);
  EXPECT_EQ(cluster.HostOf(32767), 4095);
  EXPECT_EQ(cluster.LocalId(17), 1);
  EXPECT_EQ(cluster.FirstDeviceOf(2), 16);
  EXPECT_EQ(cluster.min_devices_per_host(), 8);
  EXPECT_EQ(cluster.Device(31).profile, "h100-sxm");
  EXPECT_EQ(cluster.Device(31).memory, Bytes(80'000'000'000));
  EXPECT_EQ(cluster.WithDevices(12)->host_count(), 2);
  EXPECT_EQ(cluster.WithDevices(3)->device_count(), 8);
}

TEST(ClusterTest, UnlikeHosts) {
  ClusterSpec spec = Shipped("dgx-h100", 2).spec();
  spec.hosts.push_back({Shipped("h200-x2").spec().hosts[0].host, 3});
  const auto cluster = Cluster::Make(spec);
  ASSERT_TRUE(cluster.ok()) << cluster.status().message();
  EXPECT_EQ(cluster->device_count(), 22);
  EXPECT_EQ(cluster->HostOf(17), 2);
  EXPECT_EQ(cluster->HostOf(18), 3);
  EXPECT_EQ(cluster->Device(15).name, "H100-SXM");
  EXPECT_EQ(cluster->Device(16).name, "H200");
  EXPECT_EQ(cluster->min_devices_per_host(), 2);
  EXPECT_EQ(cluster->max_devices_per_host(), 8);
  EXPECT_EQ(cluster->Group(Ids{0, 16}).status().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(cluster->WithDevices(22).ok());
  EXPECT_EQ(cluster->WithDevices(23).status().code(), StatusCode::kInvalidInput);
}

TEST(ClusterTest, NvlinkIslands) {
  EXPECT_EQ(Shipped("dgx-h100", 2).NvlinkIslands(1),
            (std::vector<Ids>{{8, 9, 10, 11, 12, 13, 14, 15}}));
  EXPECT_EQ(Shipped("l40s-8").NvlinkIslands(0).size(), 8U);
  EXPECT_EQ(Shipped("gb200-nvl72").NvlinkIslands(7)[0].size(), 72U);
  const auto pairs = [](int a, int b) { return b - a == 2 ? "NV4" : "PHB"; };
  EXPECT_EQ(FromTopo(Matrix(4, {}, pairs), "RTX-3090").NvlinkIslands(0),
            (std::vector<Ids>{{0, 2}, {1, 3}}));
}

TEST(PathTest, InsideAHost) {
  const Cluster cube = Shipped("dgx-1-v100");
  EXPECT_EQ(cube.WidestPath(0, 3)->bandwidth, BytesPerSecond(50e9));
  // No link joins 0 and 5; the ways over one GPU carry 25, 0-4-7-6-5 and 0-3-2-1-5 carry 50.
  const auto relayed = cube.WidestPath(0, 5);
  EXPECT_EQ(relayed->bandwidth, BytesPerSecond(50e9));
  EXPECT_EQ(relayed->narrowest, LinkKind::kNvlink);
  EXPECT_NEAR(relayed->latency.value(), 2.0e-6, 1e-12);
  EXPECT_EQ(relayed->hops.front(), "host0/gpu0");
  EXPECT_EQ(relayed->hops.back(), "host0/gpu5");
  const auto pcie = Shipped("l40s-8").WidestPath(0, 7);
  EXPECT_EQ(pcie->hops, (std::vector<std::string>{"host0/gpu0", "host0/pcie_switch0", "host0/numa0",
                                                  "host0/host0", "host0/numa1",
                                                  "host0/pcie_switch3", "host0/gpu7"}));
  EXPECT_EQ(pcie->bandwidth, BytesPerSecond(31.5e9));
  EXPECT_NEAR(pcie->latency.value(), 2.6e-6, 1e-12);
  EXPECT_FALSE(pcie->source.text.empty());
}

// Of two ways of equal width the quicker one is found also where a wider but slower way leads to
// the middle of it.
TEST(PathTest, WidestThenQuickest) {
  ClusterSpec spec;
  spec.name = "diamond";
  HostSpec host;
  host.name = "h";
  const Source source{Origin::kAssumed, "test"};
  host.device = {DeviceKind::kGpu, "G", "g", Bytes(1), source, 0};
  host.nodes = {{NodeKind::kDevice, 0, ""},
                {NodeKind::kPcieSwitch, 0, ""},
                {NodeKind::kPcieSwitch, 1, ""},
                {NodeKind::kDevice, 1, ""}};
  const auto add = [&](int a, int b, double rate, double latency) {
    host.links.push_back({a, b, LinkKind::kPcie, "", BytesPerSecond(rate), BytesPerSecond(rate),
                          Seconds(latency), source, source});
  };
  add(0, 1, 10, 1);
  add(0, 2, 20, 5);
  add(2, 1, 20, 5);
  add(1, 3, 10, 1);
  spec.hosts.push_back({host, 1});
  const auto cluster = Cluster::Make(spec);
  ASSERT_TRUE(cluster.ok()) << cluster.status().message();
  const auto path = cluster->WidestPath(0, 1);
  EXPECT_EQ(path->bandwidth, BytesPerSecond(10));
  EXPECT_EQ(path->latency, Seconds(2));
  EXPECT_EQ(path->hops.size(), 3U);
}

TEST(PathTest, AcrossHosts) {
  const Cluster cluster = Shipped("dgx-h100", 3);
  const auto rail = cluster.WidestPath(1, 17);
  EXPECT_EQ(rail->hops, (std::vector<std::string>{"host0/gpu1", "host0/nic1", "rail1", "host2/nic1",
                                                  "host2/gpu1"}));
  EXPECT_EQ(rail->bandwidth, BytesPerSecond(50e9));
  EXPECT_EQ(rail->narrowest, LinkKind::kNetwork);
  EXPECT_NEAR(rail->latency.value(), 4e-6, 1e-12);
  const auto spine = cluster.WidestPath(1, 18);
  EXPECT_THAT(spine->hops, Contains("spine"));
  EXPECT_GT(spine->latency, rail->latency);
  EXPECT_EQ(cluster.WidestPath(1, 1).status().code(), StatusCode::kInvalidInput);
  EXPECT_EQ(cluster.WidestPath(1, 24).status().code(), StatusCode::kInvalidInput);
  EXPECT_THAT(Shipped("h200-x2", 2).WidestPath(0, 2).status().message(), HasSubstr("no fabric"));
}

TEST(GroupTest, InsideAHost) {
  const Cluster h100 = Shipped("dgx-h100");
  EXPECT_EQ(GroupOf(h100, {0, 1, 2, 3, 4, 5, 6, 7}).bandwidth, BytesPerSecond(450e9));
  EXPECT_EQ(GroupOf(h100, {7, 2}).local_kind, LinkKind::kNvlink);
  EXPECT_EQ(GroupOf(h100, {3}).bandwidth, BytesPerSecond(0));
  EXPECT_THAT(GroupOf(h100, {0, 1}).source.text, HasSubstr("900 GB/s"));
  const Cluster cube = Shipped("dgx-1-v100");
  EXPECT_EQ(GroupOf(cube, {0, 1, 2, 3}).bandwidth, BytesPerSecond(100e9));  // 25 + 25 + 50 at each
  EXPECT_EQ(GroupOf(cube, {0, 1, 2, 3, 4, 5, 6, 7}).bandwidth, BytesPerSecond(150e9));
  EXPECT_EQ(GroupOf(cube, {0, 5}).local_kind,
            LinkKind::kPcie);  // not joined without other members' GPUs
  EXPECT_EQ(GroupOf(cube, {0, 1}).bandwidth, BytesPerSecond(25e9));
  const Cluster l40s = Shipped("l40s-8");
  EXPECT_EQ(GroupOf(l40s, {0, 1}).bandwidth, BytesPerSecond(31.5e9));
  EXPECT_EQ(GroupOf(l40s, {0, 7}).local_kind, LinkKind::kPcie);
}

// Two cliques joined by one thin link: the cut between them binds, not what each member has.
TEST(GroupTest, TheCutBetweenMembersBinds) {
  const auto word = [](int a, int b) {
    if (a < 3 && b < 3) return "NV4";
    if (a >= 3 && b >= 3) return "NV4";
    return a == 2 && b == 3 ? "NV1" : "SYS";
  };
  const Cluster cluster = FromTopo(Matrix(6, {}, word), "A100-SXM-40");
  EXPECT_EQ(GroupOf(cluster, {0, 1, 2}).bandwidth, BytesPerSecond(200e9));
  EXPECT_EQ(GroupOf(cluster, {0, 1, 2, 3, 4, 5}).bandwidth, BytesPerSecond(25e9));
}

TEST(GroupTest, AcrossHosts) {
  const Cluster h100 = Shipped("dgx-h100", 4);
  const GroupPath one_rail = GroupOf(h100, {0, 8, 16, 24});
  EXPECT_EQ(one_rail.hosts, 4);
  EXPECT_EQ(one_rail.max_per_host, 1);
  EXPECT_TRUE(one_rail.same_rail);
  EXPECT_EQ(one_rail.local_bandwidth, BytesPerSecond(0));
  EXPECT_EQ(one_rail.network_bandwidth, BytesPerSecond(50e9));
  EXPECT_EQ(one_rail.bandwidth, BytesPerSecond(50e9));
  Ids two_hosts(16);
  std::iota(two_hosts.begin(), two_hosts.end(), 0);
  const GroupPath wide = GroupOf(h100, two_hosts);
  EXPECT_EQ(wide.network_bandwidth, BytesPerSecond(400e9));
  EXPECT_EQ(wide.network_share, BytesPerSecond(50e9));
  EXPECT_EQ(wide.local_bandwidth, BytesPerSecond(450e9));
  EXPECT_EQ(wide.bandwidth, BytesPerSecond(400e9));
  EXPECT_FALSE(GroupOf(h100, {0, 9}).same_rail);
  const Cluster p4d = Shipped("aws-p4d", 2);  // two GPUs share a NIC of 100 Gb/s
  EXPECT_EQ(GroupOf(p4d, {0, 8}).network_bandwidth, BytesPerSecond(12.5e9));
  EXPECT_EQ(GroupOf(p4d, {0, 8}).network_share, BytesPerSecond(6.25e9));
  EXPECT_EQ(GroupOf(p4d, {0, 1, 8, 9}).network_bandwidth, BytesPerSecond(12.5e9));
}

TEST(GroupTest, OversubscribedSpine) {
  ClusterSpec spec = Shipped("dgx-h100", 2).spec();
  spec.fabric.oversubscription = 4;
  const auto cluster = Cluster::Make(spec);
  EXPECT_EQ(GroupOf(*cluster, {0, 8}).bandwidth, BytesPerSecond(50e9));
  EXPECT_EQ(GroupOf(*cluster, {0, 9}).bandwidth, BytesPerSecond(12.5e9));
  EXPECT_EQ(cluster->WidestPath(0, 9)->bandwidth, BytesPerSecond(12.5e9));
}

TEST(GroupTest, NvlinkDomainOfManyHosts) {
  const Cluster rack = Shipped("gb200-nvl72", 36);
  const GroupPath inside = GroupOf(rack, {0, 5, 71});
  EXPECT_EQ(inside.hosts, 1);
  EXPECT_EQ(inside.local_kind, LinkKind::kNvlink);
  EXPECT_EQ(inside.bandwidth, BytesPerSecond(900e9));
  EXPECT_EQ(rack.WidestPath(0, 71)->bandwidth, BytesPerSecond(900e9));
  const GroupPath across = GroupOf(rack, {71, 72});
  EXPECT_EQ(across.hosts, 2);
  EXPECT_EQ(across.bandwidth, BytesPerSecond(50e9));
}

TEST(GroupTest, BadGroups) {
  const Cluster cluster = Shipped("dgx-h100");
  EXPECT_THAT(cluster.Group(Ids{}).status().message(), HasSubstr("without devices"));
  EXPECT_THAT(cluster.Group(Ids{0, 8}).status().message(), HasSubstr("device 8"));
  EXPECT_THAT(cluster.Group(Ids{-1, 0}).status().message(), HasSubstr("device -1"));
  EXPECT_THAT(cluster.Group(Ids{3, 1, 3}).status().message(),
              HasSubstr("device 3 is listed twice"));
}

// Bug report B58: below a double switch all four distances are PXB.
TEST(NicTest, OneToOneBelowADoubleSwitch) {
  std::vector<std::string> nics;
  for (int i = 0; i < 10; ++i) nics.push_back("mlx5_" + std::to_string(i));
  // Switch s holds GPUs 2s, 2s+1 and two NICs; mlx5_4 and mlx5_5 are spare, one on each socket.
  const auto place = [](int i) {  // switch, or -1 - socket for the spares
    if (i < 8) return i / 2;
    const int nic = i - 8;
    if (nic == 4 || nic == 5) return nic == 4 ? -1 : -2;
    return nic < 4 ? nic / 2 : (nic - 2) / 2;
  };
  const auto socket = [&](int i) { return place(i) < 0 ? -1 - place(i) : place(i) / 2; };
  const auto word = [&](int a, int b) -> std::string {
    if (b < 8) return "NV12";
    return place(a) == place(b) && place(a) >= 0 ? "PXB" : socket(a) == socket(b) ? "NODE" : "SYS";
  };
  const Cluster cluster = FromTopo(Matrix(8, nics, word), "A100-SXM-80");
  const std::vector<std::string> expected = {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3",
                                             "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"};
  for (int gpu = 0; gpu < 8; ++gpu) {
    const auto nic = cluster.NearestNic(gpu);
    ASSERT_TRUE(nic.ok()) << nic.status().message();
    EXPECT_EQ(nic->name, expected[static_cast<size_t>(gpu)]);
    EXPECT_EQ(nic->sharers, 1);
  }
}

TEST(NicTest, EverySpreadIsOneToOneWhereItCanBe) {
  const Cluster sides = FromTopo(Capture("077-"), "L40S");
  std::set<int> used;
  for (int gpu = 0; gpu < 8; ++gpu) used.insert(sides.NearestNic(gpu)->nic);
  EXPECT_EQ(used.size(), 8U);
  EXPECT_EQ(sides.NearestNic(0)->name, "NIC1");
  EXPECT_EQ(sides.NearestNic(4)->name, "NIC0");
  EXPECT_EQ(Shipped("dgx-1-v100").NearestNic(1)->sharers, 2);
  EXPECT_EQ(FromTopo(Capture("054-"), "A100-SXM-40").NearestNic(2)->name,
            "mlx5_0");  // by the legend
  EXPECT_EQ(Shipped("h200-x2").NearestNic(0).status().code(), StatusCode::kUnsupported);
}

// GPU0 is near to both NICs, GPU1 to the first only: GPU0 must leave it.
TEST(NicTest, ADeviceMovesOnForOneWithoutChoice) {
  ClusterSpec spec = Shipped("workstation-1gpu").spec();
  HostSpec& host = spec.hosts[0].host;
  const Link proto = host.links[0];
  host.nodes = {{NodeKind::kDevice, 0, ""},        {NodeKind::kDevice, 1, ""},
                {NodeKind::kNic, 0, ""},           {NodeKind::kNic, 1, ""},
                {NodeKind::kPcieSwitch, 0, ""},    {NodeKind::kPcieSwitch, 1, ""},
                {NodeKind::kNetworkSwitch, 0, ""}, {NodeKind::kNetworkSwitch, 1, ""}};
  host.links.clear();
  const auto add = [&](int a, int b, LinkKind kind) {
    Link link = proto;
    link.a = a;
    link.b = b;
    link.kind = kind;
    host.links.push_back(link);
  };
  add(0, 4, LinkKind::kPcie);  // GPU0 below both switches
  add(0, 5, LinkKind::kPcie);
  add(1, 4, LinkKind::kPcie);  // GPU1 below the first
  add(2, 4, LinkKind::kPcie);
  add(3, 5, LinkKind::kPcie);
  add(2, 6, LinkKind::kNetwork);
  add(3, 7, LinkKind::kNetwork);
  const auto cluster = Cluster::Make(spec);
  ASSERT_TRUE(cluster.ok()) << cluster.status().message();
  EXPECT_EQ(cluster->NearestNic(0)->nic, 1);
  EXPECT_EQ(cluster->NearestNic(1)->nic, 0);
  EXPECT_EQ(cluster->NearestNic(0)->sharers, 1);
}

TEST(FromTopoTest, BandwidthsByGenerationAndCount) {
  const auto pair = [](const std::string& word) {
    return Matrix(2, {}, [=](int, int) { return word; });
  };
  EXPECT_EQ(GroupOf(FromTopo(pair("NV18"), "H100-SXM"), {0, 1}).bandwidth, BytesPerSecond(450e9));
  EXPECT_EQ(GroupOf(FromTopo(pair("NV18"), "B200"), {0, 1}).bandwidth, BytesPerSecond(900e9));
  EXPECT_EQ(GroupOf(FromTopo(pair("NV12"), "A100-SXM-80"), {0, 1}).bandwidth,
            BytesPerSecond(300e9));
  EXPECT_EQ(GroupOf(FromTopo(pair("NV4"), "RTX-3090"), {0, 1}).bandwidth, BytesPerSecond(56.25e9));
  EXPECT_EQ(GroupOf(FromTopo(pair("SYS"), "L40S"), {0, 1}).bandwidth, BytesPerSecond(31.5e9));
  const Cluster a800 = FromTopo(Capture("051-"), "A800-SXM-80");
  EXPECT_EQ(GroupOf(a800, {0, 1, 2, 3, 4, 5, 6, 7}).bandwidth,
            BytesPerSecond(200e9));  // 8 links, not 12
  EXPECT_THAT(GroupOf(a800, {0, 1}).source.text, HasSubstr("nvidia-smi topo -m (NV8)"));
  const Cluster cube = FromTopo(Capture("037-"), "V100-SXM2-32");
  EXPECT_EQ(GroupOf(cube, {0, 1, 2, 3}).bandwidth, BytesPerSecond(100e9));
  const Cluster mesh = FromTopo(Capture("058-"), "A100-SXM-40");  // NV4 between all pairs of four
  EXPECT_EQ(GroupOf(mesh, {0, 1, 2, 3}).bandwidth, BytesPerSecond(300e9));
  EXPECT_EQ(GroupOf(mesh, {0, 1}).bandwidth, BytesPerSecond(100e9));
}

TEST(FromTopoTest, SameShapeAsTheShippedDgx1) {
  const Cluster captured = FromTopo(Capture("037-"), "V100-SXM2-32");
  const Cluster shipped = Shipped("dgx-1-v100");
  for (int a = 0; a < 8; ++a) {
    for (int b = 0; b < 8; ++b) {
      if (a == b) continue;
      EXPECT_EQ(captured.WidestPath(a, b)->bandwidth, shipped.WidestPath(a, b)->bandwidth)
          << a << " " << b;
    }
    EXPECT_EQ(captured.NearestNic(a)->sharers, 2);
  }
}

TEST(FromTopoTest, ModelMustBeKnown) {
  const auto report = ParseNvidiaSmiTopo(Capture("051-"));
  const auto unnamed = ClusterFromTopo(*report, {});
  EXPECT_THAT(unnamed.status().message(),
              AllOf(HasSubstr("nvidia-smi -L"), HasSubstr("A800-SXM-80")));
  TopoOptions options;
  options.gpu = "X800-SXM-80";
  EXPECT_THAT(ClusterFromTopo(*report, options).status().message(),
              HasSubstr("did you mean A800-SXM-80"));
  options.gpu = "L40S";
  EXPECT_THAT(ClusterFromTopo(*report, options).status().message(), HasSubstr("L40S has none"));
  const auto listed =
      ParseNvidiaSmiTopo("GPU 0: NVIDIA A800-SXM4-80GB (UUID: GPU-0)\n" + Capture("051-"));
  EXPECT_EQ(ClusterFromTopo(*listed, {})->Device(0).name, "A800-SXM-80");
  const auto unlike = ParseNvidiaSmiTopo(
      "GPU 0: NVIDIA A (UUID: GPU-0)\nGPU 1: NVIDIA B (UUID: GPU-1)\n" + Capture("051-"));
  EXPECT_THAT(ClusterFromTopo(*unlike, {}).status().message(), HasSubstr("unlike GPUs"));
}

TEST(FromTopoTest, ManyHosts) {
  const Cluster eight = FromTopo(Capture("041-"), "H100-SXM", 8);
  EXPECT_EQ(eight.device_count(), 64);
  EXPECT_THAT(eight.warnings(), Contains(HasSubstr("does not say how fast the NICs are")));
  EXPECT_EQ(GroupOf(eight, {0, 8}).bandwidth, BytesPerSecond(50e9));
  const auto grown = FromTopo(Capture("041-"), "H100-SXM").WithDevices(64);
  EXPECT_EQ(grown->Fingerprint(), eight.Fingerprint());
  const auto report = ParseNvidiaSmiTopo(Matrix(2, {}, [](int, int) { return "NV12"; }));
  TopoOptions options;
  options.gpu = "A100-SXM-80";
  options.nodes = 2;
  EXPECT_THAT(ClusterFromTopo(*report, options).status().message(), HasSubstr("lists no NICs"));
  options.nic_bandwidth = BytesPerSecond(25e9);
  EXPECT_EQ(GroupOf(*ClusterFromTopo(*report, options), {0, 2}).bandwidth, BytesPerSecond(25e9));
}

TEST(FromTopoTest, WarnsOfMissingLinks) {
  EXPECT_THAT(FromTopo(Capture("062-"), "RTX-3090").warnings(),
              Contains(HasSubstr("GPU0 shows 3 NVLinks, RTX-3090 has 4")));
  EXPECT_THAT(FromTopo(Capture("051-"), "A100-SXM-80").warnings(),
              Contains(HasSubstr("GPU7 shows 8 NVLinks, A100-SXM-80 has 12")));
}

TEST(FromTopoTest, EveryCaptureMakesAConnectedHost) {
  int made = 0;
  for (const auto& path : Captures(kCommittedTopos)) {
    const auto report = ParseNvidiaSmiTopo(ReadAll(path));
    if (!report.ok()) continue;
    SCOPED_TRACE(path.filename().string());
    TopoOptions options;
    options.gpu = report->nvlink_components.empty() ? "L40S" : "H100-SXM";
    const auto cluster = ClusterFromTopo(*report, options);
    ASSERT_TRUE(cluster.ok()) << cluster.status().message();
    Ids all(static_cast<size_t>(report->gpus));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_TRUE(cluster->Group(all).ok());
    // The NIC given to a GPU is one of those that the capture calls nearest.
    for (size_t gpu = 0; gpu < report->nearest_nic.size(); ++gpu) {
      const auto nic = cluster->NearestNic(static_cast<int>(gpu));
      ASSERT_TRUE(nic.ok()) << nic.status().message();
      EXPECT_THAT(report->nearest_nic[gpu].nics, Contains(nic->nic)) << "GPU" << gpu;
    }
    ++made;
  }
  EXPECT_GE(made, 24);
}

TEST(CpuClusterTest, RanksShareAHost) {
  const CpuHostOptions options{8,
                               2,
                               Bytes(16'000'000'000),
                               "cpu",
                               BytesPerSecond(5e9),
                               Seconds(1e-6),
                               {Origin::kMeasured, "test"}};
  const auto cluster = CpuCluster(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status().message();
  EXPECT_EQ(cluster->device_count(), 8);
  EXPECT_EQ(cluster->Device(7).cores, 2);
  EXPECT_EQ(cluster->Device(7).memory, Bytes(2'000'000'000));
  const GroupPath group = GroupOf(*cluster, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(group.local_kind, LinkKind::kSharedMemory);
  EXPECT_EQ(group.bandwidth, BytesPerSecond(5e9));
  EXPECT_NEAR(group.latency.value(), 1e-6, 1e-15);
  CpuHostOptions none = options;
  none.ranks = 0;
  EXPECT_FALSE(CpuCluster(none).ok());
  const auto local = ProbeLocalMachine();
  ASSERT_TRUE(local.ok()) << local.status().message();
  EXPECT_GE(local->cores, 1);
  EXPECT_GT(local->memory, Bytes(1 << 20));
}

TEST(FingerprintTest, SeesEverythingButNames) {
  const Cluster cluster = Shipped("dgx-h100");
  ClusterSpec spec = cluster.spec();
  spec.name = "other";
  spec.description = "";
  EXPECT_EQ(Cluster::Make(spec)->Fingerprint(), cluster.Fingerprint());
  spec.hosts[0].host.links[0].latency += Seconds(1e-9);
  EXPECT_NE(Cluster::Make(spec)->Fingerprint(), cluster.Fingerprint());
  EXPECT_NE(cluster.WithDevices(16)->Fingerprint(), cluster.Fingerprint());
  std::set<uint64_t> seen;
  for (const std::string& name : ShippedClusterNames()) seen.insert(Shipped(name).Fingerprint());
  EXPECT_EQ(seen.size(), ShippedClusterNames().size());
}

TEST(DotTest, NamesEveryNode) {
  const std::string dot = Shipped("dgx-1-v100").ToDot();
  EXPECT_THAT(dot, AllOf(HasSubstr("gpu7"), HasSubstr("NV2 50 GB/s"), HasSubstr("spine")));
}

}  // namespace
}  // namespace meshwright::topologies
