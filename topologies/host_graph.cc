#include "topologies/host_graph.h"

#include <algorithm>
#include <boost/graph/breadth_first_search.hpp>
#include <boost/graph/connected_components.hpp>
#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <boost/graph/edmonds_karp_max_flow.hpp>
#include <boost/graph/filtered_graph.hpp>
#include <functional>
#include <limits>
#include <utility>

namespace meshwright::topologies {
namespace {

constexpr size_t kMaxRemembered = 100'000;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// For max flow: each edge has a reverse edge.
using FlowTraits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
using FlowGraph = boost::adjacency_list<
    boost::vecS, boost::vecS, boost::directedS, boost::no_property,
    boost::property<
        boost::edge_capacity_t, double,
        boost::property<boost::edge_residual_capacity_t, double,
                        boost::property<boost::edge_reverse_t, FlowTraits::edge_descriptor>>>>;

void AddFlowEdge(FlowGraph& graph, int a, int b, double forward, double backward) {
  const auto there = boost::add_edge(static_cast<size_t>(a), static_cast<size_t>(b), graph).first;
  const auto back = boost::add_edge(static_cast<size_t>(b), static_cast<size_t>(a), graph).first;
  boost::put(boost::edge_capacity, graph, there, forward);
  boost::put(boost::edge_capacity, graph, back, backward);
  boost::put(boost::edge_reverse, graph, there, back);
  boost::put(boost::edge_reverse, graph, back, there);
}

// Keeps the edges of at least a width.
template <typename Graph>
struct AtLeast {
  const Graph* graph = nullptr;
  double bandwidth = 0;
  bool operator()(const typename Graph::edge_descriptor& edge) const {
    return (*graph)[edge].bandwidth >= bandwidth;
  }
};

}  // namespace

HostGraph::HostGraph(const HostSpec& host)
    : host_(host), nvlink_(host.nodes.size()), other_(host.nodes.size()) {
  for (size_t i = 0; i < host_.nodes.size(); ++i) {
    if (host_.nodes[i].kind == NodeKind::kDevice) devices_.push_back(static_cast<int>(i));
    if (host_.nodes[i].kind == NodeKind::kNic) nic_nodes_.push_back(static_cast<int>(i));
  }
  for (size_t i = 0; i < host_.links.size(); ++i) {
    const Link& link = host_.links[i];
    if (link.kind == LinkKind::kNetwork) continue;
    Graph& graph = link.kind == LinkKind::kNvlink ? nvlink_ : other_;
    const auto a = static_cast<size_t>(link.a);
    const auto b = static_cast<size_t>(link.b);
    const int index = static_cast<int>(i);
    boost::add_edge(a, b, Edge{index, link.forward.value(), link.latency.value()}, graph);
    boost::add_edge(b, a, Edge{index, link.backward.value(), link.latency.value()}, graph);
  }
  FindIslands();
  FindNvlinkPorts();
  AssignNics();
}

void HostGraph::FindIslands() {
  std::vector<int> component(host_.nodes.size());
  boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS> joined(host_.nodes.size());
  for (const Link& link : host_.links) {
    if (link.kind == LinkKind::kNvlink) {
      boost::add_edge(static_cast<size_t>(link.a), static_cast<size_t>(link.b), joined);
    }
  }
  boost::connected_components(joined, component.data());
  std::map<int, size_t> island_of;
  for (int local = 0; local < devices(); ++local) {
    const int id = component[static_cast<size_t>(devices_[static_cast<size_t>(local)])];
    const auto [it, added] = island_of.emplace(id, islands_.size());
    if (added) islands_.emplace_back();
    islands_[it->second].push_back(local);
  }
}

// Bandwidth of the widest path to every node; 0 where there is none.
std::vector<double> HostGraph::Widths(const Graph& graph, int from) const {
  std::vector<double> width(boost::num_vertices(graph), 0);
  boost::dijkstra_shortest_paths(
      graph, static_cast<size_t>(from),
      boost::weight_map(boost::get(&Edge::bandwidth, graph))
          .distance_map(width.data())
          .distance_compare(std::greater<>())
          .distance_combine([](double a, double b) { return std::min(a, b); })
          .distance_inf(0.0)
          .distance_zero(kInfinity));
  return width;
}

// Widest first, then lowest latency among the widest. Two searches, since the lexicographic order
// alone is not kept when paths grow.
std::optional<LocalPath> HostGraph::PathBetween(const Graph& graph, int from, int to) const {
  const double widest = Widths(graph, from)[static_cast<size_t>(to)];
  if (widest <= 0) return std::nullopt;
  std::vector<size_t> parent(boost::num_vertices(graph));
  std::vector<double> latency(boost::num_vertices(graph));
  const auto wide = boost::make_filtered_graph(graph, AtLeast<Graph>{&graph, widest});
  boost::dijkstra_shortest_paths(wide, static_cast<size_t>(from),
                                 boost::weight_map(boost::get(&Edge::latency, wide))
                                     .predecessor_map(parent.data())
                                     .distance_map(latency.data()));
  LocalPath path;
  path.bandwidth = BytesPerSecond(widest);
  path.latency = Seconds(latency[static_cast<size_t>(to)]);
  for (auto node = static_cast<size_t>(to); node != static_cast<size_t>(from);
       node = parent[node]) {
    path.nodes.push_back(static_cast<int>(node));
    for (const auto& edge : boost::make_iterator_range(boost::out_edges(parent[node], graph))) {
      if (boost::target(edge, graph) != node || graph[edge].bandwidth < widest) continue;
      if (graph[edge].bandwidth == widest) path.narrowest_link = graph[edge].link;
    }
  }
  path.nodes.push_back(from);
  std::reverse(path.nodes.begin(), path.nodes.end());
  return path;
}

// Betters the pairs of a row by the paths of one graph; one latency search for each width.
void HostGraph::AddPairs(const Graph& graph, int from, std::vector<LocalPair>& row) const {
  const std::vector<double> width = Widths(graph, from);
  std::map<double, std::vector<double>> latency_at;
  for (size_t to = 0; to < row.size(); ++to) {
    const auto node = static_cast<size_t>(devices_[to]);
    if (static_cast<int>(node) == from || width[node] <= row[to].bandwidth.value()) continue;
    auto [it, added] = latency_at.try_emplace(width[node]);
    if (added) {
      it->second.resize(boost::num_vertices(graph));
      const auto wide = boost::make_filtered_graph(graph, AtLeast<Graph>{&graph, width[node]});
      boost::dijkstra_shortest_paths(
          wide, static_cast<size_t>(from),
          boost::weight_map(boost::get(&Edge::latency, wide)).distance_map(it->second.data()));
    }
    row[to] = {BytesPerSecond(width[node]), Seconds(it->second[node])};
  }
}

const LocalPair& HostGraph::Pair(int from, int to) const {
  std::call_once(pairs_once_, [this] {
    pairs_.assign(devices_.size(), std::vector<LocalPair>(devices_.size()));
    for (size_t i = 0; i < devices_.size(); ++i) {
      AddPairs(nvlink_, devices_[i], pairs_[i]);
      AddPairs(other_, devices_[i], pairs_[i]);
    }
  });
  return pairs_[static_cast<size_t>(from)][static_cast<size_t>(to)];
}

std::optional<LocalPath> HostGraph::WidestPath(int from, int to) const {
  const int a = devices_[static_cast<size_t>(from)];
  const int b = devices_[static_cast<size_t>(to)];
  const std::optional<LocalPath> nvlink = PathBetween(nvlink_, a, b);
  std::optional<LocalPath> other = PathBetween(other_, a, b);
  if (!nvlink) return other;
  return !other || nvlink->bandwidth >= other->bandwidth ? nvlink : other;
}

void HostGraph::FindNvlinkPorts() {
  if (host_.nvlink_domain_hosts < 2) return;
  const auto is_switch = [](const Node& node) { return node.kind == NodeKind::kNvlinkSwitch; };
  const auto at = std::find_if(host_.nodes.begin(), host_.nodes.end(), is_switch);
  for (const int device : devices_) {
    nvlink_ports_.push_back(
        PathBetween(nvlink_, device, static_cast<int>(at - host_.nodes.begin())));
  }
}

// Without passing through GPUs that are not members.
bool HostGraph::JoinedByNvlink(const std::vector<int>& members) const {
  std::vector<bool> usable(host_.nodes.size(), false);
  for (size_t i = 0; i < host_.nodes.size(); ++i)
    usable[i] = host_.nodes[i].kind == NodeKind::kNvlinkSwitch;
  for (const int local : members)
    usable[static_cast<size_t>(devices_[static_cast<size_t>(local)])] = true;
  std::vector<bool> seen(host_.nodes.size(), false);
  std::vector<size_t> queue{static_cast<size_t>(devices_[static_cast<size_t>(members[0])])};
  seen[queue[0]] = true;
  for (size_t k = 0; k < queue.size(); ++k) {
    for (const auto& edge : boost::make_iterator_range(boost::out_edges(queue[k], nvlink_))) {
      const size_t next = boost::target(edge, nvlink_);
      if (seen[next] || !usable[next]) continue;
      seen[next] = true;
      queue.push_back(next);
    }
  }
  return std::all_of(members.begin(), members.end(), [&](int local) {
    return seen[static_cast<size_t>(devices_[static_cast<size_t>(local)])];
  });
}

// Smallest capacity, each way, of the edges that part the members; over members and switches.
std::optional<double> HostGraph::MinCut(const std::vector<int>& members, bool nvlink_only,
                                        Source* source) const {
  std::vector<bool> usable(host_.nodes.size(), false);
  for (size_t i = 0; i < host_.nodes.size(); ++i) {
    usable[i] = host_.nodes[i].kind != NodeKind::kDevice && host_.nodes[i].kind != NodeKind::kNic;
  }
  for (const int local : members)
    usable[static_cast<size_t>(devices_[static_cast<size_t>(local)])] = true;
  FlowGraph flow(host_.nodes.size());
  const Link* narrowest = nullptr;
  for (const Link& link : host_.links) {
    const bool wanted =
        link.kind == LinkKind::kNvlink || (!nvlink_only && link.kind != LinkKind::kNetwork);
    if (!wanted || !usable[static_cast<size_t>(link.a)] || !usable[static_cast<size_t>(link.b)])
      continue;
    AddFlowEdge(flow, link.a, link.b, link.forward.value(), link.backward.value());
  }
  double cut = kInfinity;
  size_t cut_side = 0;
  const auto node = [&](size_t i) {
    return static_cast<size_t>(devices_[static_cast<size_t>(members[i])]);
  };
  std::vector<bool> inside(host_.nodes.size(), false);
  for (size_t i = 1; i < members.size(); ++i) {
    for (const auto& [from, to] : {std::pair(node(0), node(i)), std::pair(node(i), node(0))}) {
      const double value = boost::edmonds_karp_max_flow(flow, from, to);
      if (value >= cut) continue;
      cut = value;
      cut_side = from;
      // Nodes still reachable over residual capacity are the source side of the cut.
      std::fill(inside.begin(), inside.end(), false);
      std::vector<size_t> queue{cut_side};
      inside[cut_side] = true;
      for (size_t k = 0; k < queue.size(); ++k) {
        for (const auto& edge : boost::make_iterator_range(boost::out_edges(queue[k], flow))) {
          const size_t next = boost::target(edge, flow);
          if (inside[next] || boost::get(boost::edge_residual_capacity, flow, edge) <= 0) continue;
          inside[next] = true;
          queue.push_back(next);
        }
      }
    }
  }
  if (cut <= 0) return std::nullopt;
  for (const Link& link : host_.links) {
    const bool wanted =
        link.kind == LinkKind::kNvlink || (!nvlink_only && link.kind != LinkKind::kNetwork);
    if (!wanted || !usable[static_cast<size_t>(link.a)] || !usable[static_cast<size_t>(link.b)])
      continue;
    if (inside[static_cast<size_t>(link.a)] == inside[static_cast<size_t>(link.b)]) continue;
    if (narrowest == nullptr || link.forward < narrowest->forward) narrowest = &link;
  }
  if (narrowest != nullptr) *source = narrowest->bandwidth_source;
  return cut;
}

std::optional<LocalGroup> HostGraph::Group(std::vector<int> members) const {
  std::sort(members.begin(), members.end());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = groups_.find(members);
    if (it != groups_.end()) return it->second;
  }
  std::optional<LocalGroup> group;
  const bool nvlink = JoinedByNvlink(members);
  LocalGroup found;
  if (const auto cut = MinCut(members, nvlink, &found.source)) {
    found.bandwidth = BytesPerSecond(*cut);
    found.kind = nvlink                                  ? LinkKind::kNvlink
                 : host_.device.kind == DeviceKind::kCpu ? LinkKind::kSharedMemory
                                                         : LinkKind::kPcie;
    for (size_t i = 0; i < members.size(); ++i) {
      for (size_t j = i + 1; j < members.size(); ++j) {
        found.latency = std::max(found.latency, Pair(members[i], members[j]).latency);
      }
    }
    group = found;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (groups_.size() >= kMaxRemembered) groups_.clear();
  groups_.emplace(std::move(members), group);
  return group;
}

// How near each NIC is, by what the way with the fewest hops passes.
std::vector<std::optional<Nearness>> HostGraph::NearnessOfNics(int device_node) const {
  std::vector<size_t> parent(host_.nodes.size());
  for (size_t i = 0; i < parent.size(); ++i) parent[i] = i;
  boost::breadth_first_search(other_, static_cast<size_t>(device_node),
                              boost::visitor(boost::make_bfs_visitor(boost::record_predecessors(
                                  parent.data(), boost::on_tree_edge()))));
  std::vector<std::optional<Nearness>> result;
  for (const int nic : nic_nodes_) {
    std::map<NodeKind, int> passed;
    auto node = static_cast<size_t>(nic);
    for (; parent[node] != node; node = parent[node]) ++passed[host_.nodes[node].kind];
    if (node != static_cast<size_t>(device_node)) {
      result.emplace_back();
    } else if (passed[NodeKind::kHost] > 0) {
      result.emplace_back(Nearness::kSockets);
    } else if (passed[NodeKind::kNumaNode] > 0) {
      result.emplace_back(Nearness::kNumaNode);
    } else if (passed[NodeKind::kHostBridge] > 0) {
      result.emplace_back(Nearness::kHostBridge);
    } else {
      result.emplace_back(passed[NodeKind::kPcieSwitch] > 1 ? Nearness::kSwitches
                                                            : Nearness::kOneSwitch);
    }
  }
  return result;
}

// Devices and the equally near NICs of each are matched one to one; where NICs are fewer, each
// takes one device more at a time. Devices are served in order and take the first free NIC.
void HostGraph::AssignNics() {
  std::vector<int> rail(nic_nodes_.size(), -1);
  std::vector<const Link*> port(nic_nodes_.size(), nullptr);
  for (const Link& link : host_.links) {
    if (link.kind != LinkKind::kNetwork) continue;
    const bool a_is_nic = host_.nodes[static_cast<size_t>(link.a)].kind == NodeKind::kNic;
    const Node& nic = host_.nodes[static_cast<size_t>(a_is_nic ? link.a : link.b)];
    rail[static_cast<size_t>(nic.index)] =
        host_.nodes[static_cast<size_t>(a_is_nic ? link.b : link.a)].index;
    port[static_cast<size_t>(nic.index)] = &link;
  }
  std::vector<std::vector<int>> near(devices_.size());
  for (size_t d = 0; d < devices_.size(); ++d) {
    const auto nearness = NearnessOfNics(devices_[d]);
    std::optional<Nearness> best;
    for (size_t n = 0; n < nic_nodes_.size(); ++n) {
      if (port[n] == nullptr || !nearness[n] || (best && *nearness[n] > *best)) continue;
      if (best && *nearness[n] < *best) near[d].clear();
      best = *nearness[n];
      near[d].push_back(static_cast<int>(n));
    }
    if (near[d].empty()) return;  // a device without way to the network: nobody has one
  }
  std::vector<int> taken(nic_nodes_.size(), 0);
  std::vector<int> choice(devices_.size(), -1);
  std::vector<bool> visited;
  for (int capacity = 1; std::count(choice.begin(), choice.end(), -1) > 0; ++capacity) {
    const std::function<bool(size_t)> place = [&](size_t d) {
      for (const int n : near[d]) {
        if (taken[static_cast<size_t>(n)] >= capacity) continue;
        ++taken[static_cast<size_t>(n)];
        choice[d] = n;
        return true;
      }
      for (const int n : near[d]) {
        if (visited[static_cast<size_t>(n)]) continue;
        visited[static_cast<size_t>(n)] = true;
        for (size_t other = 0; other < choice.size(); ++other) {
          if (choice[other] != n || other == d || !place(other)) continue;
          choice[d] = n;  // `other` moved on and left its place
          return true;
        }
      }
      return false;
    };
    for (size_t d = 0; d < devices_.size(); ++d) {
      visited.assign(nic_nodes_.size(), false);
      if (choice[d] < 0) place(d);
    }
  }
  for (size_t d = 0; d < devices_.size(); ++d) {
    const auto n = static_cast<size_t>(choice[d]);
    const auto path = PathBetween(other_, devices_[d], nic_nodes_[n]);
    MW_CHECK(path.has_value());
    const BytesPerSecond rate = std::min(port[n]->forward, port[n]->backward);
    LocalNic nic{choice[d],
                 rail[n],
                 taken[n],
                 std::min(path->bandwidth, rate),
                 path->latency + port[n]->latency,
                 {}};
    nic.source = path->bandwidth < rate
                     ? host_.links[static_cast<size_t>(path->narrowest_link)].bandwidth_source
                     : port[n]->bandwidth_source;
    nics_.push_back(std::move(nic));
  }
}

}  // namespace meshwright::topologies
