// Synthetic programs that show what executor and communicators cost.
#pragma once

#include <cstdint>

#include "planner/ir/program.h"

namespace meshwright::runtime {

/// `ranks` ranks on their own: `ops` copies of a few elements a step.
planner::Programs OpProgram(int ranks, int ops);

/// `groups` groups of `size` ranks: `rounds` rounds a step of a small copy on the compute stream and,
/// behind it on another stream, a collective (or a message from member 0 to 1) of `elements` elements;
/// the next round waits for it.
planner::Programs RoundProgram(int size, int groups, int rounds, int64_t elements,
                               planner::OpKind kind = planner::OpKind::kAllReduce,
                               planner::DType dtype = planner::DType::kF32);

}  // namespace meshwright::runtime
