// The Boost graph of one kind of host, and questions inside that host. Used by Cluster only.
#pragma once

#include <boost/graph/adjacency_list.hpp>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "topologies/host.h"

namespace meshwright::topologies {

/// A way through the host; `nodes` are positions in HostSpec::nodes.
struct LocalPath {
  BytesPerSecond bandwidth;
  Seconds latency;
  std::vector<int> nodes;
  int narrowest_link = -1;  ///< in HostSpec::links
};

/// Widest path between two devices, without its nodes; bandwidth 0 if there is none.
struct LocalPair {
  BytesPerSecond bandwidth;
  Seconds latency;
  friend bool operator==(const LocalPair&, const LocalPair&) = default;
};

/// What a set of devices of one host has together.
struct LocalGroup {
  BytesPerSecond bandwidth;  ///< min cut between members, each way
  Seconds latency;           ///< of the slowest pair
  LinkKind kind = LinkKind::kNvlink;
  Source source;
};

/// How near a device and a NIC are, nearest first.
enum class Nearness { kOneSwitch, kSwitches, kHostBridge, kNumaNode, kSockets };

struct LocalNic {
  int nic = -1;   ///< local index
  int rail = -1;  ///< index of the network switch; -1 if the NIC has no network link
  int sharers = 1;
  BytesPerSecond bandwidth;  ///< device to network
  Seconds latency;           ///< device to rail
  Source source;             ///< of the narrowest part
};

class HostGraph {
 public:
  explicit HostGraph(const HostSpec& host);

  const HostSpec& host() const { return host_; }
  int devices() const { return static_cast<int>(devices_.size()); }

  /// Connected components of NVLink over devices, as sorted local ids; single devices included.
  const std::vector<std::vector<int>>& islands() const { return islands_; }

  /// The wider of the NVLink path (which may pass through GPUs) and the path without NVLink.
  std::optional<LocalPath> WidestPath(int from, int to) const;
  /// Bandwidth and latency of `WidestPath`, from a table made on the first call.
  const LocalPair& Pair(int from, int to) const;
  /// From each device to the NVLink switch; empty unless hosts share an NVLink domain.
  const std::vector<std::optional<LocalPath>>& nvlink_ports() const { return nvlink_ports_; }
  /// For two and more distinct devices; none if they are not joined. Remembered.
  std::optional<LocalGroup> Group(std::vector<int> members) const;
  /// The NIC given to each device; empty if no NIC has a network link.
  const std::vector<LocalNic>& nics() const { return nics_; }

 private:
  struct Edge {
    int link = 0;
    double bandwidth = 0;
    double latency = 0;
  };
  using Graph =
      boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property, Edge>;

  void FindIslands();
  void FindNvlinkPorts();
  void AssignNics();
  std::optional<LocalPath> PathBetween(const Graph& graph, int from, int to) const;
  std::vector<double> Widths(const Graph& graph, int from) const;
  void AddPairs(const Graph& graph, int from, std::vector<LocalPair>& row) const;
  std::vector<std::optional<Nearness>> NearnessOfNics(int device_node) const;
  bool JoinedByNvlink(const std::vector<int>& members) const;
  std::optional<double> MinCut(const std::vector<int>& members, bool nvlink_only,
                               Source* source) const;

  HostSpec host_;
  Graph nvlink_;  ///< NVLink only
  Graph other_;   ///< everything but NVLink and network; devices and NICs are its leaves
  std::vector<int> devices_;  ///< node of each local device
  std::vector<int> nic_nodes_;
  std::vector<std::vector<int>> islands_;
  std::vector<LocalNic> nics_;
  std::vector<std::optional<LocalPath>> nvlink_ports_;
  mutable std::once_flag pairs_once_;
  mutable std::vector<std::vector<LocalPair>> pairs_;
  mutable std::mutex mutex_;
  mutable std::map<std::vector<int>, std::optional<LocalGroup>> groups_;
};

}  // namespace meshwright::topologies
