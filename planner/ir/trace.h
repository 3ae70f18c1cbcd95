// Trace: when each task of each rank ran, and each op of a step. Simulated and recorded traces are
// the same rows, so that they can be subtracted from each other.
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

/// One execution of one op in a step: finer than a task, whose ops on several streams overlap.
/// Times of a rank count from a moment of its own.
struct OpTraceRow {
  int32_t rank = 0;
  int64_t step = 0;  ///< 0-based
  OpKind kind = OpKind::kCopy;
  StreamKind stream = StreamKind::kCompute;
  int32_t group = -1;    ///< of communication: index into Programs::groups
  int64_t start_ns = 0;  ///< the op heads its stream and waits for no event any more
  int64_t end_ns = 0;
  friend bool operator==(const OpTraceRow&, const OpTraceRow&) = default;
};

/// Rows without times of all ops of rank `rank` in steps `first_step` .. `steps` - 1, in the order
/// in which it issues them.
std::vector<OpTraceRow> MakeOpTraceRows(const Programs& programs, int32_t rank, int64_t first_step,
                                        int64_t steps);

/// Chrome trace event format (chrome://tracing, Perfetto): one process a rank, one thread a stream
/// for tasks and one a kind of stream for `ops`. A rank's ops begin when its tasks of that step do.
std::string WriteChromeTrace(const std::vector<TraceRow>& rows,
                             const std::vector<OpTraceRow>& ops = {});

}  // namespace meshwright::planner
