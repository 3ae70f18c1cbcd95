// The order in which a pipeline stage runs its chunks and micro-batches (parallelism.md 4.3, 9.2).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/ir/plan.h"

namespace meshwright::planner::lower {

struct ScheduleStep {
  bool forward = true;
  int32_t chunk = 0;
  int32_t micro_batch = 0;
  friend bool operator==(const ScheduleStep&, const ScheduleStep&) = default;
};

/// Micro-batch group size of the interleaved schedule: the smallest N with pp <= N <= m whose
/// remainder m % N is 0 or at least pp; 0 when there is none (interleaving is not legal).
int64_t InterleavingGroup(int64_t pp, int64_t micro_batches);

/// Steps of stage `stage` of `pp`; virtual_stages > 1 means interleaved.
std::vector<ScheduleStep> StageSchedule(int64_t pp, int64_t virtual_stages, int64_t micro_batches,
                                        int64_t stage);

/// Slot of each step (forward takes the lowest free one, its backward frees it), and their number.
struct SlotAssignment {
  std::vector<int32_t> slot;  ///< per step
  int64_t slots = 0;
};
SlotAssignment AssignSlots(const std::vector<ScheduleStep>& steps, int64_t virtual_stages,
                           int64_t micro_batches);

}  // namespace meshwright::planner::lower
