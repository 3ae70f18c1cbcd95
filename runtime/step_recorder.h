// What a rank notes about its steps: times by task, results read back.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/executor.h"
#include "runtime/issue_order.h"

namespace meshwright::runtime {

/// Keeps the steps in flight (at most kStepsInFlight) and turns finished ones into reports.
class StepRecorder {
 public:
  static constexpr int64_t kStepsInFlight = 2;

  StepRecorder(const planner::Programs& programs, int rank, const RunOptions& options);

  /// Times are nanoseconds from `origin_ns` of the steady clock.
  void SetOrigin(int64_t origin_ns);
  int64_t Now() const;
  /// Nanoseconds of the steady clock, which all processes of a host share.
  static int64_t SteadyNow();

  /// Issuing thread: step begins; the step kStepsInFlight before it was finished.
  void Begin(int64_t step);
  /// Stream worker: the op ran.
  void OnOp(const IssuedOp& op, int64_t step, int64_t start_ns, int64_t end_ns) {
    OnTask(op.task, step, start_ns, end_ns);
    SetOpTimes(op.index, step, start_ns, end_ns);
  }
  /// When op `index` ran; nothing unless rows of ops are kept of that step. Each op once.
  void SetOpTimes(int32_t index, int64_t step, int64_t start_ns, int64_t end_ns) {
    const int64_t traced = step - FirstTracedStep(options_);
    if (ops_ == 0 || traced < 0) return;
    planner::OpTraceRow& row =
        summary_.op_trace[ops_ * static_cast<size_t>(traced) + static_cast<size_t>(index)];
    row.start_ns = start_ns;
    row.end_ns = end_ns;
  }
  /// A part of task `task`, or the whole of it, ran.
  void OnTask(int32_t task, int64_t step, int64_t start_ns, int64_t end_ns);
  /// Stream worker of kReadBack.
  void OnReadBack(int64_t step, double loss, double grad_norm);
  /// Issuing thread, once the step is done: adds it to the summary.
  StepReport Finish(int64_t step);
  RunSummary TakeSummary();

 private:
  struct TaskTimes {
    std::atomic<int64_t> start{0};
    std::atomic<int64_t> end{0};
  };
  struct StepTimes {
    std::unique_ptr<TaskTimes[]> tasks;
    std::array<std::atomic<int64_t>, kTaskKindCount> busy_ns{};
    bool read_back = false;
    double loss = 0.0;
    double grad_norm = 0.0;
  };
  StepTimes& At(int64_t step) { return steps_[static_cast<size_t>(step % kStepsInFlight)]; }
  void AddTrace(int64_t step, StepTimes& times);

  const planner::RankProgram& program_;
  const RunOptions& options_;
  const int rank_;
  const double tokens_per_step_;
  size_t ops_ = 0;  ///< of a step; 0 when no rows of ops are kept
  int64_t origin_ns_ = 0;
  int64_t last_end_ns_ = 0;
  std::array<StepTimes, kStepsInFlight> steps_;
  RunSummary summary_;
};

}  // namespace meshwright::runtime
