// Successor lists and an order of execution of a task graph; finds the cycle when there is none.
#pragma once

#include <cstdint>
#include <vector>

#include "cost_models/simulate.h"
#include "cost_models/task_graph.h"
#include "topologies/status.h"

namespace meshwright::cost::internal {

/// Successors of node n are `to[begin[n]] .. to[begin[n + 1] - 1]`.
struct Successors {
  std::vector<int32_t> begin;
  std::vector<NodeId> to;
};

Successors BuildSuccessors(const TaskGraph& graph);

/// Number of edges that end at each node.
std::vector<int32_t> CountPredecessors(const TaskGraph& graph);

/// Nodes so that every edge goes forward; kInfeasible naming a cycle of waits when there is none.
Result<std::vector<NodeId>> ExecutionOrder(const TaskGraph& graph, const Successors& successors,
                                           const SimulateOptions& options);

}  // namespace meshwright::cost::internal
