// Races and stale reads found op by op: slow, and the words of the fast check's messages.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "planner/ir/program.h"

namespace meshwright::planner::verify {

/// Bytes of the arena to look at.
struct ByteRange {
  int64_t begin = 0;
  int64_t end = std::numeric_limits<int64_t>::max();
};

/// The first race or stale read of two consecutive steps in `range`, in words that name tasks, ops
/// and tensors; nothing when there is none. Cost: ops x streams + accesses x distinct byte ranges.
std::optional<std::string> FindOpRace(const RankProgram& program, const ByteRange& range = {});

}  // namespace meshwright::planner::verify
