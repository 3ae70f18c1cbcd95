// Event simulation of a task graph whose running nodes slow each other down on shared resources.
#pragma once

#include <cstdint>
#include <vector>

#include "cost_models/task_graph.h"
#include "cost_models/task_order.h"

namespace meshwright::cost::internal {

__extension__ typedef __int128 Int128;

/// What a node takes of the resources that can be over-subscribed; the others never slow it down.
struct SharedDemands {
  std::vector<int32_t> begin;       ///< per node, into `demands`; size nodes + 1
  std::vector<TaskDemand> demands;  ///< by node, then resource; one row a pair
  /// Per resource: the most that can be demanded at once, in milli-units (an upper bound).
  std::vector<int64_t> most_at_once;
  bool any() const { return !demands.empty(); }
};

SharedDemands FindSharedDemands(const TaskGraph& graph);

/// Fills start and end of every node. The graph has an order of execution, and its total work times
/// the largest `most_at_once` / capacity is below 2^61 ns. See `Simulate` for the meaning.
///
/// Nodes with one shared resource all run at that resource's rate, so they sit in a heap ordered by
/// the virtual time at which they end: an event costs O(log running). Nodes with several shared
/// resources are looked at again whenever the rate of one of theirs may have changed.
void SimulateShared(const TaskGraph& graph, const Successors& successors,
                    const SharedDemands& shared, std::vector<int64_t>* start_ns,
                    std::vector<int64_t>* end_ns);

}  // namespace meshwright::cost::internal
