#include "cost_models/simulate.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "cost_models/processor_sharing.h"
#include "cost_models/task_order.h"

namespace meshwright::cost {
namespace {

using internal::Int128;

constexpr Int128 kMakespanLimit = Int128{1} << 61;  // ns

// An upper bound of the makespan: some node always runs, at no less than capacity / most at once.
Status CheckRange(const TaskGraph& graph, const internal::SharedDemands& shared) {
  Int128 work = 0;
  for (const int64_t duration : graph.durations()) work += duration;
  Int128 slowdown = 1;  // rounded up
  if (shared.any()) {
    for (size_t r = 0; r < shared.most_at_once.size(); ++r) {
      const int64_t capacity = graph.capacities()[r];
      slowdown = std::max<Int128>(slowdown, (shared.most_at_once[r] + capacity - 1) / capacity);
    }
  }
  if (work < kMakespanLimit && work * slowdown < kMakespanLimit) return Status::Ok();
  return InvalidInput(fmt::format(
      "task graph: total work of {:.3g} s, slowed down up to {}-fold, might not fit the clock; "
      "allowed are 2^61 ns; check the prices of the tasks",
      static_cast<double>(work) * 1e-9, static_cast<int64_t>(slowdown)));
}

void LongestPath(const TaskGraph& graph, const internal::Successors& successors,
                 const std::vector<NodeId>& order, Timeline* timeline) {
  for (const NodeId node : order) {
    const auto n = static_cast<size_t>(node);
    const int64_t end = timeline->start_ns[n] + graph.durations()[n];
    timeline->end_ns[n] = end;
    for (int32_t s = successors.begin[n]; s < successors.begin[n + 1]; ++s) {
      int64_t& start =
          timeline->start_ns[static_cast<size_t>(successors.to[static_cast<size_t>(s)])];
      start = std::max(start, end);
    }
  }
}

// One change of a pool. At one instant the ends of nodes that took time come first (rank -1), the
// others in the order of execution, a node's start before its end.
struct Change {
  PoolId pool = 0;
  int64_t time = 0;
  int64_t rank = 0;
  int64_t bytes = 0;
};

void AddMemoryOverTime(const TaskGraph& graph, const std::vector<NodeId>& order, bool curves,
                       Timeline* timeline) {
  const auto pools = static_cast<size_t>(graph.pool_count());
  timeline->peak_bytes.assign(pools, 0);
  if (curves) timeline->memory_curves.resize(pools);
  if (graph.memory().empty()) return;
  std::vector<int32_t> place(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    place[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);

  std::vector<Change> changes;
  changes.reserve(2 * graph.memory().size());
  for (const TaskMemory& memory : graph.memory()) {
    const auto n = static_cast<size_t>(memory.node);
    const int64_t start = timeline->start_ns[n];
    const int64_t end = timeline->end_ns[n];
    const int64_t rank = 2 * int64_t{place[n]};
    if (memory.start_bytes != 0) changes.push_back({memory.pool, start, rank, memory.start_bytes});
    if (memory.end_bytes != 0) {
      changes.push_back({memory.pool, end, end > start ? -1 : rank + 1, memory.end_bytes});
    }
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::tie(a.pool, a.time, a.rank, a.bytes) < std::tie(b.pool, b.time, b.rank, b.bytes);
  });
  int64_t held = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    const Change& change = changes[i];
    const auto pool = static_cast<size_t>(change.pool);
    if (i == 0 || changes[i - 1].pool != change.pool) held = 0;
    held += change.bytes;
    timeline->peak_bytes[pool] = std::max(timeline->peak_bytes[pool], held);
    if (!curves) continue;
    std::vector<MemoryPoint>& curve = timeline->memory_curves[pool];
    if (!curve.empty() && curve.back().time_ns == change.time) {
      curve.back().bytes = held;
    } else {
      curve.push_back({change.time, held});
    }
  }
}

}  // namespace

Result<Timeline> Simulate(const TaskGraph& graph, const SimulateOptions& options) {
  const internal::Successors successors = internal::BuildSuccessors(graph);
  MW_ASSIGN_OR_RETURN(const std::vector<NodeId> order,
                      internal::ExecutionOrder(graph, successors, options));
  const internal::SharedDemands shared = internal::FindSharedDemands(graph);
  MW_RETURN_IF_ERROR(CheckRange(graph, shared));

  Timeline timeline;
  timeline.start_ns.assign(static_cast<size_t>(graph.node_count()), 0);
  timeline.end_ns.assign(static_cast<size_t>(graph.node_count()), 0);
  timeline.shared = shared.any();
  if (timeline.shared) {
    internal::SimulateShared(graph, successors, shared, &timeline.start_ns, &timeline.end_ns);
  } else {
    LongestPath(graph, successors, order, &timeline);
  }

  int64_t makespan = 0;
  for (const int64_t end : timeline.end_ns) makespan = std::max(makespan, end);
  timeline.makespan = Nanoseconds(makespan);
  timeline.busy_ns.assign(static_cast<size_t>(graph.queue_count()), 0);
  for (const TaskPlace& place : graph.places()) {
    const auto n = static_cast<size_t>(place.node);
    timeline.busy_ns[static_cast<size_t>(place.queue)] += timeline.end_ns[n] - timeline.start_ns[n];
  }
  AddMemoryOverTime(graph, order, options.memory_curves, &timeline);
  return timeline;
}

}  // namespace meshwright::cost
