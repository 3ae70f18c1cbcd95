// The task that the host issues, as a named range for profilers.
#pragma once

#include <nvtx3/nvToolsExt.h>

#include <cstdint>

#include "planner/ir/program.h"

namespace meshwright::runtime::cuda {

/// One range at a time on the issuing thread. Costs next to nothing when no profiler is attached.
class TaskRanges {
 public:
  TaskRanges() = default;
  ~TaskRanges() { End(); }
  TaskRanges(const TaskRanges&) = delete;
  TaskRanges& operator=(const TaskRanges&) = delete;

  /// Ends the range of another task and begins that of `task`, index `index` of the program.
  void Enter(int32_t index, const planner::Task& task) {
    if (index == open_) return;
    End();
    nvtxRangePushA(planner::Label(task).c_str());
    open_ = index;
  }
  void End() {
    if (open_ >= 0) nvtxRangePop();
    open_ = -1;
  }

 private:
  int32_t open_ = -1;
};

}  // namespace meshwright::runtime::cuda
