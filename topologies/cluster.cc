#include "topologies/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "topologies/cluster_impl.h"
#include "topologies/cluster_io.h"

namespace meshwright::topologies {
namespace {

// Members of one unit of a group.
struct Part {
  Unit unit;
  const HostGraph* graph = nullptr;
  std::vector<int> devices;
  std::vector<int> hosts;   // of each device
  std::vector<int> locals;  // of each device
};

void KeepNarrower(BytesPerSecond candidate, const Source& source, BytesPerSecond& bandwidth,
                  Source& from) {
  if (bandwidth.value() > 0 && candidate >= bandwidth) return;
  bandwidth = candidate;
  from = source;
}

Status NotJoined(const std::string& a, const std::string& b, const std::string& why) {
  return Unsupported(fmt::format("{} and {} are not joined: {}", a, b, why));
}

// What the members of a part have together without the network; nothing for one member.
Result<LocalGroup> JoinedLocally(const Part& part) {
  LocalGroup local;
  if (part.devices.size() < 2) return local;
  if (part.hosts.front() == part.hosts.back()) {
    const auto found = part.graph->Group(part.locals);
    if (found) return *found;
    return NotJoined(fmt::format("device {}", part.devices.front()),
                     fmt::format("the other members on host {}", part.hosts.front()),
                     "the host's description has no way between them");
  }
  for (size_t i = 0; i < part.locals.size(); ++i) {
    const auto& port = part.graph->nvlink_ports()[static_cast<size_t>(part.locals[i])];
    if (!port)
      return NotJoined(fmt::format("device {}", part.devices[i]), "its NVLink domain", "no NVLink");
    const Link& link = part.graph->host().links[static_cast<size_t>(port->narrowest_link)];
    KeepNarrower(port->bandwidth, link.bandwidth_source, local.bandwidth, local.source);
    local.latency = std::max(local.latency, port->latency * 2);
  }
  return local;
}

// Narrows the group's network figures by one part; returns the rails of the part's members.
std::multiset<int> AddNetworkPart(const Part& part, GroupPath& group, Source& source) {
  std::set<std::pair<int, int>> used;  // host, NIC
  std::multiset<int> rails;
  BytesPerSecond sum;
  Source narrowest;
  BytesPerSecond least;
  for (size_t i = 0; i < part.locals.size(); ++i) {
    const LocalNic& nic = part.graph->nics()[static_cast<size_t>(part.locals[i])];
    if (used.emplace(part.hosts[i], nic.nic).second) sum += nic.bandwidth;
    KeepNarrower(nic.bandwidth, nic.source, least, narrowest);
    rails.insert(nic.rail);
    const BytesPerSecond share = nic.bandwidth / nic.sharers;
    if (group.network_share.value() <= 0 || share < group.network_share)
      group.network_share = share;
    group.network_latency = std::max(group.network_latency, nic.latency * 2);
  }
  KeepNarrower(sum, narrowest, group.network_bandwidth, source);
  return rails;
}

}  // namespace

size_t Cluster::Impl::GroupOfDevice(int device) const {
  return static_cast<size_t>(std::upper_bound(first_device.begin(), first_device.end(), device) -
                             first_device.begin() - 1);
}

size_t Cluster::Impl::GroupOfHost(int host) const {
  return static_cast<size_t>(std::upper_bound(first_host.begin(), first_host.end(), host) -
                             first_host.begin() - 1);
}

int Cluster::Impl::HostOf(int device) const {
  const size_t group = GroupOfDevice(device);
  return first_host[group] + (device - first_device[group]) / graphs[group]->devices();
}

int Cluster::Impl::LocalId(int device) const {
  const size_t group = GroupOfDevice(device);
  return (device - first_device[group]) % graphs[group]->devices();
}

Unit Cluster::Impl::UnitOf(int device) const {
  const size_t group = GroupOfDevice(device);
  const int domain = spec.hosts[group].host.nvlink_domain_hosts;
  const int per_host = graphs[group]->devices();
  const int index = (device - first_device[group]) / per_host / domain;
  const int hosts = std::min(domain, spec.hosts[group].count - index * domain);
  return {group, first_host[group] + index * domain, hosts,
          first_device[group] + index * domain * per_host, hosts * per_host};
}

Result<Cluster> Cluster::Make(ClusterSpec spec) {
  MW_RETURN_IF_ERROR(Validate(spec));
  auto impl = std::make_shared<Impl>();
  impl->spec = std::move(spec);
  impl->first_host = {0};
  impl->first_device = {0};
  for (const HostGroup& group : impl->spec.hosts) {
    impl->graphs.push_back(std::make_unique<const HostGraph>(group.host));
    impl->first_host.push_back(impl->first_host.back() + group.count);
    impl->first_device.push_back(impl->first_device.back() +
                                 group.count * impl->graphs.back()->devices());
  }
  return Cluster(std::move(impl));
}

const ClusterSpec& Cluster::spec() const {
  return impl_->spec;
}
int64_t Cluster::device_count() const {
  return impl_->total_devices();
}
int Cluster::host_count() const {
  return impl_->first_host.back();
}

int Cluster::min_devices_per_host() const {
  const auto& graphs = impl_->graphs;
  return (*std::min_element(
              graphs.begin(), graphs.end(),
              [](const auto& a, const auto& b) { return a->devices() < b->devices(); }))
      ->devices();
}

int Cluster::max_devices_per_host() const {
  const auto& graphs = impl_->graphs;
  return (*std::max_element(
              graphs.begin(), graphs.end(),
              [](const auto& a, const auto& b) { return a->devices() < b->devices(); }))
      ->devices();
}

int Cluster::HostOf(int device) const {
  MW_CHECK(device >= 0 && device < impl_->total_devices());
  return impl_->HostOf(device);
}
int Cluster::LocalId(int device) const {
  MW_CHECK(device >= 0 && device < impl_->total_devices());
  return impl_->LocalId(device);
}
int Cluster::FirstDeviceOf(int host) const {
  MW_CHECK(host >= 0 && host < host_count());
  const size_t group = impl_->GroupOfHost(host);
  return impl_->first_device[group] +
         (host - impl_->first_host[group]) * impl_->graphs[group]->devices();
}
const HostSpec& Cluster::HostSpecOf(int host) const {
  MW_CHECK(host >= 0 && host < host_count());
  return impl_->spec.hosts[impl_->GroupOfHost(host)].host;
}
const DeviceInfo& Cluster::Device(int device) const {
  return HostSpecOf(HostOf(device)).device;
}

std::vector<std::vector<int>> Cluster::NvlinkIslands(int host) const {
  const int first = FirstDeviceOf(host);
  const Unit unit = impl_->UnitOf(first);
  std::vector<std::vector<int>> islands;
  if (unit.hosts > 1) {
    std::vector<int>& island = islands.emplace_back();
    for (int i = 0; i < unit.devices; ++i) island.push_back(unit.first_device + i);
    return islands;
  }
  for (const std::vector<int>& local : impl_->GraphOf(first).islands()) {
    std::vector<int>& island = islands.emplace_back();
    for (const int id : local) island.push_back(first + id);
  }
  return islands;
}

Result<Path> Cluster::WidestPath(int from, int to) const {
  const int total = impl_->total_devices();
  if (from < 0 || to < 0 || from >= total || to >= total || from == to) {
    return InvalidInput(
        fmt::format("path from device {} to {}: give two different ids below {}", from, to, total));
  }
  const HostGraph& graph = impl_->GraphOf(from);
  const std::string names[] = {fmt::format("device {}", from), fmt::format("device {}", to)};
  if (impl_->HostOf(from) == impl_->HostOf(to)) {
    const auto local = graph.WidestPath(impl_->LocalId(from), impl_->LocalId(to));
    if (!local)
      return NotJoined(names[0], names[1], "their host's description has no way between them");
    Path path;
    impl_->Append(impl_->HostOf(from), *local, false, path);
    return path;
  }
  if (impl_->UnitOf(from).first_host != impl_->UnitOf(to).first_host)
    return impl_->NetworkPath(from, to);
  Path path;
  for (const int device : {from, to}) {
    const auto& port =
        impl_->GraphOf(device).nvlink_ports()[static_cast<size_t>(impl_->LocalId(device))];
    if (!port) return NotJoined(names[0], names[1], "no NVLink to the domain's switch");
    impl_->Append(impl_->HostOf(device), *port, device == to, path);
  }
  return path;
}

// Adds a way inside a host to the end of a path.
void Cluster::Impl::Append(int host, const LocalPath& part, bool reversed, Path& path) const {
  const HostSpec& spec_of_host = graphs[GroupOfHost(host)]->host();
  std::vector<std::string> hops;
  for (const int node : part.nodes) {
    hops.push_back(fmt::format(
        "host{}/{}", host,
        NodeId(spec_of_host.nodes[static_cast<size_t>(node)], spec_of_host.device.kind)));
  }
  if (reversed) std::reverse(hops.begin(), hops.end());
  path.hops.insert(path.hops.end(), hops.begin(), hops.end());
  const Link& narrowest = spec_of_host.links[static_cast<size_t>(part.narrowest_link)];
  if (path.bandwidth.value() <= 0 || part.bandwidth < path.bandwidth)
    path.narrowest = narrowest.kind;
  KeepNarrower(part.bandwidth, narrowest.bandwidth_source, path.bandwidth, path.source);
  path.latency += part.latency;
}

// From the one device's NIC over its rail, and the spine where the rails differ, to the other's.
Result<Path> Cluster::Impl::NetworkPath(int from, int to) const {
  const std::string names[] = {fmt::format("device {}", from), fmt::format("device {}", to)};
  if (spec.fabric.name.empty()) return NotJoined(names[0], names[1], "the cluster has no fabric");
  Path path;
  path.narrowest = LinkKind::kNetwork;
  std::vector<std::string> hops[2];
  int rails[2];
  for (const int side : {0, 1}) {
    const int device = side == 0 ? from : to;
    const HostGraph& graph = GraphOf(device);
    if (graph.nics().empty()) return NotJoined(names[0], names[1], "no NIC has a network link");
    const LocalNic& nic = graph.nics()[static_cast<size_t>(LocalId(device))];
    KeepNarrower(nic.bandwidth, nic.source, path.bandwidth, path.source);
    path.latency += nic.latency;
    rails[side] = nic.rail;
    hops[side] = {fmt::format("host{}/{}{}", HostOf(device), ToString(graph.host().device.kind),
                              LocalId(device)),
                  fmt::format("host{}/nic{}", HostOf(device), nic.nic),
                  fmt::format("rail{}", nic.rail)};
  }
  path.hops = hops[0];
  if (rails[0] != rails[1]) {
    KeepNarrower(path.bandwidth / spec.fabric.oversubscription, spec.fabric.source, path.bandwidth,
                 path.source);
    path.latency += spec.fabric.spine_latency;
    path.hops.emplace_back("spine");
    path.hops.push_back(hops[1].back());
  }
  hops[1].pop_back();
  path.hops.insert(path.hops.end(), hops[1].rbegin(), hops[1].rend());
  return path;
}

Result<GroupPath> Cluster::Group(std::span<const int> devices) const {
  std::vector<int> members(devices.begin(), devices.end());
  std::sort(members.begin(), members.end());
  if (members.empty()) return InvalidInput("a group without devices");
  const int total = impl_->total_devices();
  if (members.front() < 0 || members.back() >= total) {
    return InvalidInput(fmt::format("group: device {} is not in the cluster's {}",
                                    members.front() < 0 ? members.front() : members.back(), total));
  }
  const auto twice = std::adjacent_find(members.begin(), members.end());
  if (twice != members.end())
    return InvalidInput(fmt::format("group: device {} is listed twice", *twice));
  std::vector<Part> parts;
  for (const int device : members) {
    if (parts.empty() || device >= parts.back().unit.first_device + parts.back().unit.devices) {
      parts.push_back({impl_->UnitOf(device), &impl_->GraphOf(device), {}, {}, {}});
    }
    parts.back().devices.push_back(device);
    parts.back().hosts.push_back(impl_->HostOf(device));
    parts.back().locals.push_back(impl_->LocalId(device));
  }
  GroupPath group;
  group.size = static_cast<int>(members.size());
  group.hosts = static_cast<int>(parts.size());
  group.max_per_host = 0;
  group.min_per_host = group.size;
  Source local_source;
  Source network_source;
  std::optional<std::multiset<int>> rails;
  for (const Part& part : parts) {
    group.max_per_host = std::max(group.max_per_host, static_cast<int>(part.devices.size()));
    group.min_per_host = std::min(group.min_per_host, static_cast<int>(part.devices.size()));
    MW_ASSIGN_OR_RETURN(const LocalGroup local, JoinedLocally(part));
    if (part.devices.size() > 1) {
      if (group.local_bandwidth.value() <= 0 || local.bandwidth < group.local_bandwidth)
        group.local_kind = local.kind;
      KeepNarrower(local.bandwidth, local.source, group.local_bandwidth, local_source);
      group.local_latency = std::max(group.local_latency, local.latency);
    }
    if (parts.size() < 2) continue;
    if (impl_->spec.fabric.name.empty() || part.graph->nics().empty()) {
      return NotJoined(
          fmt::format("host {}", part.hosts.front()), "the other hosts of the group",
          part.graph->nics().empty() ? "no NIC has a network link" : "the cluster has no fabric");
    }
    std::multiset<int> part_rails = AddNetworkPart(part, group, network_source);
    group.same_rail = group.same_rail && (!rails || *rails == part_rails);
    rails = std::move(part_rails);
  }
  if (!group.same_rail) {
    const FabricSpec& fabric = impl_->spec.fabric;
    group.network_latency += fabric.spine_latency;
    group.network_share = group.network_share / fabric.oversubscription;
    KeepNarrower(group.network_bandwidth / fabric.oversubscription, fabric.source,
                 group.network_bandwidth, network_source);
  }
  if (group.max_per_host > 1)
    KeepNarrower(group.local_bandwidth, local_source, group.bandwidth, group.source);
  if (parts.size() > 1)
    KeepNarrower(group.network_bandwidth, network_source, group.bandwidth, group.source);
  group.latency = std::max(group.local_latency, group.network_latency);
  return group;
}

Result<NicChoice> Cluster::NearestNic(int device) const {
  if (device < 0 || device >= impl_->total_devices()) {
    return InvalidInput(
        fmt::format("device {} is not in the cluster's {}", device, impl_->total_devices()));
  }
  const HostGraph& graph = impl_->GraphOf(device);
  if (graph.nics().empty()) {
    return Unsupported(
        fmt::format("device {}: no NIC of host '{}' that it can reach has a network link", device,
                    graph.host().name));
  }
  const LocalNic& nic = graph.nics()[static_cast<size_t>(impl_->LocalId(device))];
  NicChoice choice{nic.nic, {}, nic.sharers, nic.bandwidth, nic.latency};
  for (const Node& node : graph.host().nodes) {
    if (node.kind == NodeKind::kNic && node.index == nic.nic) {
      choice.name = node.name.empty() ? NodeId(node, graph.host().device.kind) : node.name;
    }
  }
  return choice;
}

Result<Cluster> Cluster::WithDevices(int64_t devices) const {
  if (devices < 1) return InvalidInput(fmt::format("{} devices asked for; at least 1", devices));
  if (!is_homogeneous()) {
    if (devices <= device_count()) return *this;
    return InvalidInput(
        fmt::format("cluster '{}' lists {} devices on unlike hosts; {} cannot be had by "
                    "repeating one host: add hosts to its description",
                    name(), device_count(), devices));
  }
  ClusterSpec spec = impl_->spec;
  const int64_t hosts = (devices + min_devices_per_host() - 1) / min_devices_per_host();
  if (hosts > (int64_t{1} << 24))
    return InvalidInput(fmt::format("{} devices are too many", devices));
  spec.hosts[0].count = static_cast<int>(hosts);
  return Make(std::move(spec));
}

uint64_t Cluster::Fingerprint() const {
  ClusterSpec spec = impl_->spec;
  spec.name.clear();
  spec.description.clear();
  uint64_t hash = 14695981039346656037ULL;  // FNV-1a
  for (const char c : ToYaml(spec)) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 1099511628211ULL;
  }
  return hash;
}

}  // namespace meshwright::topologies
