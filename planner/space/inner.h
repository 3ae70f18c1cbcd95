// The exact inner optimum of a tuple: layers and modes of every stage, by dynamic programming over
// the stages.
//
// A partial solution (stages 0 to p-1 hold the first n layers) matters by S = sum of z and X =
// maximum of y so far (planner/stack/stage_costs.h, stage_options.h). Of two with equal p and n,
// one with S_A <= S_B and S_A + X_A <= S_B + X_B makes the other useless: whatever follows, the sum
// falls by S_B - S_A and the maximum rises by at most max(0, X_A - X_B).
//
// Layers. One chunk a stage: any contiguous ranges, at least one layer each. Several chunks and
// layers of one kind: any number of at least v layers on a stage, dealt over its chunks. Several
// chunks and kinds: the chunks are EvenLayers. `even_layers`: equal numbers.
#pragma once

#include <optional>
#include <vector>

#include "planner/space/space.h"
#include "planner/space/stage_options.h"

namespace meshwright::planner::space {

struct Solution {
  Tuple tuple;
  std::vector<int32_t> groups;  ///< device group of each stage
  std::vector<int64_t> layers;  ///< of each stage
  std::vector<stack::StageContent> stages;
  double objective_s = 0.0;                ///< T
  std::vector<stack::StageMemory> memory;  ///< of each stage
  /// Bytes on the fullest device.
  double peak_bytes() const;
};

/// T and memory of given stages, by the definition of the objective.
Solution PriceSolution(const std::vector<DeviceGroup>& groups, const Tuple& tuple,
                       std::vector<int64_t> layers, std::vector<stack::StageContent> stages);

class Hull;

class Inner {
 public:
  Inner(const std::vector<DeviceGroup>& groups, const SpaceOptions& options);

  struct Outcome {
    std::optional<Solution> solution;  ///< none: nothing at most `give_up` fits
    /// Optimum >= min(solution or give_up) - slack: 0 unless enumeration met its limit of work.
    double slack_s = 0.0;
  };
  /// Best solution with T <= give_up.
  Outcome Fastest(const Tuple& tuple, double give_up);

  /// Lower bound of the objectives <= give_up, seconds; infinite when there are none. Tighter than
  /// bounds.h: a stage whose n layers may save S bytes takes at least n h(S / n) more than with the
  /// fastest modes, with h the lower convex hull of (saved, time beyond the fastest) over kinds and
  /// modes. Since n h(s / n) is jointly convex, all stages take at least L h(sum S / L) more.
  double TimeBound(const Tuple& tuple, double give_up);

  /// The solution whose worst stage exceeds its memory by the least (or leaves the most).
  std::optional<Solution> LeastMemory(const Tuple& tuple);

 private:
  /// What layers keep by rule, where the search has no choice.
  struct Rule {
    stack::LayerMode rest = stack::LayerMode::kKeep;
    int64_t full = 0;  ///< first layers of a stage that keep their input only
  };
  struct State {
    double sum = 0.0, most = 0.0;
    int64_t layers = 0;  ///< of the stage that led here
    const StageOption* option = nullptr;
    int32_t previous = 0;
  };
  using Front = std::vector<State>;
  struct Setup;

  void Prepare(const Tuple& tuple, Setup& setup) const;
  double LeastRecomputation(Setup& setup, double most_y) const;
  /// Sums of the stages' embedding and head, parameters of the layers before each.
  void PrepareEnds(Setup& setup) const;
  /// Where the chunks are fixed: every stage fits in its least memory.
  bool FixedStagesFit(const Setup& setup) const;
  /// Lowers most layers to what memory and y <= most_y together allow at least; `sets`: (working
  /// set, saved bytes) of modes.
  bool MostByBoth(Setup& setup, const std::vector<std::pair<double, double>>& sets,
                  const Hull& hull, double most_y) const;
  /// Layers that a stage holds since the others can take no more.
  int64_t SureLayers(const Setup& setup, int64_t stage) const;
  /// Embedding and head, and the least parameters of that many layers whose first is in a range.
  stack::StageSums SumsOf(const Setup& setup, int64_t stage, int64_t layers,
                          const std::pair<int64_t, int64_t>& firsts, double transient) const;
  /// Least seconds of the fullest stage, all layers in their fastest modes, messages apart.
  double LeastFullStage(const Setup& setup) const;
  std::vector<Rule> Rules(const Setup& setup) const;
  void Solve(Setup& setup, const Rule* rule, double give_up, Outcome& outcome);
  /// Sets most layers by time; false when they are too few.
  bool MostByTime(Setup& setup, double most_y) const;
  bool Windows(Setup& setup, const Rule* rule, double most_y);
  void Extend(Setup& setup, const Rule* rule, int64_t stage, int64_t used, double most_y,
              double give_up);
  const StageOptionList& Options(Setup& setup, const Rule* rule, int64_t stage, int64_t first,
                                 int64_t count, double most_y);
  /// Layers by kind of a stage's range; `first` counts the layers of earlier stages.
  void CountKinds(const Setup& setup, int64_t stage, int64_t first, int64_t count,
                  std::vector<int64_t>& kinds) const;
  StageOption ByRule(const Setup& setup, const Rule& rule, int64_t stage, int64_t first,
                     int64_t count) const;
  template <typename F>
  void ForLayers(const Setup& setup, int64_t stage, int64_t first, int64_t count, const F& f) const;
  /// Range of layers that a stage may take.
  std::pair<int64_t, int64_t> CountRange(const Setup& setup, int64_t stage) const;

  const std::vector<DeviceGroup>& groups_;
  const SpaceOptions& options_;
  const ModuleSpec& module_;
  int64_t layers_ = 0;
  bool one_kind_ = false;
  std::vector<bool> kind_occurs_;
};

}  // namespace meshwright::planner::space
