// What a stage with given layers can keep: all choices of modes that matter to the optimum.
//
// A choice gives z and y = m t - z + e of the objective. Choice A makes B useless where z_A <= z_B
// and z_A + y_A <= z_B + y_B: putting A for B in any solution then changes the sum by z_A - z_B <=
// 0 and the maximum by at most max(0, y_A - y_B), together not above 0. Since z + y = m t + e, and
// e does not rise with the passes, the choice with the least t beats all others unless a longer
// pass hides more of the end of the step; those are enumerated within the window that is left.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/space/stage_place.h"

namespace meshwright::planner::space {

struct StageOption {
  double z = 0.0;
  double y = 0.0;  ///< m t - z + e
  std::vector<stack::ModeCounts> kinds;
};

/// z and y of a content, or nothing where it does not fit.
bool PriceOption(const StagePlace& place, StageOption& option);

struct StageOptionList {
  std::vector<StageOption> options;  ///< by z
  /// How much lower than the options' z + y something left out by the limit of work may be; 0: all
  /// are there.
  double slack_s = 0.0;
};

/// Choices for `layers` (by kind) with y <= most_y that no other makes useless.
StageOptionList OptionsOf(const StagePlace& place, const std::vector<int64_t>& layers,
                          double most_y);

/// Least StageMemory::total over all choices, bytes, and the choice.
double LeastMemoryOf(const StagePlace& place, const std::vector<int64_t>& layers,
                     std::vector<stack::ModeCounts>& kinds);

}  // namespace meshwright::planner::space
