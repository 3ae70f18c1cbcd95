// Trace: when each task of each rank ran. Simulated and recorded traces are the same rows, so that
// they can be subtracted from each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/ir/program.h"

namespace meshwright::planner {

/// One execution of one task. Times are nanoseconds from the start of the run.
struct TraceRow {
  int32_t rank = 0;
  int64_t step = 0;  ///< 0-based
  int32_t task = 0;  ///< index into RankProgram::tasks
  std::string label;
  TaskKind kind = TaskKind::kForward;
  int32_t chunk = -1;
  int32_t micro_batch = -1;
  int32_t bucket = -1;
  StreamId stream = kComputeStream;  ///< of the task's first op
  int64_t start_ns = 0;  ///< earliest start of its ops; a message starts when its stream reaches it
  int64_t end_ns = 0;    ///< latest end of its ops
  friend bool operator==(const TraceRow&, const TraceRow&) = default;
};

/// Row of `task` (index `index`) without times: what both kinds of trace fill in.
TraceRow MakeTraceRow(int32_t rank, int64_t step, int32_t index, const Task& task,
                      const RankProgram& program);

/// Chrome trace event format (chrome://tracing, Perfetto): one process a rank, one thread a stream.
std::string WriteChromeTrace(const std::vector<TraceRow>& rows);

}  // namespace meshwright::planner
