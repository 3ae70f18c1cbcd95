// The exact inner optimum of a tuple: layers and modes of every stage, by dynamic programming over
// the stages.
//
// A partial solution (stages 0 to p-1 hold the first n layers) matters by S = sum of z and X =
// maximum of y so far (planner/stack/stage_costs.h, stage_options.h). Of two with equal p and n,
// one with S_A <= S_B and S_A + X_A <= S_B + X_B makes the other useless: whatever follows, the sum
// falls by S_B - S_A and the maximum rises by at most max(0, X_A - X_B).
#pragma once

#include <optional>
#include <vector>

#include "planner/space/solution.h"
#include "planner/space/space.h"

namespace meshwright::planner::space {

class Inner {
 public:
  Inner(const std::vector<DeviceGroup>& groups, const SpaceOptions& options)
      : groups_(groups), options_(options) {}

  struct Outcome {
    std::optional<Solution> solution;  ///< none: nothing at most `give_up` fits
    /// Optimum >= min(solution or give_up) - slack: 0 unless enumeration met its limit of work.
    double slack_s = 0.0;
  };
  /// Best solution with T <= give_up.
  Outcome Fastest(const Tuple& tuple, double give_up) const;

  /// Lower bound of the objectives <= give_up, seconds; infinite when there are none
  /// (tuple_bound.h; 0 with several groups).
  double TimeBound(const Tuple& tuple, double give_up) const;

 private:
  const std::vector<DeviceGroup>& groups_;
  const SpaceOptions& options_;
};

}  // namespace meshwright::planner::space
