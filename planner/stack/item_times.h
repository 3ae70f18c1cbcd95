// Seconds of the ops of an item, or of a part of it: sums that parts add to, and the passes of an
// item by what it keeps.
#pragma once

#include <algorithm>

#include "planner/stack/split.h"

namespace meshwright::planner::stack {

/// Sums over the ops of a pass.
struct PassSums {
  double device_s = 0.0;   ///< all but collectives
  double host_s = 0.0;     ///< launches
  double exposed_s = 0.0;  ///< collectives that nothing hides
  double skew_s = 0.0;     ///< waits for the slowest member
  double tensor_s = 0.0;   ///< collectives that products may hide
  double ring_s = 0.0;     ///< those that attention may hide
  double products_s = 0.0, attention_s = 0.0;
};

struct OpSums {
  PassSums forward, backward;
  double weight_s = 0.0;  ///< of backward's products and passes: gradients of weights
  double core_s = 0.0;    ///< what selective recomputation runs again
  double core_host_s = 0.0;
};

inline PassSums operator+(const PassSums& a, const PassSums& b) {
  return {a.device_s + b.device_s,     a.host_s + b.host_s,          a.exposed_s + b.exposed_s,
          a.skew_s + b.skew_s,         a.tensor_s + b.tensor_s,      a.ring_s + b.ring_s,
          a.products_s + b.products_s, a.attention_s + b.attention_s};
}

inline OpSums operator+(const OpSums& a, const OpSums& b) {
  return {a.forward + b.forward, a.backward + b.backward, a.weight_s + b.weight_s,
          a.core_s + b.core_s, a.core_host_s + b.core_host_s};
}

/// One pass of an item.
struct PassTimes {
  double device_s = 0.0;  ///< with exposed collectives
  double host_s = 0.0;
  double skew_s = 0.0;
};

struct ItemTimes {
  PassTimes forward, backward;
  double weight_s = 0.0, core_s = 0.0, core_host_s = 0.0;
};

inline double ForwardOf(const ItemTimes& t) {
  return std::max(t.forward.device_s, t.forward.host_s) + t.forward.skew_s;
}

/// With recomputation. Copies to the host are not part of it.
inline double BackwardOf(const ItemTimes& t, LayerMode mode) {
  PassTimes pass = t.backward;
  if (mode == LayerMode::kSelective) {
    pass.device_s += t.core_s;
    pass.host_s += t.core_host_s;
  } else if (mode == LayerMode::kFull) {
    pass.device_s += t.forward.device_s;
    pass.host_s += t.forward.host_s;
    pass.skew_s += t.forward.skew_s;
  }
  return std::max(pass.device_s, pass.host_s) + pass.skew_s;
}

}  // namespace meshwright::planner::stack
