// The task list of one stage: schedule, traffic, reductions and the optimizer step, bound to memory.
#pragma once

#include "planner/ir/program.h"
#include "planner/lower/stage.h"

namespace meshwright::planner::lower {

/// Program of tensor rank `position` of stage `stage` of module `module` (the same for all positions
/// unless ModulePlan::programs_per_stage says otherwise); communicators are class-local, see
/// groups.h.
RankProgram BuildRankProgram(const Plan& plan, size_t module, int64_t stage,
                             int64_t position = 0);

/// Receive and send buffers kept per pipeline edge: one in use, one ahead; the wrap-around edge of
/// an interleaved schedule holds what arrives while the first stage still runs earlier chunks.
int64_t EdgeSlots(const ModulePlan& module, int64_t micro_batches, bool wraps);

}  // namespace meshwright::planner::lower
