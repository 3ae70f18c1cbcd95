// Task graphs that tests and benchmarks share.
#pragma once

#include <algorithm>
#include <vector>

#include "cost_models/task_graph.h"

namespace meshwright::cost {

/// 1F1B over `stages` queues: stage s runs min(stages - s - 1, micro_batches) forwards, then
/// forward and backward in turn, then the backwards that are left. Messages take no time. Node of
/// (stage, micro-batch, backward): see `PipelineNode`.
inline NodeId PipelineNode(int micro_batches, int stage, int micro_batch, bool backward) {
  return static_cast<NodeId>((stage * micro_batches + micro_batch) * 2 + (backward ? 1 : 0));
}

inline TaskGraph Pipeline1F1B(int stages, int micro_batches, Nanoseconds forward,
                              Nanoseconds backward) {
  TaskGraph graph;
  const int64_t nodes = int64_t{2} * stages * micro_batches;
  graph.Reserve(nodes, 2 * nodes);
  for (int64_t i = 0; i < nodes; ++i) graph.AddNode(i % 2 == 0 ? forward : backward);
  auto node = [&](int stage, int micro_batch, bool back) {
    return PipelineNode(micro_batches, stage, micro_batch, back);
  };
  for (int s = 0; s < stages; ++s) {
    const QueueId queue = graph.AddQueue();
    const int warm_up = std::min(stages - s - 1, micro_batches);
    for (int i = 0; i < warm_up; ++i) graph.Enqueue(queue, node(s, i, false));
    for (int i = warm_up; i < micro_batches; ++i) {
      graph.Enqueue(queue, node(s, i, false));
      graph.Enqueue(queue, node(s, i - warm_up, true));
    }
    for (int i = micro_batches - warm_up; i < micro_batches; ++i) {
      graph.Enqueue(queue, node(s, i, true));
    }
    for (int i = 0; i < micro_batches; ++i) {
      if (s > 0) graph.AddDependency(node(s - 1, i, false), node(s, i, false));
      if (s > 0) graph.AddDependency(node(s, i, true), node(s - 1, i, true));
    }
  }
  for (int i = 0; i < micro_batches; ++i) {
    graph.AddDependency(node(stages - 1, i, false), node(stages - 1, i, true));
  }
  return graph;
}

}  // namespace meshwright::cost
