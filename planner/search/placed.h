// A split's ranks on the cluster's devices: placement, and the paths that its groups have there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cost_models/cost_model.h"
#include "planner/ir/plan.h"
#include "planner/predict/prices.h"
#include "topologies/cluster.h"
#include "topologies/status.h"

namespace meshwright::planner::search {

/// Which groups lie next to each other once tensor groups are placed.
enum class PlacementOrder : uint8_t {
  kDataInside,      ///< tensor, data, pipeline: replicas of a stage together, stages apart
  kPipelineInside,  ///< tensor, pipeline, data: stages of a replica together, replicas apart
};

/// Distinct paths of one kind of group; equal ones are listed once.
using Paths = std::vector<cost::PathFacts>;

struct Placed {
  std::vector<int64_t> placement;  ///< rank -> global device
  std::vector<std::string> reasons;
  Paths tensor, data, kv, tied, world, edge;
  Prices plain;                   ///< every rank's optimizer owns whole buckets
  std::optional<Prices> sharded;  ///< ZeRO-1: it owns 1 / dp of them

  const Prices& prices(Sharding sharding) const {
    return sharding == Sharding::kZero1 && sharded ? *sharded : plain;
  }
};

/// Grid of a module on its own; ranks count tp fastest, then dp, then pp (parallelism.md 1).
struct Axes {
  int64_t tp = 1;
  int64_t dp = 1;
  int64_t pp = 1;
  int64_t kv_copies = 1;
};

/// Errors: those of Cluster::BestOrder, Cluster::Group and MakePrices.
Result<Placed> Place(const topologies::Cluster& cluster, const cost::CostModel& model,
                     const Axes& axes, PlacementOrder order, DType dtype);

}  // namespace meshwright::planner::search
