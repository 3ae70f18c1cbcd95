// A pipeline stage of a split, before its layers are chosen.
#pragma once

#include <array>

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

}  // namespace meshwright::planner::space
