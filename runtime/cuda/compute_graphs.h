// Kernels that follow one another on the compute stream, with nothing else in between, as CUDA
// graphs: one launch each. The gap between two kernels is a microsecond shorter than between
// launches one by one, even where the host is far ahead (cost_models/h200_runs.md).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/rank_setup.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

struct GraphDeleter {
  void operator()(cudaGraphExec_t graph) const { static_cast<void>(cudaGraphExecDestroy(graph)); }
};
using LaunchableGraph = std::unique_ptr<CUgraphExec_st, GraphDeleter>;

/// What was put on the stream since BeginGraphCapture; other threads may do meanwhile what a
/// capture forbids. Errors: kRunFailed when CUDA refuses.
Status BeginGraphCapture(cudaStream_t stream);
Result<LaunchableGraph> EndGraphCapture(cudaStream_t stream);

/// Ops [first, last] in issue order, of one task: plain kernels on the compute stream; no event is
/// waited for or recorded inside.
struct Segment {
  int32_t first = 0;
  int32_t last = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};

inline constexpr int32_t kLeastSegmentOps = 32;
/// Segments of at least `least` ops: a graph starts a few microseconds later than a kernel.
std::vector<Segment> ComputeSegments(const RankSetup& setup, int32_t least = kLeastSegmentOps);

/// Not thread-safe. The setup outlives it.
class ComputeGraphs {
 public:
  /// From now on segments are captured when they come next, then launched. Every kernel has run
  /// before, so that nothing is loaded or allocated during a capture.
  void Use(const RankSetup& setup);
  bool used() const { return !segment_of_.empty(); }

  /// Puts the op on the stream by `enqueue`, or the graph that begins with it, or nothing inside
  /// one. Called for every op of a step in issue order. Errors: those of `enqueue`; kRunFailed when
  /// CUDA refuses a capture.
  Status Put(const IssuedOp& op, cudaStream_t stream, const std::function<Status()>& enqueue);

 private:
  struct Graph {
    Segment segment;
    LaunchableGraph launchable;
  };
  Status Capture(const IssuedOp& op, Graph& graph, cudaStream_t stream,
                 const std::function<Status()>& enqueue);

  std::vector<Graph> graphs_;
  std::vector<int32_t> segment_of_;  ///< by op; -1: in none; empty: not used
};

}  // namespace meshwright::runtime::cuda
