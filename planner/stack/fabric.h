// Fabric: what groups of ranks have between them on a cluster of like hosts, without a graph query
// for every group.
#pragma once

#include <cstdint>

#include "cost_models/collectives.h"
#include "planner/stack/split.h"
#include "topologies/cluster.h"
#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::planner::stack {

/// A domain is a host, or the NVLink domain of several.
struct Fabric {
  int64_t domain_gpus = 1;
  int64_t host_gpus = 1;           ///< GPUs of one host: what shares a CPU and NICs
  BytesPerSecond local_bandwidth;  ///< each way of one GPU when all of a domain talk; 0: one GPU
  Seconds local_latency;
  BytesPerSecond network_share;  ///< each way of one GPU when all of a host talk; 0: no network
  Seconds network_latency;
  cost::Fabric network = cost::Fabric::kUsual;  ///< kind of the network
  BytesPerSecond host_bandwidth;  ///< each way between a GPU and host memory; 0: unknown
  bool in_switch_reduction = false;
};

/// Of the narrowest host kind. kUnsupported when hosts are not joined and there are several.
Result<Fabric> FabricOf(const topologies::Cluster& cluster);

/// Members `size` ranks apart by `stride`, as many such groups as there is room for talking at
/// once.
cost::PathFacts PathOf(const Fabric& fabric, int64_t size, int64_t stride);

/// Sizes and strides of a split's groups in rank order.
struct Groups {
  int64_t tensor_stride = 1;
  int64_t context_stride = 1;
  int64_t data_stride = 1;
  int64_t stage_stride = 1;
  int64_t expert_stride = 1;       ///< of the members of an expert group
  int64_t expert_data_stride = 1;  ///< of the replicas of an expert
};
Groups GroupsOf(const Split& split);

}  // namespace meshwright::planner::stack
