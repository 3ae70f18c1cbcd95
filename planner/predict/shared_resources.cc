#include "planner/predict/shared_resources.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace meshwright::planner {
namespace {

using Of = ResourceUse::Of;

constexpr int32_t kWhole = 1000;  // one link, or the memory of one host, in thousandths

/// Groups of every channel; a group of n ranks is listed by the first of them.
std::vector<std::vector<int32_t>> GroupsOfChannels(const Programs& programs,
                                                   const RankClasses& classes,
                                                   const Channels& channels) {
  std::vector<std::vector<int32_t>> groups(channels.channels.size());
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    const auto c = static_cast<size_t>(classes.class_of[r]);
    const std::vector<int32_t>& own = programs.ranks[r].groups;
    for (size_t l = 0; l < own.size(); ++l) {
      const Group& group = programs.groups[static_cast<size_t>(own[l])];
      if (group.ranks.empty() || group.ranks.front() != static_cast<int32_t>(r)) continue;
      groups[static_cast<size_t>(channels.of[c][l])].push_back(own[l]);
    }
  }
  return groups;
}

/// Load of one resource by user (class or channel).
using Loads = std::map<int32_t, double>;

/// Adds one resource for every distinct load and lists it with its users.
class ResourceTable {
 public:
  ResourceTable(std::vector<std::vector<ResourceUse>>* users, cost::TaskGraph* graph)
      : users_(*users), graph_(*graph) {}

  void Add(Of of, const Loads& loads, int32_t capacity_milli) {
    if (!known_.emplace(of, capacity_milli, loads).second) return;
    const cost::ResourceId id = graph_.AddResource(capacity_milli);
    for (const auto& [user, load] : loads) {
      users_[static_cast<size_t>(user)].push_back({of, id, load});
    }
  }

 private:
  std::vector<std::vector<ResourceUse>>& users_;
  cost::TaskGraph& graph_;
  std::set<std::tuple<Of, int32_t, Loads>> known_;
};

/// Cores and memory of every host. Ops of classes and rendezvous of channels share them.
void AddHosts(const Programs& programs, const RankClasses& classes,
              const std::vector<std::vector<int32_t>>& groups, const Prices& prices,
              SharedResources* shared, cost::TaskGraph* graph) {
  const auto class_count = static_cast<int32_t>(classes.members.size());
  std::map<int, Loads> hosts;  // users: classes, then channels
  for (size_t r = 0; r < classes.class_of.size(); ++r) {
    hosts[prices.cluster().HostOf(prices.DeviceOf(static_cast<int32_t>(r)))][classes.class_of[r]] +=
        1;
  }
  for (size_t channel = 0; channel < groups.size(); ++channel) {
    for (const int32_t g : groups[channel]) {
      const int32_t first = programs.groups[static_cast<size_t>(g)].ranks.front();
      const int host = prices.cluster().HostOf(prices.DeviceOf(first));
      hosts[host][class_count + static_cast<int32_t>(channel)] += 1;
    }
  }
  std::vector<std::vector<ResourceUse>> users(classes.members.size() + groups.size());
  ResourceTable table(&users, graph);
  for (const auto& [host, loads] : hosts) {
    const int cores = prices.cluster().HostSpecOf(host).device.cores;
    table.Add(Of::kCore, loads, std::max(cores, 1) * 1000);
    table.Add(Of::kMemory, loads, kWhole);
  }
  for (size_t u = 0; u < users.size(); ++u) {
    auto& target = u < classes.members.size() ? shared->of_class[u]
                                              : shared->of_channel[u - classes.members.size()];
    target.insert(target.end(), users[u].begin(), users[u].end());
  }
}

/// A directed link of a host (index 2 i or 2 i + 1 for its two directions), or a NIC (out, in).
struct LinkId {
  Of of = Of::kLocalLink;
  int host = 0;
  int index = 0;
  auto operator<=>(const LinkId&) const = default;
};

/// Finds the links that groups of GPUs use.
class LinkFinder {
 public:
  explicit LinkFinder(const Prices& prices) : prices_(prices), cluster_(prices.cluster()) {}

  /// Share of each link that one group takes at full speed.
  Result<std::map<LinkId, double>> UseOf(const Group& group) {
    MW_ASSIGN_OR_RETURN(const cost::PathFacts path, prices_.PathOf(group.ranks));
    std::map<LinkId, double> use;
    std::vector<int> devices;
    for (const int32_t r : group.ranks) devices.push_back(prices_.DeviceOf(r));
    const bool one_way = group.kind == CommunicatorKind::kEdge;
    if (path.hosts > 1) MW_RETURN_IF_ERROR(AddNics(devices, one_way, &use));
    if (path.ranks_per_host > 1) {
      MW_RETURN_IF_ERROR(AddRing(devices, one_way, path.local_bandwidth, &use));
    }
    for (auto& [id, share] : use) share = std::min(share, 1.0);
    return use;
  }

 private:
  Status AddNics(const std::vector<int>& devices, bool one_way, std::map<LinkId, double>* use) {
    for (size_t i = 0; i < devices.size(); ++i) {
      const int host = cluster_.HostOf(devices[i]);
      MW_ASSIGN_OR_RETURN(const topologies::NicChoice nic, cluster_.NearestNic(devices[i]));
      const bool sends = !one_way || i == 0;
      const bool receives = !one_way || i + 1 == devices.size();
      if (sends) (*use)[{Of::kNetwork, host, 2 * nic.nic}] = 1.0;
      if (receives) (*use)[{Of::kNetwork, host, 2 * nic.nic + 1}] = 1.0;
    }
    return Status::Ok();
  }

  /// Steps of the ring that stay inside a host or NVLink domain.
  Status AddRing(const std::vector<int>& devices, bool one_way, BytesPerSecond bandwidth,
                 std::map<LinkId, double>* use) {
    const size_t steps = one_way ? 1 : devices.size();
    for (size_t i = 0; i < steps; ++i) {
      const int from = devices[i];
      const int to = NextInHost(devices, i);
      if (to == from) continue;
      MW_ASSIGN_OR_RETURN(const std::vector<LinkStep> links, Links(from, to));
      for (const LinkStep& link : links) (*use)[link.id] += bandwidth / link.bandwidth;
    }
    return Status::Ok();
  }

  /// The next member, in ring order, on the same host; itself when it is alone there.
  int NextInHost(const std::vector<int>& devices, size_t i) const {
    for (size_t k = 1; k < devices.size(); ++k) {
      const int next = devices[(i + k) % devices.size()];
      if (cluster_.HostOf(next) == cluster_.HostOf(devices[i])) return next;
    }
    return devices[i];
  }

  struct LinkStep {
    LinkId id;
    BytesPerSecond bandwidth;
  };

  /// Directed links on the widest path between two devices of one host.
  Result<std::vector<LinkStep>> Links(int from, int to) {
    const int host = cluster_.HostOf(from);
    const topologies::HostSpec& spec = cluster_.HostSpecOf(host);
    const auto key = std::make_tuple(&spec, cluster_.LocalId(from), cluster_.LocalId(to));
    auto known = paths_.find(key);
    if (known == paths_.end()) {
      MW_ASSIGN_OR_RETURN(const topologies::Path path, cluster_.WidestPath(from, to));
      known = paths_.emplace(key, LinksOf(spec, host, path.hops)).first;
    }
    std::vector<LinkStep> links = known->second;
    for (LinkStep& link : links) link.id.host = host;
    return links;
  }

  static std::vector<LinkStep> LinksOf(const topologies::HostSpec& spec, int host,
                                       const std::vector<std::string>& hops) {
    std::map<std::pair<std::string, std::string>, LinkStep> by_ends;
    const auto name = [&](int node) {
      return fmt::format("host{}/{}", host,
                         NodeId(spec.nodes[static_cast<size_t>(node)], spec.device.kind));
    };
    for (size_t l = 0; l < spec.links.size(); ++l) {
      const topologies::Link& link = spec.links[l];
      const int index = 2 * static_cast<int>(l);
      by_ends[{name(link.a), name(link.b)}] = {{Of::kLocalLink, host, index}, link.forward};
      by_ends[{name(link.b), name(link.a)}] = {{Of::kLocalLink, host, index + 1}, link.backward};
    }
    std::vector<LinkStep> links;
    for (size_t i = 0; i + 1 < hops.size(); ++i) {
      const auto found = by_ends.find({hops[i], hops[i + 1]});
      if (found != by_ends.end() && found->second.bandwidth.value() > 0) {
        links.push_back(found->second);
      }
    }
    return links;
  }

  const Prices& prices_;
  const topologies::Cluster& cluster_;
  std::map<std::tuple<const topologies::HostSpec*, int, int>, std::vector<LinkStep>> paths_;
};

Status AddLinks(const Programs& programs, const std::vector<std::vector<int32_t>>& groups,
                const Prices& prices, SharedResources* shared, cost::TaskGraph* graph) {
  std::map<LinkId, Loads> links;
  LinkFinder finder(prices);
  for (size_t channel = 0; channel < groups.size(); ++channel) {
    for (const int32_t g : groups[channel]) {
      const Group& group = programs.groups[static_cast<size_t>(g)];
      // The world group carries a few bytes a step.
      if (group.kind == CommunicatorKind::kWorld || group.ranks.size() < 2) continue;
      MW_ASSIGN_OR_RETURN(const auto use, finder.UseOf(group));
      for (const auto& [id, share] : use) links[id][static_cast<int32_t>(channel)] += share;
    }
  }
  ResourceTable table(&shared->of_channel, graph);
  for (const auto& [id, loads] : links) {
    double total = 0.0;
    for (const auto& [channel, load] : loads) total += load;
    if (total > 1.0 + 1e-9) table.Add(id.of, loads, kWhole);
  }
  return Status::Ok();
}

/// The GPU of every class that communicates: its compute ops and the channels of its members.
void AddDevices(const Programs& programs, const RankClasses& classes,
                const std::vector<std::vector<int32_t>>& groups, SharedResources* shared,
                cost::TaskGraph* graph) {
  std::vector<std::set<int32_t>> classes_of(groups.size());
  std::set<int32_t> communicate;
  for (size_t channel = 0; channel < groups.size(); ++channel) {
    for (const int32_t g : groups[channel]) {
      const Group& group = programs.groups[static_cast<size_t>(g)];
      // The world group carries a few bytes a step.
      if (group.kind == CommunicatorKind::kWorld || group.ranks.size() < 2) continue;
      for (const int32_t r : group.ranks) {
        classes_of[channel].insert(classes.class_of[static_cast<size_t>(r)]);
      }
    }
    communicate.insert(classes_of[channel].begin(), classes_of[channel].end());
  }
  std::map<int32_t, cost::ResourceId> device;
  for (const int32_t c : communicate) {
    device[c] = graph->AddResource(kWhole);
    shared->of_class[static_cast<size_t>(c)].push_back({Of::kDevice, device[c], 1.0});
  }
  for (size_t channel = 0; channel < groups.size(); ++channel) {
    for (const int32_t c : classes_of[channel]) {
      shared->of_channel[channel].push_back({Of::kDevice, device[c], 1.0});
    }
  }
}

}  // namespace

Result<SharedResources> AddSharedResources(const Programs& programs, const RankClasses& classes,
                                           const Channels& channels, const Prices& prices,
                                           cost::TaskGraph* graph) {
  SharedResources shared;
  shared.of_class.resize(classes.members.size());
  shared.of_channel.resize(channels.channels.size());
  const auto groups = GroupsOfChannels(programs, classes, channels);
  if (prices.on_cpu()) {
    AddHosts(programs, classes, groups, prices, &shared, graph);
  } else {
    MW_RETURN_IF_ERROR(AddLinks(programs, groups, prices, &shared, graph));
    if (prices.model().profile().gpu->beside_communication.value > 0) {
      AddDevices(programs, classes, groups, &shared, graph);
    }
  }
  return shared;
}

void AddDemands(const std::vector<ResourceUse>& uses, const NodePrice& price, cost::NodeId node,
                cost::TaskGraph* graph) {
  for (const ResourceUse& use : uses) {
    int32_t milli = 0;
    switch (use.of) {
      case Of::kCore:
        milli = price.core_milli;
        break;
      case Of::kDevice:
        milli = price.device_milli;
        break;
      case Of::kMemory:
        milli = price.memory_milli;
        break;
      case Of::kLocalLink:
        milli = price.local_milli;
        break;
      case Of::kNetwork:
        milli = price.network_milli;
        break;
    }
    graph->AddDemand(node, use.resource, static_cast<int32_t>(std::lround(milli * use.factor)));
  }
}

}  // namespace meshwright::planner
