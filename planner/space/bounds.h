// Lower bounds on the time and the memory of every solution of a tuple, from its item tables.
//
// Notation: items i (layers, embedding, head), stages p with group g(p), P stages, v virtual
// stages, m micro-batches, t(p) time of a micro-batch on a stage, z(p) and e(p) as in
// planner/stack/stage_costs.h, c(i, g) the least forward + backward of item i on group g over the
// allowed modes.
//
// Time. T = S + 2 (P v - 1) c + X with S = sum_p z(p), X = max_p [m t(p) - z(p) + e(p)].
//   1. For weights L(p) >= 0 that sum to 1 a maximum is at least the weighted mean, so
//      max_p t(p) >= sum_p L(p) t(p) >= A := sum_i min_g L(g) c(i, g) + v x (least exposed
//      message). With L(g) ~ 1 / (all work on g) this is work / P on like devices.
//   2. 1F1B, interleaved: z = t/v, so S >= sum_i min_g c(i, g) / v + P x and
//      X >= (m - 1/v) A + e0, e0 the bound of the end of the step for a stage with v layers.
//      Some stage holds ceil(layers / P) layers or more, so X >= (m - 1/v) t1 + e1 with t1, e1
//      those of as many least layers. The larger counts.
//   3. ZB-H1: S + X >= sum_p (1 - L(p)) z(p) + m A + e0, and sum_p z(p) >= sum_p (t(p) - 2 w(p)).
//
// Memory. Memory rises with sums and in-flight micro-batches; some stage holds ceil(layers / P)
// layers or more, and none keeps fewer micro-batches than the last one. Of the stage's layers one
// has the largest working set; all save at least what the least saving mode within it does.
#pragma once

#include <utility>
#include <vector>

#include "planner/space/space.h"

namespace meshwright::planner::space {

/// Least numbers of one item table over the allowed modes.
struct TableMinima : stack::LeastSeconds {
  explicit TableMinima(size_t kinds) { layer_s.resize(kinds); }
  double least_layer_s = 0.0;  ///< over the kinds that occur
  double layers_s = 0.0;       ///< all layers
  double late_s = 0.0;         ///< all items: forward + backward - 2 weight; may be negative
  double message_s = 0.0;
  double exposed_message_s = 0.0;
  /// Least (working set, saved bytes) of a layer, one mode each: working sets rise, saved bytes
  /// fall.
  std::vector<std::pair<double, double>> memory;
  /// (Parameters of a layer, layers of that kind), fewest first; each kind of parameter by itself.
  std::vector<std::pair<double, double>> dense, expert;
  /// Least parameters of `layers` layers.
  stack::ItemParameters LeastParameters(double layers) const;
  double work_s() const { return layers_s + embedding_s + head_s; }
};

/// Bounds of the tuples of one module.
class Bounds {
 public:
  Bounds(const std::vector<DeviceGroup>& groups, const SpaceOptions& options);

  /// Modes that layers may have under a split.
  std::array<bool, stack::kLayerModes> Modes(const stack::Split& split) const;
  /// `exact`: the table is Items of a split, not LeastItems (which bounds no difference).
  TableMinima MinimaOf(const stack::ItemTable& table,
                       const std::array<bool, stack::kLayerModes>& modes, bool exact) const;
  /// Seconds; `minima` by group. Proof 1 to 3 above.
  double Time(const stack::Split& split, const std::vector<TableMinima>& minima) const;
  /// Seconds, below Time of every split with that shape on `gpus` devices: m A depends on the shape
  /// alone, since m / P does. `least` by group, of StageCosts::LeastPasses.
  double ShapeTime(const Shape& shape, int64_t gpus,
                   const std::vector<stack::LeastSeconds>& least) const;
  /// False: no solution of the split fits.
  bool MayFit(const stack::Split& split, const std::vector<TableMinima>& minima) const;

 private:
  /// Seconds of all items.
  double WorkOf(const stack::LeastSeconds& least) const;
  /// A without messages, and the largest weight, for `stages` of each group; Least: TableMinima or
  /// LeastSeconds.
  template <typename Least>
  double WeightedWork(const std::vector<double>& stages, const std::vector<Least>& minima,
                      double* largest) const;

  const std::vector<DeviceGroup>& groups_;
  const SpaceOptions& options_;
  std::vector<double> kind_layers_;  ///< layers of each kind
  double layers_ = 0.0;
};

}  // namespace meshwright::planner::space
