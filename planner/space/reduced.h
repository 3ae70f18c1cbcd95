// Tuples whose stages hold equal layers of one kind, all in one mode, on like devices: three kinds
// of stages (first, inner, last) say all, so that millions of tuples a second are priced exactly.
#pragma once

#include <optional>
#include <vector>

#include "planner/space/solution.h"
#include "planner/space/space.h"

namespace meshwright::planner::space {

class EqualStages {
 public:
  EqualStages(const std::vector<DeviceGroup>& groups, const SpaceOptions& options);

  /// Whether the options ask for such tuples and nothing else.
  bool Apply() const { return applies_; }
  int64_t ModesOf(const stack::Split& split) const;

  struct Counts {
    int64_t bounded = 0;    ///< by time without the end of the step
    int64_t evaluated = 0;  ///< priced in full
    int64_t feasible = 0;
  };
  /// Best solution over the modes with an objective <= give_up.
  std::optional<Solution> Best(const stack::Split& split, double give_up, Counts& counts);

 private:
  bool Allowed(const stack::Split& split, size_t mode) const;
  /// T; infinite when a stage does not fit.
  double Price(const stack::Split& split, const stack::ItemTable& table, size_t mode);
  stack::StageContent Content(const stack::Split& split, size_t mode, int64_t stage) const;

  const std::vector<DeviceGroup>& groups_;
  const SpaceOptions& options_;
  const ModuleSpec& module_;
  bool applies_ = false;
  size_t kind_ = 0;
  stack::StageContent content_;
};

}  // namespace meshwright::planner::space
