#include "tools/topo_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tools/table.h"

namespace meshwright::tools {
namespace {

using nlohmann::json;
using topologies::Cluster;
using topologies::HostSpec;
using topologies::TopoReport;

/// "0-3,5".
std::string Ranges(const std::vector<int>& sorted) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < sorted.size();) {
    size_t end = i + 1;
    while (end < sorted.size() && sorted[end] == sorted[end - 1] + 1) ++end;
    parts.push_back(end - i == 1 ? std::to_string(sorted[i])
                                 : fmt::format("{}-{}", sorted[i], sorted[end - 1]));
    i = end;
  }
  return fmt::format("{}", fmt::join(parts, ","));
}

std::string Cell(const topologies::TopoColumn& column, int gpu) {
  if (!column) return "";
  const auto& cell = (*column)[static_cast<size_t>(gpu)];
  return cell ? *cell : "-";
}

/// "NV18 x3, PIX x4": how a GPU reaches the others.
std::string LinksOf(const TopoReport& report, int gpu) {
  std::vector<std::pair<std::string, int>> counts;
  for (int other = 0; other < report.gpus; ++other) {
    if (other == gpu) continue;
    const std::string word = ToString(report.LinkBetween(gpu, other));
    const auto found =
        std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.first == word; });
    if (found == counts.end()) {
      counts.emplace_back(word, 1);
    } else {
      ++found->second;
    }
  }
  std::vector<std::string> parts;
  for (const auto& [word, count] : counts)
    parts.push_back(count == 1 ? word : fmt::format("{} x{}", word, count));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string NicName(const TopoReport& report, int nic) {
  const std::string& name = report.nics[static_cast<size_t>(nic)];
  const auto found = report.nic_legend.find(name);
  return found == report.nic_legend.end() ? name : fmt::format("{} ({})", name, found->second);
}

std::string IslandsText(const TopoReport& report, const Style& style) {
  std::string text = HeadingText("NVLink islands", style);
  if (report.nvlink_components.empty())
    return text + "  none: the GPUs reach each other over PCIe and sockets only\n";
  Table table({"GPUs", "size", "shape", "links of a pair"});
  for (size_t c = 0; c < report.nvlink_components.size(); ++c) {
    const std::vector<int>& members = report.nvlink_components[c];
    std::map<int, int> pairs;
    for (const int a : members) {
      for (const int b : members) {
        const topologies::TopoLink& link = report.LinkBetween(a, b);
        if (a < b && link.kind == topologies::TopoLinkKind::kNvlink) ++pairs[link.nvlinks];
      }
    }
    std::vector<std::string> parts;
    for (const auto& [links, count] : pairs) parts.push_back(fmt::format("NV{} x{}", links, count));
    table.Row({Ranges(members), std::to_string(members.size()),
               report.component_is_full_mesh[c] ? "every pair joined" : "not every pair joined",
               fmt::format("{}", fmt::join(parts, ", "))});
  }
  return text + table.ToText(style);
}

int NumaNodes(const HostSpec& host) {
  return static_cast<int>(std::count_if(host.nodes.begin(), host.nodes.end(), [](const auto& n) {
    return n.kind == topologies::NodeKind::kNumaNode;
  }));
}

std::string RateText(BytesPerSecond rate) {
  return fmt::format("{} GB/s", NumberText(rate.value() / 1e9));
}

struct GroupRow {
  std::string name;
  topologies::GroupPath path;
};

/// Islands of the first host, its whole, and the first device of every host (a rail).
std::vector<GroupRow> GroupsOf(const Cluster& cluster) {
  std::vector<GroupRow> rows;
  const auto add = [&](const std::string& name, const std::vector<int>& devices) {
    const auto path = cluster.Group(devices);
    if (devices.size() > 1 && path.ok()) rows.push_back({name, *path});
  };
  const int hosts = cluster.host_count();
  std::vector<int> first_host;
  for (int d = cluster.FirstDeviceOf(0); d < cluster.device_count() && cluster.HostOf(d) == 0; ++d)
    first_host.push_back(d);
  const auto islands = cluster.NvlinkIslands(0);
  std::map<size_t, bool> seen;
  for (const std::vector<int>& island : islands) {
    if (!seen[island.size()]) add(fmt::format("NVLink island of {}", island.size()), island);
    seen[island.size()] = true;
  }
  add(fmt::format("all {} of a host", first_host.size()), first_host);
  std::vector<int> rail;
  for (int host = 0; host < std::min(hosts, 64); ++host)
    rail.push_back(cluster.FirstDeviceOf(host));
  add(fmt::format("first device of {} hosts", rail.size()), rail);
  return rows;
}

json LinkJson(const HostSpec& host, const topologies::Link& link) {
  const auto id = [&](int node) {
    return NodeId(host.nodes[static_cast<size_t>(node)], host.device.kind);
  };
  return {{"a", id(link.a)},
          {"b", id(link.b)},
          {"kind", ToString(link.kind)},
          {"label", link.label},
          {"forward_bytes_per_s", link.forward.value()},
          {"backward_bytes_per_s", link.backward.value()},
          {"latency_s", link.latency.value()},
          {"bandwidth_origin", ToString(link.bandwidth_source.origin)},
          {"bandwidth_source", link.bandwidth_source.text}};
}

/// First host of each host group.
std::vector<int> FirstHosts(const Cluster& cluster) {
  std::vector<int> first;
  int at = 0;
  for (const topologies::HostGroup& group : cluster.spec().hosts) {
    first.push_back(at);
    at += group.count;
  }
  return first;
}

}  // namespace

std::vector<std::string> TopoNotes(const TopoReport& report) {
  std::vector<std::string> pairs;
  size_t count = 0;
  for (int a = 0; a < report.gpus; ++a) {
    for (int b = a + 1; b < report.gpus; ++b) {
      const topologies::TopoLink& link = report.LinkBetween(a, b);
      const int distance = PcieDistance(link.kind);
      if (distance < 1 || distance > 2) continue;  // PIX and PXB, where drivers use peer access
      if (++count <= 8) pairs.push_back(fmt::format("GPU{}-GPU{} ({})", a, b, ToString(link)));
    }
  }
  if (count == 0) return {};
  return {fmt::format(
      "the matrix does not prove that peer access works: PCIe access control (ACS) or an IOMMU can "
      "break it, "
      "and collectives then hang. Check with 'nvidia-smi topo -p2p r' and a copy between: {}{}",
      fmt::join(pairs, ", "), count > 8 ? fmt::format(" and {} more pairs", count - 8) : "")};
}

std::string TopoText(const TopoReport& report, const Style& style) {
  std::string names;
  for (const std::string& name : report.gpu_names) {
    if (!name.empty()) names = ": " + name;
  }
  std::string text =
      HeadingText(fmt::format("{} GPUs and {} NICs (matrix at line {}){}", report.gpus,
                              report.nics.size(), report.first_line, names),
                  style);
  text += IslandsText(report, style);
  Table table({"GPU", "to the other GPUs", "NVLinks", "nearest NIC", "by", "NUMA", "CPU affinity"});
  for (int gpu = 0; gpu < report.gpus; ++gpu) {
    std::string nics, by;
    if (static_cast<size_t>(gpu) < report.nearest_nic.size()) {
      const topologies::NearestNics& nearest = report.nearest_nic[static_cast<size_t>(gpu)];
      std::vector<std::string> list;
      for (const int nic : nearest.nics) list.push_back(NicName(report, nic));
      if (list.size() > 4)
        list = {list[0], list[1], fmt::format("... ({} in all)", nearest.nics.size())};
      nics = fmt::format("{}", fmt::join(list, ", "));
      by = nearest.link_class;
    }
    table.Row({fmt::format("GPU{}", gpu), LinksOf(report, gpu),
               std::to_string(report.nvlink_row_sums[static_cast<size_t>(gpu)]),
               nics.empty() ? "none" : nics, by, Cell(report.numa, gpu),
               Cell(report.cpu_affinity, gpu)});
  }
  text += HeadingText("GPUs", style) + table.ToText(style);
  return text;
}

std::string ClusterText(const Cluster& cluster, const Style& style) {
  const topologies::ClusterSpec& spec = cluster.spec();
  std::string text =
      HeadingText(fmt::format("cluster {}: {} devices on {} hosts", cluster.name(),
                              Thousands(cluster.device_count()), Thousands(cluster.host_count())),
                  style);
  if (!spec.description.empty()) text += "  " + spec.description + "\n";
  Table hosts({"hosts", "kind", "devices", "device", "memory", "profile", "NVLink islands",
               "NUMA nodes", "NICs"});
  const std::vector<int> first = FirstHosts(cluster);
  for (size_t g = 0; g < spec.hosts.size(); ++g) {
    const HostSpec& host = spec.hosts[g].host;
    std::vector<std::string> islands;
    for (const auto& island : cluster.NvlinkIslands(first[g]))
      islands.push_back(std::to_string(island.size()));
    if (islands.size() > 8) islands = {fmt::format("{} x {}", islands.size(), islands[0])};
    hosts.Row({std::to_string(spec.hosts[g].count), host.name, std::to_string(host.device_count()),
               host.device.name, BytesText(host.device.memory.value()), host.device.profile,
               fmt::format("{}", fmt::join(islands, "+")), std::to_string(NumaNodes(host)),
               std::to_string(host.nic_count())});
  }
  text += hosts.ToText(style);
  Table groups({"group", "each way", "latency", "bound by", "number from"});
  std::vector<std::string> sources;
  for (const GroupRow& row : GroupsOf(cluster)) {
    const bool network = row.path.network_bandwidth.value() > 0;
    const std::string source = row.path.source.text;
    if (std::find(sources.begin(), sources.end(), source) == sources.end())
      sources.push_back(source);
    const auto number = std::find(sources.begin(), sources.end(), source) - sources.begin() + 1;
    groups.Row({row.name, RateText(row.path.bandwidth), SecondsText(row.path.latency.value()),
                network && row.path.network_bandwidth <= row.path.bandwidth
                    ? "network"
                    : std::string(ToString(row.path.local_kind)),
                fmt::format("{} [{}]", ToString(row.path.source.origin), number)});
  }
  if (!groups.empty())
    text += HeadingText("what groups of devices share", style) + groups.ToText(style);
  for (size_t i = 0; i < sources.size(); ++i) text += fmt::format("  [{}] {}\n", i + 1, sources[i]);
  if (cluster.host_count() > 1) {
    text += fmt::format("  fabric: {}, oversubscription {} ({}: {})\n",
                        spec.fabric.name.empty() ? "none" : spec.fabric.name,
                        spec.fabric.oversubscription, ToString(spec.fabric.source.origin),
                        spec.fabric.source.text);
  }
  return text;
}

json ClusterJson(const Cluster& cluster) {
  const topologies::ClusterSpec& spec = cluster.spec();
  json hosts = json::array();
  const std::vector<int> first = FirstHosts(cluster);
  for (size_t g = 0; g < spec.hosts.size(); ++g) {
    const HostSpec& host = spec.hosts[g].host;
    json links = json::array();
    for (const topologies::Link& link : host.links) links.push_back(LinkJson(host, link));
    hosts.push_back({{"name", host.name},
                     {"count", spec.hosts[g].count},
                     {"devices", host.device_count()},
                     {"device", host.device.name},
                     {"device_kind", ToString(host.device.kind)},
                     {"device_memory_bytes", host.device.memory.value()},
                     {"profile", host.device.profile},
                     {"nics", host.nic_count()},
                     {"numa_nodes", NumaNodes(host)},
                     {"nvlink_islands", cluster.NvlinkIslands(first[g])},
                     {"links", std::move(links)}});
  }
  json groups = json::array();
  for (const GroupRow& row : GroupsOf(cluster)) {
    groups.push_back({{"name", row.name},
                      {"bandwidth_bytes_per_s", row.path.bandwidth.value()},
                      {"latency_s", row.path.latency.value()}});
  }
  return {
      {"name", cluster.name()},
      {"description", spec.description},
      {"gpus", cluster.device_count()},
      {"host_count", cluster.host_count()},
      {"hosts", std::move(hosts)},
      {"fabric", {{"name", spec.fabric.name}, {"oversubscription", spec.fabric.oversubscription}}},
      {"groups", std::move(groups)},
      {"fingerprint", fmt::format("{:016x}", cluster.Fingerprint())},
      {"warnings", cluster.warnings()}};
}

}  // namespace meshwright::tools
