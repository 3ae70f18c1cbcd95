// The task-graph simulator: when every node starts and ends, and the memory over time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cost_models/task_graph.h"
#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::cost {

struct SimulateOptions {
  /// Fill `Timeline::memory_curves` (the peaks are always there).
  bool memory_curves = false;
  /// Names for error messages, called only then; unset: "node 7", "queue 3".
  std::function<std::string(NodeId)> node_label;
  std::function<std::string(QueueId)> queue_label;
};

/// Bytes held in a pool from `time_ns` on.
struct MemoryPoint {
  int64_t time_ns = 0;
  int64_t bytes = 0;
  friend bool operator==(const MemoryPoint&, const MemoryPoint&) = default;
};

/// The clock starts at 0 and counts whole nanoseconds.
struct Timeline {
  std::vector<int64_t> start_ns;    ///< per node
  std::vector<int64_t> end_ns;      ///< per node
  Nanoseconds makespan;             ///< the last end
  std::vector<int64_t> busy_ns;     ///< per queue: time in which a node of it runs
  std::vector<int64_t> peak_bytes;  ///< per pool, >= 0
  std::vector<std::vector<MemoryPoint>> memory_curves;  ///< per pool, times rise; on request
  bool shared = false;  ///< some resource can be over-subscribed; false: a longest path
  friend bool operator==(const Timeline&, const Timeline&) = default;
};

/// Runs the graph.
///
/// A node starts at the instant when it is at the head of all its queues and everything it depends
/// on has ended; it leaves its queues when it ends. Where the demands of running nodes on a
/// resource add up to more than its capacity, they all advance at capacity/sum; the rate of a node
/// is the least over its resources, at most 1. Since starts depend on order alone, ties have no
/// effect on times; wherever an order is needed, the lower node id goes first.
///
/// Rounding: a node ends at the first whole nanosecond at which its work is done. Work is counted
/// in units of 2^-32 ns, a stretch at one rate rounds down to that unit, and 2^-16 ns left count as
/// done. So times are exact where rates are simple fractions, and without shared resources always.
///
/// Memory at one instant: first the ends of nodes that took time, then the rest in an order of
/// execution. A pool starts at 0 bytes.
///
/// Errors: kInfeasible when the graph is stuck (names the cycle of waits), kInvalidInput when the
/// makespan might not fit 2^61 ns.
Result<Timeline> Simulate(const TaskGraph& graph, const SimulateOptions& options = {});

}  // namespace meshwright::cost
