// TaskGraph: what the simulator runs. It knows nothing of plans or models: timed nodes in FIFO
// queues, dependencies, shares of resources, and bytes that nodes take from and give to pools.
#pragma once

#include <cstdint>
#include <vector>

#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::cost {

// Ids are dense and count up from 0 in the order of the Add calls.
using NodeId = int32_t;
using QueueId = int32_t;
using ResourceId = int32_t;
using PoolId = int32_t;

/// One edge `from` -> `to`: `to` starts when `from` has ended.
struct TaskEdge {
  NodeId from = 0;
  NodeId to = 0;
  QueueId queue = -1;  ///< the queue whose order makes this edge; -1: a stated dependency
};

/// `node` sits in `queue`.
struct TaskPlace {
  NodeId node = 0;
  QueueId queue = 0;
};

/// `node` takes `milli` thousandths of a unit of `resource` (1000: one core, one whole link).
struct TaskDemand {
  NodeId node = 0;
  ResourceId resource = 0;
  int32_t milli = 0;
};

/// `node` changes the bytes held in `pool` when it starts and when it ends; signed.
struct TaskMemory {
  NodeId node = 0;
  PoolId pool = 0;
  int64_t start_bytes = 0;
  int64_t end_bytes = 0;
};

/// Flat vectors, append only. Ids out of range and negative durations are bugs of the caller
/// and abort. A rendezvous (collective, send-receive pair) is one node in several queues.
class TaskGraph {
 public:
  void Reserve(int64_t nodes, int64_t edges) {
    durations_.reserve(static_cast<size_t>(nodes));
    places_.reserve(static_cast<size_t>(nodes));
    edges_.reserve(static_cast<size_t>(edges));
  }

  QueueId AddQueue() {
    tails_.push_back(-1);
    return static_cast<QueueId>(tails_.size() - 1);
  }

  /// `capacity_milli` >= 1, in the unit of the demands.
  ResourceId AddResource(int32_t capacity_milli) {
    MW_CHECK(capacity_milli >= 1);
    capacities_.push_back(capacity_milli);
    return static_cast<ResourceId>(capacities_.size() - 1);
  }

  PoolId AddPool() { return pool_count_++; }

  /// `duration`: time of the node's work when nothing slows it down; >= 0.
  NodeId AddNode(Nanoseconds duration) {
    MW_CHECK(duration.value() >= 0 && node_count() < INT32_MAX);
    durations_.push_back(duration.value());
    return node_count() - 1;
  }

  /// Appends the node to a queue. Nodes of a queue run one at a time, in the order of these calls
  /// (not of their ids), so that two queues may disagree about the order of two rendezvous.
  void Enqueue(QueueId queue, NodeId node) {
    MW_CHECK(queue >= 0 && queue < queue_count() && HasNode(node));
    NodeId& tail = tails_[static_cast<size_t>(queue)];
    if (tail >= 0) AddEdge({tail, node, queue});
    tail = node;
    places_.push_back({node, queue});
  }

  void AddDependency(NodeId before, NodeId after) {
    MW_CHECK(HasNode(before) && HasNode(after));
    AddEdge({before, after, -1});
  }

  /// Demands of one node on one resource add up; 0 is ignored.
  void AddDemand(NodeId node, ResourceId resource, int32_t milli) {
    MW_CHECK(HasNode(node) && resource >= 0 && resource < resource_count() && milli >= 0);
    if (milli > 0) demands_.push_back({node, resource, milli});
  }

  void AddMemory(NodeId node, PoolId pool, Bytes at_start, Bytes at_end) {
    MW_CHECK(HasNode(node) && pool >= 0 && pool < pool_count_);
    memory_.push_back({node, pool, at_start.value(), at_end.value()});
  }

  int32_t node_count() const { return static_cast<int32_t>(durations_.size()); }
  int32_t queue_count() const { return static_cast<int32_t>(tails_.size()); }
  int32_t resource_count() const { return static_cast<int32_t>(capacities_.size()); }
  int32_t pool_count() const { return pool_count_; }

  /// Work of each node in nanoseconds.
  const std::vector<int64_t>& durations() const { return durations_; }
  const std::vector<TaskEdge>& edges() const { return edges_; }
  const std::vector<TaskPlace>& places() const { return places_; }
  const std::vector<TaskDemand>& demands() const { return demands_; }
  const std::vector<TaskMemory>& memory() const { return memory_; }
  const std::vector<int32_t>& capacities() const { return capacities_; }
  /// Every edge goes from a lower to a higher id, so that the ids are an order of execution.
  bool ids_in_order() const { return ids_in_order_; }

 private:
  bool HasNode(NodeId node) const { return node >= 0 && node < node_count(); }
  void AddEdge(TaskEdge edge) {
    MW_CHECK(edges_.size() < INT32_MAX);
    ids_in_order_ = ids_in_order_ && edge.from < edge.to;
    edges_.push_back(edge);
  }

  std::vector<int64_t> durations_;
  std::vector<TaskEdge> edges_;
  std::vector<TaskPlace> places_;
  std::vector<TaskDemand> demands_;
  std::vector<TaskMemory> memory_;
  std::vector<int32_t> capacities_;
  std::vector<NodeId> tails_;  ///< last node of each queue
  PoolId pool_count_ = 0;
  bool ids_in_order_ = true;
};

}  // namespace meshwright::cost
