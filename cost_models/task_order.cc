#include "cost_models/task_order.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <string>

namespace meshwright::cost::internal {
namespace {

// A cycle through more nodes than this is cut in the middle of the message.
constexpr size_t kCycleNodesShown = 24;

std::string NodeName(const SimulateOptions& options, NodeId node) {
  return options.node_label ? fmt::format("'{}'", options.node_label(node))
                            : fmt::format("node {}", node);
}

std::string QueueName(const SimulateOptions& options, QueueId queue) {
  return options.queue_label ? fmt::format("'{}'", options.queue_label(queue))
                             : fmt::format("queue {}", queue);
}

// Edges of a cycle among the nodes that still wait, each from a node to one that it waits for.
std::vector<TaskEdge> FindCycle(const TaskGraph& graph, const std::vector<int32_t>& waiting) {
  std::vector<int32_t> cause(waiting.size(), -1);  // edge that holds the node back
  const auto& edges = graph.edges();
  for (size_t e = 0; e < edges.size(); ++e) {
    const auto to = static_cast<size_t>(edges[e].to);
    if (waiting[static_cast<size_t>(edges[e].from)] > 0 && waiting[to] > 0 && cause[to] < 0) {
      cause[to] = static_cast<int32_t>(e);
    }
  }
  const auto first = std::find_if(waiting.begin(), waiting.end(), [](int32_t n) { return n > 0; });
  MW_CHECK(first != waiting.end());
  auto edge_of = [&](NodeId n) {
    return edges[static_cast<size_t>(cause[static_cast<size_t>(n)])];
  };
  // Every waiting node has a waiting cause, so this many steps back end inside a cycle.
  auto node = static_cast<NodeId>(first - waiting.begin());
  for (size_t i = 0; i < waiting.size(); ++i) node = edge_of(node).from;
  std::vector<TaskEdge> cycle;
  const NodeId begin = node;
  do {
    cycle.push_back(edge_of(node));
    node = cycle.back().from;
  } while (node != begin);
  return cycle;
}

Status StuckError(const TaskGraph& graph, const std::vector<int32_t>& waiting,
                  const SimulateOptions& options) {
  const std::vector<TaskEdge> cycle = FindCycle(graph, waiting);
  std::string chain = NodeName(options, cycle.front().to);
  for (size_t i = 0; i < cycle.size(); ++i) {
    if (i == kCycleNodesShown && cycle.size() > kCycleNodesShown + 1) {
      chain += fmt::format(" ... ({} more) ...", cycle.size() - kCycleNodesShown - 1);
      i = cycle.size() - 1;
    }
    const TaskEdge& edge = cycle[i];
    chain += fmt::format(" waits for {} ({})", NodeName(options, edge.from),
                         edge.queue < 0 ? std::string("dependency")
                                        : "ahead of it in " + QueueName(options, edge.queue));
    if (i + 1 < cycle.size()) chain += ", which";
  }
  const auto stuck = std::count_if(waiting.begin(), waiting.end(), [](int32_t n) { return n > 0; });
  return Infeasible(fmt::format(
      "task graph: deadlock, {} of {} tasks can never start: {}; put the tasks into the same order "
      "in every queue that they share, or drop one of these waits",
      stuck, waiting.size(), chain));
}

}  // namespace

Successors BuildSuccessors(const TaskGraph& graph) {
  Successors result;
  result.begin.assign(static_cast<size_t>(graph.node_count()) + 2, 0);
  result.to.resize(graph.edges().size());
  // Counted two places ahead: the fill below moves each count to where its list begins.
  int32_t* at = result.begin.data() + 2;
  for (const TaskEdge& edge : graph.edges()) ++at[edge.from];
  std::partial_sum(result.begin.begin(), result.begin.end(), result.begin.begin());
  at = result.begin.data() + 1;
  for (const TaskEdge& edge : graph.edges())
    result.to[static_cast<size_t>(at[edge.from]++)] = edge.to;
  return result;
}

std::vector<int32_t> CountPredecessors(const TaskGraph& graph) {
  std::vector<int32_t> count(static_cast<size_t>(graph.node_count()), 0);
  for (const TaskEdge& edge : graph.edges()) ++count[static_cast<size_t>(edge.to)];
  return count;
}

Result<std::vector<NodeId>> ExecutionOrder(const TaskGraph& graph, const Successors& successors,
                                           const SimulateOptions& options) {
  const auto n = static_cast<size_t>(graph.node_count());
  std::vector<NodeId> order(n);
  if (graph.ids_in_order()) {
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  std::vector<int32_t> waiting = CountPredecessors(graph);
  size_t filled = 0;
  for (size_t i = 0; i < n; ++i) {
    if (waiting[i] == 0) order[filled++] = static_cast<NodeId>(i);
  }
  for (size_t next = 0; next < filled; ++next) {
    const auto node = static_cast<size_t>(order[next]);
    for (int32_t s = successors.begin[node]; s < successors.begin[node + 1]; ++s) {
      const NodeId to = successors.to[static_cast<size_t>(s)];
      if (--waiting[static_cast<size_t>(to)] == 0) order[filled++] = to;
    }
  }
  if (filled < n) return StuckError(graph, waiting, options);
  return order;
}

}  // namespace meshwright::cost::internal
