#include "topologies/host.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

namespace meshwright::topologies {
namespace {

constexpr int64_t kMaxDevices = int64_t{1} << 24;
constexpr size_t kMaxHostNodes = 2048;
constexpr size_t kMaxHostLinks = 16384;

template <typename Enum>
using Names = std::vector<std::pair<Enum, std::string_view>>;

const Names<Origin>& OriginNames() {
  static const Names<Origin> names = {{Origin::kDatasheet, "datasheet"},
                                      {Origin::kNvidiaSmi, "nvidia-smi"},
                                      {Origin::kMeasured, "measured"},
                                      {Origin::kAssumed, "assumed"}};
  return names;
}
const Names<NodeKind>& NodeKindNames() {
  static const Names<NodeKind> names = {{NodeKind::kHost, "host"},
                                        {NodeKind::kNumaNode, "numa"},
                                        {NodeKind::kHostBridge, "host_bridge"},
                                        {NodeKind::kPcieSwitch, "pcie_switch"},
                                        {NodeKind::kNvlinkSwitch, "nvlink_switch"},
                                        {NodeKind::kDevice, "device"},
                                        {NodeKind::kNic, "nic"},
                                        {NodeKind::kNetworkSwitch, "rail"}};
  return names;
}
const Names<LinkKind>& LinkKindNames() {
  static const Names<LinkKind> names = {{LinkKind::kNvlink, "nvlink"},
                                        {LinkKind::kPcie, "pcie"},
                                        {LinkKind::kChipToChip, "c2c"},
                                        {LinkKind::kSocket, "socket"},
                                        {LinkKind::kSharedMemory, "shared_memory"},
                                        {LinkKind::kNetwork, "network"}};
  return names;
}
const Names<DeviceKind>& DeviceKindNames() {
  static const Names<DeviceKind> names = {{DeviceKind::kGpu, "gpu"}, {DeviceKind::kCpu, "cpu"}};
  return names;
}

template <typename Enum>
std::string_view NameOf(const Names<Enum>& names, Enum value) {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  return "";
}
template <typename Enum>
std::optional<Enum> ValueOf(const Names<Enum>& names, std::string_view text) {
  for (const auto& [value, name] : names) {
    if (name == text) return value;
  }
  return std::nullopt;
}

bool IsRate(BytesPerSecond rate) {
  return std::isfinite(rate.value()) && rate.value() > 0;
}
bool IsTime(Seconds time) {
  return std::isfinite(time.value()) && time.value() >= 0;
}

Status CheckNodes(const HostSpec& host, const std::string& where) {
  if (host.nodes.size() > kMaxHostNodes) {
    return InvalidInput(
        fmt::format("{}: {} nodes; at most {}", where, host.nodes.size(), kMaxHostNodes));
  }
  std::map<NodeKind, int> next;
  for (const Node& node : host.nodes) {
    if (node.index != next[node.kind]++) {
      return InvalidInput(
          fmt::format("{}: node {} out of order; nodes of a kind count from 0 without gaps", where,
                      NodeId(node, host.device.kind)));
    }
  }
  if (next[NodeKind::kDevice] == 0)
    return InvalidInput(where + ": no devices; at least one is needed");
  if (next[NodeKind::kHost] > 1) return InvalidInput(where + ": more than one host node");
  if (next[NodeKind::kNvlinkSwitch] != 1 && host.nvlink_domain_hosts > 1) {
    return InvalidInput(
        fmt::format("{}: nvlink_domain_hosts is {}, so there must be one nvlink_switch, not {}",
                    where, host.nvlink_domain_hosts, next[NodeKind::kNvlinkSwitch]));
  }
  return Status::Ok();
}

Status CheckLink(const HostSpec& host, const Link& link, const std::string& where) {
  const auto nodes = static_cast<int>(host.nodes.size());
  if (link.a < 0 || link.b < 0 || link.a >= nodes || link.b >= nodes || link.a == link.b) {
    return InvalidInput(
        fmt::format("{}: a link joins nodes {} and {} of {}", where, link.a, link.b, nodes));
  }
  const Node& a = host.nodes[static_cast<size_t>(link.a)];
  const Node& b = host.nodes[static_cast<size_t>(link.b)];
  const std::string name = fmt::format("{}: link {} - {}", where, NodeId(a, host.device.kind),
                                       NodeId(b, host.device.kind));
  if (!IsRate(link.forward) || !IsRate(link.backward)) {
    return InvalidInput(fmt::format("{}: bandwidths {} and {} B/s; both must be above 0", name,
                                    link.forward.value(), link.backward.value()));
  }
  if (!IsTime(link.latency)) {
    return InvalidInput(
        fmt::format("{}: latency {} s; it must be 0 or more", name, link.latency.value()));
  }
  const bool is_network = a.kind == NodeKind::kNetworkSwitch || b.kind == NodeKind::kNetworkSwitch;
  const bool has_nic = a.kind == NodeKind::kNic || b.kind == NodeKind::kNic;
  if (is_network != (link.kind == LinkKind::kNetwork) || (is_network && !has_nic)) {
    return InvalidInput(name + ": links of kind network, and only they, join a NIC and a rail");
  }
  if (link.bandwidth_source.text.empty() || link.latency_source.text.empty()) {
    return InvalidInput(name + ": bandwidth and latency need a source each");
  }
  return Status::Ok();
}

Status CheckHost(const HostSpec& host, const std::string& where) {
  MW_RETURN_IF_ERROR(CheckNodes(host, where));
  if (host.links.size() > kMaxHostLinks) {
    return InvalidInput(
        fmt::format("{}: {} links; at most {}", where, host.links.size(), kMaxHostLinks));
  }
  std::set<int> ports;
  for (const Link& link : host.links) {
    MW_RETURN_IF_ERROR(CheckLink(host, link, where));
    if (link.kind != LinkKind::kNetwork) continue;
    const int nic =
        host.nodes[static_cast<size_t>(link.a)].kind == NodeKind::kNic ? link.a : link.b;
    if (!ports.insert(nic).second) {
      return InvalidInput(
          fmt::format("{}: {} has two network links; list a NIC per port", where,
                      NodeId(host.nodes[static_cast<size_t>(nic)], host.device.kind)));
    }
  }
  const DeviceInfo& device = host.device;
  if (device.name.empty()) return InvalidInput(where + ": the device has no name");
  if (device.profile.empty()) return InvalidInput(where + ": the device names no profile");
  if (device.memory.value() <= 0 || device.memory_source.text.empty()) {
    return InvalidInput(where + ": the device's memory must be above 0 and have a source");
  }
  if ((device.kind == DeviceKind::kCpu) != (device.cores > 0)) {
    return InvalidInput(
        fmt::format("{}: {} cores; CPU devices have at least 1, GPUs 0", where, device.cores));
  }
  if (host.nvlink_domain_hosts < 1) {
    return InvalidInput(
        fmt::format("{}: nvlink_domain_hosts is {}; at least 1", where, host.nvlink_domain_hosts));
  }
  return Status::Ok();
}

int CountOf(const HostSpec& host, NodeKind kind) {
  return static_cast<int>(std::count_if(host.nodes.begin(), host.nodes.end(),
                                        [&](const Node& node) { return node.kind == kind; }));
}

}  // namespace

int HostSpec::device_count() const {
  return CountOf(*this, NodeKind::kDevice);
}
int HostSpec::nic_count() const {
  return CountOf(*this, NodeKind::kNic);
}

std::string_view ToString(Origin origin) {
  return NameOf(OriginNames(), origin);
}
std::string_view ToString(NodeKind kind) {
  return NameOf(NodeKindNames(), kind);
}
std::string_view ToString(LinkKind kind) {
  return NameOf(LinkKindNames(), kind);
}
std::string_view ToString(DeviceKind kind) {
  return NameOf(DeviceKindNames(), kind);
}
std::optional<Origin> ParseOrigin(std::string_view text) {
  return ValueOf(OriginNames(), text);
}
std::optional<NodeKind> ParseNodeKind(std::string_view text) {
  return ValueOf(NodeKindNames(), text);
}
std::optional<LinkKind> ParseLinkKind(std::string_view text) {
  return ValueOf(LinkKindNames(), text);
}
std::optional<DeviceKind> ParseDeviceKind(std::string_view text) {
  return ValueOf(DeviceKindNames(), text);
}

std::string NodeId(const Node& node, DeviceKind device_kind) {
  return fmt::format("{}{}",
                     node.kind == NodeKind::kDevice ? ToString(device_kind) : ToString(node.kind),
                     node.index);
}

Status Validate(const ClusterSpec& spec) {
  if (spec.hosts.empty()) return InvalidInput(fmt::format("cluster '{}': no hosts", spec.name));
  int64_t devices = 0;
  for (const HostGroup& group : spec.hosts) {
    const std::string where = fmt::format("cluster '{}', host '{}'", spec.name, group.host.name);
    if (group.count < 1) {
      return InvalidInput(fmt::format("{}: count is {}; at least 1", where, group.count));
    }
    MW_RETURN_IF_ERROR(CheckHost(group.host, where));
    devices += int64_t{group.host.device_count()} * group.count;
    if (devices > kMaxDevices) {
      return InvalidInput(
          fmt::format("{}: more than {} devices in the cluster", where, kMaxDevices));
    }
  }
  const FabricSpec& fabric = spec.fabric;
  if (fabric.name.empty()) return Status::Ok();
  const std::string where = fmt::format("cluster '{}', fabric '{}'", spec.name, fabric.name);
  if (!std::isfinite(fabric.oversubscription) || fabric.oversubscription < 1) {
    return InvalidInput(
        fmt::format("{}: oversubscription {}; at least 1", where, fabric.oversubscription));
  }
  if (!IsTime(fabric.spine_latency)) {
    return InvalidInput(
        fmt::format("{}: spine latency {} s; 0 or more", where, fabric.spine_latency.value()));
  }
  if (fabric.source.text.empty() || fabric.latency_source.text.empty()) {
    return InvalidInput(where + ": oversubscription and spine latency need a source each");
  }
  return Status::Ok();
}

}  // namespace meshwright::topologies
