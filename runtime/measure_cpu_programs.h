// Synthetic programs that show what executor and communicators cost.
#pragma once

#include <cstdint>

#include "planner/ir/program.h"

namespace meshwright::runtime {

/// Elements (fp32) of the copies of a RoundProgram: enough to push what the executor uses out of
/// the nearest caches, as real kernels do.
inline constexpr int64_t kRoundCopy = 8192;

/// `ranks` ranks on their own: `ops` copies of `elements` fp32 elements a step.
planner::Programs OpProgram(int ranks, int ops, int64_t elements);

/// `groups` groups of `size` ranks: `rounds` rounds a step of a copy on the compute stream and,
/// behind it on another stream, a collective (or a message from member 0 to 1) of `elements`
/// elements; the next round waits for it.
planner::Programs RoundProgram(int size, int groups, int rounds, int64_t elements,
                               planner::OpKind kind = planner::OpKind::kAllReduce,
                               planner::DType dtype = planner::DType::kF32);

}  // namespace meshwright::runtime
