// How a parameter's local elements lie in rows around its cut axis.
#pragma once

#include <cstdint>

#include "planner/ir/program.h"

namespace meshwright::runtime {

/// A parameter as [outer, extent, inner] with the cut axis in the middle (axis 0 when it is not
/// cut): local element (o, i, k) has index (o * local + i) * inner + k.
struct AxisSplit {
  int64_t outer = 1;
  int64_t local = 1;   ///< extent of the cut axis on this rank
  int64_t global = 1;  ///< extent of the cut axis unsharded
  int64_t inner = 1;
};

inline AxisSplit SplitAtCutAxis(const planner::ParameterEntry& entry) {
  AxisSplit split;
  const size_t axis = entry.axis < 0 ? 0 : static_cast<size_t>(entry.axis);
  for (size_t d = 0; d < entry.local_shape.size(); ++d) {
    if (d < axis) split.outer *= entry.local_shape[d];
    if (d > axis) split.inner *= entry.local_shape[d];
    if (d == axis) {
      split.local = entry.local_shape[d];
      split.global = entry.global_shape[d];
    }
  }
  return split;
}

}  // namespace meshwright::runtime
