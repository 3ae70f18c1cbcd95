// A pipeline stage of a split, before its layers are chosen.
#pragma once

#include <array>
#include <cstddef>

#include "planner/space/space.h"

namespace meshwright::planner::space {

/// A stage before its layers are chosen.
struct StagePlace {
  stack::StageCosts* costs = nullptr;
  const stack::ItemTable* table = nullptr;
  const stack::Split* split = nullptr;
  double memory_bytes = 0.0;
  double in_flight = 0.0;
  bool embedding = false;
  bool head = false;
  std::array<bool, stack::kLayerModes> modes{};
};

/// Saved bytes up to `all` with which `sums` fit the place, rounded up by a billionth of `all`;
/// negative: they do not fit with none.
double MostSaved(const StagePlace& place, stack::StageSums sums, double all);

/// Seconds of a layer, forward and backward.
inline double PassesOf(const stack::ItemCost& cost) {
  return cost.forward_s + cost.backward_s;
}

/// The fastest of the modes that `allowed(mode)`, then the one that saves least; kLayerModes: none.
template <typename Allowed>
size_t FastestMode(const std::array<stack::ItemCost, stack::kLayerModes>& costs,
                   const Allowed& allowed) {
  size_t best = stack::kLayerModes;
  for (size_t mode = 0; mode < stack::kLayerModes; ++mode) {
    if (!allowed(mode)) continue;
    if (best == stack::kLayerModes) {
      best = mode;
      continue;
    }
    const double a = PassesOf(costs[mode]), b = PassesOf(costs[best]);
    if (a < b || (a == b && costs[mode].saved_bytes < costs[best].saved_bytes)) best = mode;
  }
  return best;
}

}  // namespace meshwright::planner::space
