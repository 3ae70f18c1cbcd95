// The fastest modes with which a stage fits its memory: a covering knapsack.
//
// A stage's working set is that of one of its items, so for each possible one (a cap that excludes
// the modes above it) there is a number of bytes that may be saved, and every layer that leaves its
// fastest mode pays time for bytes. Branch and bound over the ways to pay, cheapest by byte first,
// with the fractional optimum as the bound.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "planner/space/stage_options.h"

namespace meshwright::planner::space {

/// Modes by kind that a choice may use.
using ModeSets = std::vector<std::array<bool, stack::kLayerModes>>;

/// Working sets that a stage with these layers can have, bytes, largest first.
std::vector<double> WorkingSets(const StagePlace& place, const std::vector<int64_t>& layers);

/// Modes for `rest` layers (by kind) besides `fixed` ones: the least t of what fits, if it is below
/// `below_t` seconds. The answer counts both.
std::optional<std::vector<stack::ModeCounts>> FastestModes(
    const StagePlace& place, const std::vector<stack::ModeCounts>& fixed,
    const std::vector<int64_t>& rest, const ModeSets& allowed, double below_t);

}  // namespace meshwright::planner::space
