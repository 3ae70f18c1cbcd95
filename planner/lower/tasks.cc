#include "planner/lower/tasks.h"

#include <algorithm>

#include "planner/lower/schedule.h"
#include "planner/lower/step_parts.h"

namespace meshwright::planner::lower {

int64_t EdgeSlots(const ModulePlan& module, int64_t micro_batches, bool wraps) {
  const bool ahead = wraps && module.virtual_stages > 1;
  const int64_t slots = ahead ? 2 + InterleavingGroup(module.pp, micro_batches) - module.pp : 2;
  const int64_t chunks = ahead ? module.virtual_stages - 1 : module.virtual_stages;
  return std::min(slots, chunks * micro_batches);  // no more than there are messages in a step
}

RankProgram BuildRankProgram(const Plan& plan, size_t module, int64_t stage, int64_t position) {
  ProgramBuilder builder(plan, module, stage, position);
  const StepBegin begin = BeginStep(builder);
  const CompleteGradients complete = RunMicroBatches(builder, begin);
  const ReducedGradients reduced = ReduceGradients(builder, complete);
  FinishStep(builder, reduced, begin.gathered);
  return builder.Take();
}

}  // namespace meshwright::planner::lower
