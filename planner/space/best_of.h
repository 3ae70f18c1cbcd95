// The best solutions so far.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "planner/space/solution.h"

namespace meshwright::planner::space {

/// Keeps the `top` best solutions by objective, then tuple.
class BestOf {
 public:
  explicit BestOf(size_t top) : top_(top) {}

  /// Objective above which a solution is not kept, seconds.
  double worst() const {
    return kept_.size() < top_ ? std::numeric_limits<double>::infinity() : kept_.back().objective_s;
  }
  void Add(Solution solution) {
    const auto before = [](const Solution& a, const Solution& b) {
      return a.objective_s != b.objective_s ? a.objective_s < b.objective_s : a.tuple < b.tuple;
    };
    kept_.insert(std::upper_bound(kept_.begin(), kept_.end(), solution, before),
                 std::move(solution));
    if (kept_.size() > top_) kept_.pop_back();
  }
  std::vector<Solution> Take() { return std::move(kept_); }

 private:
  size_t top_;
  std::vector<Solution> kept_;
};

}  // namespace meshwright::planner::space
