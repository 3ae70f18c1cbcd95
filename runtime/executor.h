// Executor: runs the program of one rank. One issuing thread walks the task list and appends ops to
// streams; one arena, allocated once, has exactly the planned size.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/ir/program.h"
#include "planner/ir/trace.h"
#include "runtime/communicator.h"
#include "runtime/data_source.h"
#include "runtime/kernels.h"
#include "runtime/lr_schedule.h"
#include "runtime/own_limit.h"
#include "runtime/shadow.h"
#include "topologies/status.h"

namespace meshwright::runtime {

inline constexpr size_t kTaskKindCount = static_cast<size_t>(planner::TaskKind::kReadBack) + 1;
/// Seconds that ops of each kind of task took, waiting for partners included.
using BusySeconds = std::array<double, kTaskKindCount>;

/// One finished step on one rank.
struct StepReport {
  int rank = 0;
  int64_t step = 0;  ///< 0-based
  /// Loss a token and global gradient norm, the same on all ranks; NaN when the program reads
  /// nothing back or no token of the step counts.
  double loss = 0.0;
  double grad_norm = 0.0;
  double learning_rate = 0.0;
  double step_time_s = 0.0;   ///< from the end of the step before (of the set-up for the first)
  double tokens_per_s = 0.0;  ///< global batch x sequence / step time
  BusySeconds busy_s{};       ///< of GPU ranks' traffic only in a run that keeps a trace
};

/// Memory of a rank as a hook sees it. Element offsets of parameters and gradients stand in
/// `program.parameters`, areas in `program.arena`.
struct ArenaView {
  int rank = 0;
  int64_t step = 0;
  const planner::RankProgram& program;
  const planner::RankBinding& binding;
  std::byte* arena = nullptr;
};

struct RunOptions {
  int64_t steps = 1;
  uint64_t seed = 1;  ///< of the initial parameters
  LrOptions lr;
  OptimizerOptions optimizer;
  /// Seconds for an operation to meet its partners. RunOnThreads makes a world with it; a world
  /// that exists has its own.
  double deadline_s = 60.0;
  /// Bytes the arena may have; 0: as planned. Less than planned is refused.
  int64_t arena_bytes = 0;
  bool trace = false;  ///< keep a row a task and step
  /// Keep a row an op of the last two steps, see FirstTracedStep; events between ops make those
  /// steps slower on GPU ranks.
  bool trace_ops = false;
  std::optional<ShadowOptions> shadow;

  /// False: the label at `position` (0 .. S-1) of `sample` (0 .. global_batch-1) is masked (-100).
  std::function<bool(int64_t step, int64_t sample, int64_t position)> label_counts;
  /// After each step, on the issuing thread of each rank: calls of several ranks overlap.
  std::function<void(const StepReport&)> on_step;
  /// Each step when the gradients are complete and reduced, before the optimizer touches anything;
  /// on a stream worker of each rank: calls of several ranks overlap.
  std::function<void(const ArenaView&)> on_gradients;
  /// After the last step (step = steps), on the issuing thread.
  std::function<void(const ArenaView&)> on_finish;
};

/// First step whose ops are traced: the last but one, so that what it leaves to the next is seen.
inline int64_t FirstTracedStep(const RunOptions& options) {
  return std::max<int64_t>(0, options.steps - 2);
}

/// Ops of one step that are alike.
struct OpTime {
  std::string name;
  int64_t count = 0;
  double seconds = 0.0;  ///< sum over them
};

struct RunSummary {
  int rank = 0;
  std::vector<double> losses;  ///< a step each; empty when the program reads nothing back
  std::vector<double> grad_norms;
  std::vector<double> step_times_s;
  double tokens_per_s = 0.0;  ///< of all steps but the first (of that one if there is no other)
  int64_t planned_bytes = 0;  ///< sum of the plan's memory breakdown
  int64_t arena_bytes = 0;    ///< allocated
  /// GPU ranks: memory of the device in use after the last step, as the driver tells, and what of
  /// it the context and libraries, and NCCL took. 0 on CPU ranks.
  int64_t device_bytes = 0, library_bytes = 0, nccl_bytes = 0;
  OwnLimit limit;                ///< GPU ranks whose products were tuned
  std::vector<OpTime> op_times;  ///< of the last step, when asked for; GPU ranks
  BusySeconds busy_s{};
  std::vector<planner::TraceRow> trace;       ///< by (step, task)
  std::vector<planner::OpTraceRow> op_trace;  ///< by step in issue order; when asked for
  ShadowReport shadow;
};

/// Runs `steps` steps of rank `rank`. All ranks of `world` (as many as `programs.ranks`) call this
/// with equal programs; that is checked first. `data` may be shared by ranks.
///
/// Samples of a step are numbered 0 .. global_batch-1; row j of micro-batch i of data-parallel rank
/// d is sample (i * dp + d) * micro_batch + j. Token arrays are [S, micro_batch], sequence first.
///
/// Errors: kInfeasible for an arena that is too small or a program that is not safe to run;
/// kRunFailed when an op fails anywhere: the first failure, with rank, step, task and op, is
/// returned on every rank.
Result<RunSummary> Execute(const planner::Programs& programs, int rank, Communicator& world,
                           const KernelTable& kernels, DataSource& data, const RunOptions& options);

}  // namespace meshwright::runtime
