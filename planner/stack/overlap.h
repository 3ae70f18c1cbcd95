// What overlap leaves of a collective, and which splits gather parameters for every pass; internal.
#pragma once

#include <algorithm>

#include "planner/stack/split.h"

namespace meshwright::planner::stack {

/// Part of `time` that `budget` seconds of compute do not hide.
inline double Exposed(double time, double budget, double hidden_share) {
  return time - hidden_share * std::min(time, std::max(budget, 0.0));
}

/// Parameters are gathered for every pass. In a pipeline they stay gathered for the step, as FSDP2
/// does there: what is sharded then is the master copy, as under kZero2.
inline bool SharesParameters(const Split& split) {
  return split.sharding == ShardingLevel::kZero3 && split.pp == 1;
}

}  // namespace meshwright::planner::stack
