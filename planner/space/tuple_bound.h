// A bound of one tuple that knows the memory of its stages: dearer and tighter than bounds.h.
//
// 1. How many layers a stage can hold at most, by time and memory: n layers take at least their
//    fastest modes and n h(S / n) more, S what they may save besides the stage's parameters and
//    working set, h the lower convex hull of (saved, time beyond the fastest) over kinds and modes.
//    Where the stages together hold too few layers there is no solution.
// 2. What a stage must hold since the others can take no more bounds S of every stage. n h(s / n)
// is
//    jointly convex, so all stages take at least L h(sum of S / L) more than the fastest modes.
// 3. The fullest stage is at least that of the best contiguous ranges in the fastest modes.
// The objective then follows as in bounds.h.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "planner/space/hull.h"
#include "planner/space/tuple_stages.h"

namespace meshwright::planner::space {

class TupleBound {
 public:
  /// One device group.
  TupleBound(const TupleStages& stages, const ModuleSpec& module, double give_up);

  /// Lower bound of the objectives <= give_up, seconds; infinite when there are none.
  double Seconds();

 private:
  void Sums();
  Hull MakeHull();
  bool FixedStagesFit() const;
  /// Whether a stage may hold n layers of which the first lies in that range.
  bool Holds(const Hull& hull, int64_t stage, int64_t n, std::pair<int64_t, int64_t> firsts) const;
  /// Lowers most_ by Holds; false: too few layers.
  bool LowerMost(const Hull& hull);
  /// Step 2; infinite: a stage cannot hold what it must.
  double LeastRecomputation(const Hull& hull) const;
  int64_t SureLayers(int64_t stage) const;
  /// Embedding and head, and the least parameters of n layers whose first lies in that range.
  stack::StageSums LeastSums(int64_t stage, int64_t n, std::pair<int64_t, int64_t> firsts) const;
  double LeastFullStage() const;
  double LeastEnd() const;

  const TupleStages& stages_;
  const ModuleSpec& module_;
  const stack::ItemTable& table_;
  double give_up_ = 0.0;
  double most_y_ = 0.0;
  std::vector<int64_t> most_;  ///< layers that each stage may hold
  int64_t most_total_ = 0;
  std::vector<std::pair<double, double>> sets_;  ///< (working set, least saved bytes) of modes
  std::vector<double> fastest_;                  ///< seconds of a layer, by kind
  std::vector<double> fastest_before_;           ///< seconds of the layers before each
  std::vector<stack::ItemParameters> parameters_before_;
  std::vector<stack::StageSums> ends_;  ///< embedding and head of each stage
};

}  // namespace meshwright::planner::space
