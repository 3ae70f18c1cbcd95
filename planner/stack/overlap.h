// What overlap leaves of a collective, and which splits gather parameters for every pass; internal.
#pragma once

#include <algorithm>

#include "planner/stack/stack_spec.h"

namespace meshwright::planner::stack {

/// Part of `time` that `budget` seconds of compute do not hide.
inline double Exposed(double time, double budget, double hidden_share) {
  return time - hidden_share * std::min(time, std::max(budget, 0.0));
}

/// Parameters are gathered for every pass. In a pipeline they stay gathered for the step, as FSDP2
/// does there, unless the stack reshards: what is sharded then is the master copy, as under kZero2.
inline bool SharesParameters(const Split& split, const StackLowering& lowering) {
  return split.sharding == ShardingLevel::kZero3 &&
         (split.pp == 1 || lowering.reshards_in_pipelines);
}

}  // namespace meshwright::planner::stack
