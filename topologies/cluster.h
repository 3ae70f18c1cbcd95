// A cluster: a graph of hosts and network, and the questions that planner and cost models ask it.
// One host graph is kept per kind of host, so 4096 equal hosts cost what one does.
//
// Device ids are global: host h of the cluster (counting through the host groups) owns a
// contiguous range; `local` ids count from 0 inside a host.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topologies/host.h"
#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::topologies {

/// A way between two devices.
struct Path {
  BytesPerSecond bandwidth;       ///< of the narrowest edge, from the first device to the second
  Seconds latency;                ///< sum over the edges
  std::vector<std::string> hops;  ///< node ids, both ends included; hosts as "host3/gpu0"
  LinkKind narrowest = LinkKind::kPcie;
  Source source;  ///< of the narrowest edge's bandwidth
};

/// What a group of devices has to communicate with. Hosts that share an NVLink domain count as one.
struct GroupPath {
  int size = 1;
  int hosts = 1;
  int max_per_host = 1;
  int min_per_host = 1;
  bool same_rail = true;  ///< every host's members use the same rails
  /// Each way, in and out of one member, inside the narrowest host part (min cut of the links that
  /// join the members: what rings over them can carry). 0 if no host holds two members.
  BytesPerSecond local_bandwidth;
  Seconds local_latency;
  LinkKind local_kind = LinkKind::kNvlink;
  /// Each way, in and out of one host's members together, if nobody else uses their NICs. 0 on one
  /// host or inside one NVLink domain.
  BytesPerSecond network_bandwidth;
  /// Each way, per device, when every device of the host talks at once (NICs shared evenly).
  BytesPerSecond network_share;
  Seconds network_latency;
  /// The bottleneck: the smaller of the two, and the larger latency. Both 0 for one member.
  BytesPerSecond bandwidth;
  Seconds latency;
  Source source;  ///< of the bottleneck's bandwidth
};

/// The NIC that a device uses for the network.
struct NicChoice {
  int nic = -1;              ///< local NIC index
  std::string name;          ///< "mlx5_0"
  int sharers = 1;           ///< devices of the host that were given this NIC
  BytesPerSecond bandwidth;  ///< each way from device to network when it has the NIC alone
  Seconds latency;           ///< device to NIC
};

/// Which device each rank uses.
struct Placement {
  std::vector<int> device_of_rank;   ///< global device ids
  std::vector<std::string> reasons;  ///< one sentence a level, for people
};

class Cluster {
 public:
  /// Compiles a spec. Errors of `Validate`.
  static Result<Cluster> Make(ClusterSpec spec);

  const ClusterSpec& spec() const;
  const std::string& name() const { return spec().name; }
  const std::vector<std::string>& warnings() const { return spec().warnings; }

  int64_t device_count() const;
  int host_count() const;
  /// Devices of the host with the fewest / the most.
  int min_devices_per_host() const;
  int max_devices_per_host() const;
  bool is_homogeneous() const { return spec().hosts.size() == 1; }

  int HostOf(int device) const;
  int LocalId(int device) const;
  int FirstDeviceOf(int host) const;
  const HostSpec& HostSpecOf(int host) const;
  const DeviceInfo& Device(int device) const;

  /// Connected components of NVLink inside one host, as sorted global device ids; devices without
  /// NVLink are islands of one. All devices of an NVLink domain of several hosts are one island.
  std::vector<std::vector<int>> NvlinkIslands(int host) const;

  /// The widest path (largest narrowest edge, then lowest latency) between two devices of any
  /// hosts. Unsupported when no link joins them (hosts without network).
  Result<Path> WidestPath(int from, int to) const;

  /// Bandwidth and latency that a group of distinct devices shares. kUnsupported when the members
  /// are not joined; kInvalidInput for ids out of range or listed twice.
  Result<GroupPath> Group(std::span<const int> devices) const;

  /// The device's NIC: of the nearest class, spread one-to-one over the devices that are equally
  /// near (a device never takes a neighbour's NIC while its switch has a free one). kUnsupported if
  /// no NIC that it can reach has a network link.
  Result<NicChoice> NearestNic(int device) const;

  /// Best devices for ranks 0 … product(group_sizes)-1. `group_sizes` lists nested blocks,
  /// innermost first: ranks [k*s0, (k+1)*s0) form a block of the first level, s0*s1 of them one of
  /// the second, … Inner levels are placed first, on the widest links that the graph has. Error if
  /// the cluster has too few devices or a size is not positive.
  Result<Placement> BestOrder(std::span<const int> group_sizes) const;

  /// The same kind of cluster with another number of hosts: enough of the (only) host description
  /// for `devices`. Where fewer devices than a host has are asked for, one host stays.
  Result<Cluster> WithDevices(int64_t devices) const;

  /// Stable 64-bit hash of everything but name, description and warnings.
  uint64_t Fingerprint() const;

  /// Graphviz text of one host of each kind and the network.
  std::string ToDot() const;

 private:
  struct Impl;
  explicit Cluster(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace meshwright::topologies
