// The parts of an optimizer step in the order in which a rank issues them, a file each, and the
// events that one hands to the next.
#pragma once

#include <vector>

#include "planner/lower/program_builder.h"

namespace meshwright::planner::lower {

/// What micro-batches wait for.
struct StepBegin {
  std::vector<EventId> gathered;  ///< by bucket: its parameters are whole; -1: they always are
  EventId counted = -1;           ///< tokens of the step are counted; -1: not the head's stage
};
/// The count of the step's tokens, on the head's stage.
StepBegin BeginStep(ProgramBuilder& builder);

/// When the last micro-batch leaves gradients complete.
struct CompleteGradients {
  std::vector<EventId> bucket;  ///< by bucket; -1: of the late bucket, which needs all
  std::vector<int32_t> order;   ///< buckets but the late one, first complete first
  EventId all = -1;
};
/// Forward and backward of every micro-batch as scheduled, with the traffic between stages.
CompleteGradients RunMicroBatches(ProgramBuilder& builder, const StepBegin& begin);

/// When sums of gradients over ranks are there.
struct ReducedGradients {
  std::vector<EventId> bucket;  ///< by bucket: over data-parallel ranks; -1: there are none
  std::vector<EventId> others;  ///< without data-parallel ranks: what the norm waits for instead
};
/// Sums over copies of key-value heads, over tensor ranks, over the copies of a tied weight, and of
/// each bucket over data-parallel ranks.
ReducedGradients ReduceGradients(ProgramBuilder& builder, const CompleteGradients& complete);

/// Norm and clip factor, optimizer, parameters gathered for the next step, and the report.
void FinishStep(ProgramBuilder& builder, const ReducedGradients& reduced,
                const std::vector<EventId>& gathered);

}  // namespace meshwright::planner::lower
