// Inside of Cluster. Used by the sources of Cluster only.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "topologies/cluster.h"
#include "topologies/host_graph.h"

namespace meshwright::topologies {

/// Devices that are joined without the network: a host, or the hosts of an NVLink domain.
struct Unit {
  size_t group = 0;  ///< in ClusterSpec::hosts
  int first_host = 0;
  int hosts = 1;
  int first_device = 0;
  int devices = 0;
};

struct Cluster::Impl {
  ClusterSpec spec;
  std::vector<std::unique_ptr<const HostGraph>> graphs;  ///< one per host group
  std::vector<int> first_host;                           ///< of each group, and the total
  std::vector<int> first_device;                         ///< of each group, and the total

  int total_devices() const { return first_device.back(); }
  size_t GroupOfDevice(int device) const;
  size_t GroupOfHost(int host) const;
  const HostGraph& GraphOf(int device) const { return *graphs[GroupOfDevice(device)]; }
  int HostOf(int device) const;
  int LocalId(int device) const;
  Unit UnitOf(int device) const;
  void Append(int host, const LocalPath& part, bool reversed, Path& path) const;
  Result<Path> NetworkPath(int from, int to) const;
};

}  // namespace meshwright::topologies
