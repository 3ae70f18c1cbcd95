// What ranks share, counted over all replicas of a class before folding: cores and memory of hosts
// that hold CPU ranks; links and NICs that several groups of GPUs use at once. And what the streams
// of one GPU share: communication kernels slow the products beside them.
#pragma once

#include <cstdint>
#include <vector>

#include "cost_models/task_graph.h"
#include "planner/ir/program.h"
#include "planner/predict/prices.h"
#include "planner/verify/fold.h"
#include "topologies/status.h"

namespace meshwright::planner {

/// A share of one resource: the op's price times `factor`.
struct ResourceUse {
  enum class Of : uint8_t { kCore, kMemory, kDevice, kLocalLink, kNetwork };
  Of of = Of::kCore;
  cost::ResourceId resource = 0;
  double factor = 1.0;  ///< replicas, times the part of a link that the group takes at full speed
};

/// Resources with equal use by everybody (hosts that do the same, say) are one.
struct SharedResources {
  std::vector<std::vector<ResourceUse>> of_class;    ///< of an op of the class on all its members
  std::vector<std::vector<ResourceUse>> of_channel;  ///< of a rendezvous in all its groups

  /// Every compute op of the class takes the same of them, whatever its price.
  bool AlikeForOps(size_t of) const {
    for (const ResourceUse& use : of_class[of]) {
      if (use.of != ResourceUse::Of::kDevice) return false;
    }
    return true;
  }
};

/// Adds the resources to `graph`. Links that nobody could over-subscribe are left out. A ring over
/// the group in communicator order takes the widest path from member to member; between hosts it
/// takes the NICs of its members whole.
Result<SharedResources> AddSharedResources(const Programs& programs, const RankClasses& classes,
                                           const Channels& channels, const Prices& prices,
                                           cost::TaskGraph* graph);

/// Adds what `price` takes of `uses` to the node.
void AddDemands(const std::vector<ResourceUse>& uses, const NodePrice& price, cost::NodeId node,
                cost::TaskGraph* graph);

}  // namespace meshwright::planner
