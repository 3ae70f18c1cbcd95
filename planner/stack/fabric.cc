#include "planner/stack/fabric.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace meshwright::planner::stack {
namespace {

constexpr int64_t kFarStride = int64_t{1} << 40;  // beyond any domain

/// Slowest way from a GPU of the host to host memory; 0 when no link is described.
BytesPerSecond HostBandwidth(const topologies::HostSpec& host) {
  double rate = 0;
  for (const topologies::Link& link : host.links) {
    const bool device =
        host.nodes[static_cast<size_t>(link.a)].kind == topologies::NodeKind::kDevice ||
        host.nodes[static_cast<size_t>(link.b)].kind == topologies::NodeKind::kDevice;
    const bool to_host =
        link.kind == topologies::LinkKind::kPcie || link.kind == topologies::LinkKind::kChipToChip;
    if (!device || !to_host) continue;
    const double slower = std::min(link.forward.value(), link.backward.value());
    rate = rate > 0 ? std::min(rate, slower) : slower;
  }
  return BytesPerSecond(rate);
}

}  // namespace

Result<Fabric> FabricOf(const topologies::Cluster& cluster) {
  Fabric fabric;
  fabric.host_gpus = cluster.min_devices_per_host();
  const std::vector<std::vector<int>> islands = cluster.NvlinkIslands(0);
  size_t widest = 0;
  for (const std::vector<int>& island : islands) widest = std::max(widest, island.size());
  std::vector<int> domain(static_cast<size_t>(fabric.host_gpus));
  std::iota(domain.begin(), domain.end(), 0);
  if (static_cast<int64_t>(widest) > fabric.host_gpus) domain = islands.front();
  fabric.domain_gpus = static_cast<int64_t>(domain.size());
  if (fabric.domain_gpus > 1) {
    MW_ASSIGN_OR_RETURN(const topologies::GroupPath local, cluster.Group(domain));
    fabric.local_bandwidth = local.local_bandwidth;
    fabric.local_latency = local.local_latency;
  }
  fabric.host_bandwidth = HostBandwidth(cluster.HostSpecOf(0));
  if (cluster.device_count() > fabric.domain_gpus) {
    const int first = 0;
    const int other = static_cast<int>(fabric.domain_gpus);
    MW_ASSIGN_OR_RETURN(const topologies::GroupPath across,
                        cluster.Group(std::vector<int>{first, other}));
    fabric.network_share = across.network_share;
    fabric.network_latency = across.network_latency;
    fabric.network = cost::FabricOf(cluster.spec().fabric.name);
  }
  return fabric;
}

cost::PathFacts PathOf(const Fabric& fabric, int64_t size, int64_t stride) {
  cost::PathFacts path;
  path.ranks = size;
  if (size == 1) return path;
  // Without a network there is one domain, and whatever is asked for lies in it.
  const bool alone = fabric.network_share.value() == 0;
  const int64_t near = alone ? size : std::min((fabric.domain_gpus - 1) / stride + 1, size);
  path.ranks_per_host = near;
  path.hosts = (size + near - 1) / near;
  if (near > 1) {
    path.local_bandwidth = fabric.local_bandwidth;
    path.local_latency = fabric.local_latency;
  }
  if (path.hosts > 1) {
    path.network_bandwidth = fabric.network_share * static_cast<double>(near);
    path.network_latency = fabric.network_latency;
    path.fabric = fabric.network;
  }
  path.in_switch_reduction = fabric.in_switch_reduction && path.hosts == 1;
  return path;
}

Groups GroupsOf(const Split& split) {
  Groups groups;
  groups.context_stride = split.tp;
  const int64_t inner = split.tp * split.cp;
  const bool data_inside = split.order == RankOrder::kDataInside;
  groups.data_stride = data_inside ? inner : inner * split.pp;
  groups.stage_stride = data_inside ? inner * split.dp : inner;
  // Experts cut the ranks of a stage as expert tensor, expert, expert data, the first innermost.
  groups.expert_stride = split.expert_tp;
  groups.expert_data_stride = split.expert_tp * split.ep;
  if (!data_inside && groups.expert_data_stride > inner) {
    // Members lie in several replicas, which are a whole pipeline apart: hosts, as good as always.
    groups.expert_stride = kFarStride;
    groups.expert_data_stride = kFarStride;
  }
  return groups;
}

}  // namespace meshwright::planner::stack
