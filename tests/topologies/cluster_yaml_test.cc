// Cluster descriptions: the shipped ones, text forms, names, and bad input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/topologies/test_files.h"
#include "topologies/cluster.h"
#include "topologies/cluster_io.h"
#include "topologies/text.h"

namespace meshwright::topologies {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

constexpr char kSmall[] = R"(meshwright_cluster: 1
name: small
sources:
  s: {origin: assumed, text: "a test"}
hosts:
  - name: host
    count: 2
    device: {kind: gpu, name: H100-SXM, profile: h100-sxm, memory: 80 GB, source: s}
    nodes: [numa0, "gpu[0-1]", {id: nic0, name: mlx5_0}, rail0]
    links:
      - {from: "gpu[0-1]", to: numa0, kind: pcie, each_way: 63 GB/s, latency: 0.5 us, source: s, latency_source: s}
      - {from: gpu0, to: gpu1, kind: nvlink, forward: 450 GB/s, backward: 449 GB/s, latency: 1 us, source: s, latency_source: s}
      - {from: nic0, to: numa0, kind: pcie, each_way: 63 GB/s, latency: 0.5 us, source: s, latency_source: s}
      - {from: nic0, to: rail0, kind: network, each_way: 400 Gb/s, latency: 1 us, source: s, latency_source: s}
fabric: {name: ib, oversubscription: 2, source: s, spine_latency: 1 us, latency_source: s}
)";

std::string ErrorOf(const std::string& text) {
  const auto cluster = ParseClusterYaml(text, "c.yaml");
  EXPECT_FALSE(cluster.ok());
  EXPECT_TRUE(cluster.ok() || cluster.status().code() == StatusCode::kInvalidInput);
  return cluster.ok() ? "" : cluster.status().message();
}

// kSmall with one change.
std::string Changed(const std::string& from, const std::string& to) {
  const std::string changed = ReplacedOnce(kSmall, from, to);
  EXPECT_NE(changed, kSmall) << from;
  return changed;
}

TEST(ShippedTest, AllLoadAndEveryNumberHasASource) {
  const std::vector<std::string> names = ShippedClusterNames();
  EXPECT_EQ(names, (std::vector<std::string>{"aws-p4d", "aws-p5", "dgx-1-v100", "dgx-a100-40",
                                             "dgx-a100-80", "dgx-h100", "dgx-h200", "gb200-nvl72",
                                             "gb300-nvl72", "h200-x2", "hgx-b200", "hgx-h800",
                                             "l40s-8", "workstation-1gpu"}));
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const auto cluster = ResolveCluster(name, {});
    ASSERT_TRUE(cluster.ok()) << cluster.status().message();
    EXPECT_EQ(cluster->name(), name);
    const HostSpec& host = cluster->HostSpecOf(0);
    EXPECT_GT(host.device.memory_source.text.size(), 20U);
    for (const Link& link : host.links) {
      EXPECT_GT(link.bandwidth_source.text.size(), 20U);
      EXPECT_GT(link.latency_source.text.size(), 20U);
      EXPECT_TRUE(link.kind != LinkKind::kNvlink ||
                  link.bandwidth_source.origin == Origin::kDatasheet);
    }
    std::vector<int> all;
    for (int i = 0; i < cluster->device_count(); ++i) all.push_back(i);
    EXPECT_TRUE(cluster->Group(all).ok());
  }
}

TEST(ShippedTest, FiguresOfTheDatasheets) {
  struct Row {
    const char* name;
    int devices;
    int64_t memory_gb;
    double nvlink_gbps;  // all of a GPU, each way
    double nic_gbps;     // bytes
    int sharers;
  };
  for (const Row& row :
       {Row{"dgx-a100-40", 8, 40, 300, 25, 1}, Row{"dgx-a100-80", 8, 80, 300, 25, 1},
        Row{"dgx-h100", 8, 80, 450, 50, 1}, Row{"dgx-h200", 8, 141, 450, 50, 1},
        Row{"hgx-b200", 8, 180, 900, 50, 1}, Row{"gb200-nvl72", 72, 186, 900, 50, 1},
        Row{"gb300-nvl72", 72, 279, 900, 100, 1}, Row{"hgx-h800", 8, 80, 200, 50, 1},
        Row{"aws-p4d", 8, 40, 300, 12.5, 2}, Row{"aws-p5", 8, 80, 450, 50, 1},
        Row{"dgx-1-v100", 8, 32, 150, 12.5, 2}}) {
    SCOPED_TRACE(row.name);
    const Cluster cluster = *ResolveCluster(row.name, {});
    EXPECT_EQ(cluster.device_count(), row.devices);
    EXPECT_EQ(cluster.Device(0).memory, Bytes(row.memory_gb * 1'000'000'000));
    double sum = 0;
    const HostSpec& host = cluster.HostSpecOf(0);
    for (const Link& link : host.links) {
      const Node& a = host.nodes[static_cast<size_t>(link.a)];
      const Node& b = host.nodes[static_cast<size_t>(link.b)];
      for (const Node* node : {&a, &b}) {
        if (link.kind == LinkKind::kNvlink && node->kind == NodeKind::kDevice && node->index == 0)
          sum += link.forward.value();
      }
    }
    EXPECT_EQ(sum, row.nvlink_gbps * 1e9);
    EXPECT_EQ(cluster.NearestNic(0)->bandwidth, BytesPerSecond(row.nic_gbps * 1e9));
    EXPECT_EQ(cluster.NearestNic(0)->sharers, row.sharers);
  }
}

TEST(TextFormTest, RoundTrip) {
  std::vector<Cluster> clusters{*ParseClusterYaml(kSmall, "c.yaml")};
  for (const std::string& name : ShippedClusterNames())
    clusters.push_back(*ResolveCluster(name, {}));
  ClusterSpec odd = clusters[0].spec();
  odd.name = "quotes \" and \\ and\ttab \xC3\xA9";
  odd.hosts[0].host.links[0].forward = BytesPerSecond(1.0 / 3 * 1e10);
  odd.hosts[0].host.links[0].latency = Seconds(1e-7 / 3);
  odd.hosts[0].host.device.memory = Bytes(85'520'809'984 + 1);
  clusters.push_back(*Cluster::Make(odd));
  for (const Cluster& cluster : clusters) {
    const auto back = ParseClusterYaml(ToYaml(cluster.spec()), "back");
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(back->spec(), cluster.spec()) << ToYaml(cluster.spec());
    EXPECT_EQ(back->Fingerprint(), cluster.Fingerprint());
  }
}

TEST(TextFormTest, Meaning) {
  const auto cluster = ParseClusterYaml(kSmall, "c.yaml");
  ASSERT_TRUE(cluster.ok()) << cluster.status().message();
  EXPECT_EQ(cluster->device_count(), 4);
  EXPECT_EQ(cluster->WidestPath(0, 1)->bandwidth, BytesPerSecond(450e9));
  EXPECT_EQ(cluster->WidestPath(1, 0)->bandwidth, BytesPerSecond(449e9));
  EXPECT_EQ(cluster->Group(std::vector<int>{0, 1})->bandwidth, BytesPerSecond(449e9));
  EXPECT_EQ(cluster->NearestNic(1)->name, "mlx5_0");
  EXPECT_EQ(cluster->NearestNic(1)->sharers, 2);
}

TEST(BadYamlTest, MessagesSayWhereAndWhatIsAllowed) {
  EXPECT_THAT(ErrorOf("meshwright_cluster: 1\nname: [\n"), HasSubstr("c.yaml:"));
  EXPECT_THAT(ErrorOf("a: b\n"), AllOf(HasSubstr("c.yaml:1"), HasSubstr("unknown field 'a'")));
  EXPECT_THAT(ErrorOf(""), HasSubstr("mapping"));
  EXPECT_THAT(ErrorOf("name: x\n"), HasSubstr("no cluster description"));
  EXPECT_THAT(ErrorOf(Changed("cluster: 1", "cluster: 2")),
              AllOf(HasSubstr("c.yaml:1"), HasSubstr("version 2")));
  EXPECT_THAT(ErrorOf(Changed("fabric:", "fabrik:")),
              AllOf(HasSubstr("c.yaml:1"), HasSubstr("did you mean 'fabric'")));
  EXPECT_THAT(ErrorOf(Changed("count: 2", "count: 0")),
              AllOf(HasSubstr("c.yaml:7: hosts[0].count"), HasSubstr("'0'")));
  EXPECT_THAT(ErrorOf(Changed("count: 2", "count: 2x")), HasSubstr("'2x' is no whole number"));
  EXPECT_THAT(ErrorOf(Changed("count: 2", "count: 99999999999999999999")),
              HasSubstr("no whole number"));
  EXPECT_THAT(ErrorOf(Changed("memory: 80 GB", "memory: 80")),
              AllOf(HasSubstr("c.yaml:8"), HasSubstr("units B, kB")));
  EXPECT_THAT(ErrorOf(Changed("63 GB/s", "-1 GB/s")), HasSubstr("links[0].each_way"));
  EXPECT_THAT(ErrorOf(Changed("63 GB/s", "0 GB/s")), HasSubstr("must be above 0"));
  EXPECT_THAT(ErrorOf(Changed("63 GB/s", "nan GB/s")), HasSubstr("is not a bandwidth"));
  EXPECT_THAT(ErrorOf(Changed("kind: pcie", "kind: pci")),
              HasSubstr("'pci' is none of nvlink, pcie"));
  EXPECT_THAT(ErrorOf(Changed("source: s}", "source: t}")), HasSubstr("no source 't'"));
  EXPECT_THAT(ErrorOf(Changed("text: \"a test\"", "text: \" \"")), HasSubstr("is empty"));
  EXPECT_THAT(ErrorOf(Changed("origin: assumed", "origin: guess")),
              HasSubstr("'guess' is none of datasheet"));
  EXPECT_THAT(ErrorOf(Changed("to: numa0", "to: numa1")), HasSubstr("not in nodes"));
  EXPECT_THAT(ErrorOf(Changed("to: numa0", "to: \"gpu[0\"")), HasSubstr("is no node"));
  EXPECT_THAT(ErrorOf(Changed("from: gpu0, to: gpu1", "from: gpu0, to: gpu0")),
              HasSubstr("joins nodes"));
  EXPECT_THAT(ErrorOf(Changed("gpu[0-1]\", {id", "gpu[0-99999999]\", {id")),
              HasSubstr("is no node"));
  EXPECT_THAT(ErrorOf(Changed("[numa0, ", "[numa0, numa0, ")), HasSubstr("numa0 is listed twice"));
  EXPECT_THAT(ErrorOf(Changed("[numa0, ", "[numa1, ")), HasSubstr("not in nodes"));
  EXPECT_THAT(ErrorOf(Changed("kind: network", "kind: pcie")), HasSubstr("links of kind network"));
  EXPECT_THAT(ErrorOf(Changed("oversubscription: 2", "oversubscription: 0.5")),
              HasSubstr("at least 1"));
  EXPECT_THAT(ErrorOf(Changed("name: small", "name: small\nname: twice")), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf(Changed("kind: gpu,", "kind: cpu,")), HasSubstr("0 cores"));
  EXPECT_THAT(ErrorOf(Changed("each_way: 63 GB/s", "each_way: 63 GB/s, forward: 1 GB/s")),
              HasSubstr("each_way, or forward"));
}

TEST(BadYamlTest, HostileTexts) {
  EXPECT_THAT(ErrorOf(std::string(100'000, '[')), HasSubstr("c.yaml"));
  EXPECT_THAT(ErrorOf("a: &a [x]\nb: *a\n"), HasSubstr("c.yaml"));
  EXPECT_THAT(ErrorOf("name: \xFF\xFE"), HasSubstr("UTF-8"));
  EXPECT_THAT(ErrorOf(std::string(5 << 20, 'a')), HasSubstr("c.yaml"));
  const std::string text = kSmall;
  for (size_t size = 0; size + 1 < text.size(); size += 11) {
    const auto cluster = ParseClusterYaml(text.substr(0, size), "cut");
    if (cluster.ok()) continue;
    EXPECT_THAT(cluster.status().message(), HasSubstr("cut"));
  }
}

TEST(ResolveTest, NamesPathsAndCaptures) {
  EXPECT_EQ(ResolveCluster("dgx-h100", {3, ""})->device_count(), 24);
  const auto typo = ResolveCluster("dgx-h1000", {});
  EXPECT_EQ(typo.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(typo.status().message(),
              AllOf(HasSubstr("did you mean dgx-h100"), HasSubstr("gb200-nvl72")));
  EXPECT_FALSE(ResolveCluster("", {}).ok());
  const std::string folder = MESHWRIGHT_SOURCE_DIR "/tests/data/topo/";
  const std::string capture = folder + "051-a800-8gpu-8nic-nv8.txt";
  EXPECT_EQ(ResolveCluster(capture, {8, "A800-SXM-80"})->device_count(), 64);
  EXPECT_THAT(ResolveCluster(capture, {}).status().message(), HasSubstr("name the GPU model"));
  EXPECT_THAT(ResolveCluster(folder + "073-ascend-npu-smi-topo-negative.txt", {1, "H20"})
                  .status()
                  .message(),
              AllOf(HasSubstr("073-"), HasSubstr("Ascend")));
  EXPECT_THAT(ResolveCluster(folder, {}).status().message(), HasSubstr("is a folder"));
  EXPECT_FALSE(ResolveCluster("dgx-h100", {0, ""}).ok());
  EXPECT_EQ(LoadCluster(ShippedClusterDir() + "/dgx-h100.yaml")->device_count(), 8);
  EXPECT_EQ(LoadCluster("/nowhere.yaml").status().code(), StatusCode::kNotFound);
}

TEST(ResolveTest, DataFolderCanBeElsewhere) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "mw-data/clusters";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "small.yaml") << kSmall;
  ASSERT_EQ(setenv("MESHWRIGHT_DATA_DIR", folder.parent_path().c_str(), 1), 0);
  EXPECT_EQ(ShippedClusterNames(), (std::vector<std::string>{"small"}));
  EXPECT_TRUE(ResolveCluster("small", {}).ok());
  unsetenv("MESHWRIGHT_DATA_DIR");
  EXPECT_THAT(ShippedClusterNames(), Contains("dgx-h100"));
}

TEST(UnitsTest, NumbersWithUnits) {
  EXPECT_EQ(*ParseBandwidth("400 Gb/s"), BytesPerSecond(50e9));
  EXPECT_EQ(*ParseBandwidth("1.5TB/s"), BytesPerSecond(1.5e12));
  EXPECT_EQ(*ParseBytes("80 GiB"), Bytes(int64_t{80} << 30));
  EXPECT_EQ(*ParseDuration("2 ms"), Seconds(2e-3));
  for (const char* bad : {"", "GB", "1", "1 GB/s x", "-1 GB", "1e400 GB", "inf GB", "1 gb"})
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  EXPECT_EQ(FormatBandwidth(BytesPerSecond(31.5e9)), "31.5 GB/s");
  EXPECT_EQ(FormatBytes(Bytes(80'000'000'000)), "80 GB");
  EXPECT_EQ(FormatBytes(Bytes(int64_t{81559} << 20)), "81559 MiB");
  EXPECT_EQ(FormatDuration(Seconds(0.5e-6)), "0.5 us");
}

}  // namespace
}  // namespace meshwright::topologies
