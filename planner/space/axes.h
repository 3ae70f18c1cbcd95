// What an axis of the space may be; internal.
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "planner/space/space.h"

namespace meshwright::planner::space {

template <typename T>
bool Open(const std::optional<T>& held, const std::optional<T>& excluded, const T& value) {
  return (!held || *held == value) && (!excluded || *excluded != value);
}

/// `most` 0: no limit.
inline bool Within(int64_t value, int64_t most) {
  return most <= 0 || value <= most;
}

inline std::vector<int64_t> DivisorsOf(int64_t value) {
  std::vector<int64_t> low, high;
  for (int64_t d = 1; d * d <= value; ++d) {
    if (value % d != 0) continue;
    low.push_back(d);
    if (d != value / d) high.push_back(value / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

/// Total devices, and what the ranks of a stage must divide.
struct Devices {
  int64_t total = 0;
  int64_t common = 0;
};

inline Devices DevicesOf(const std::vector<DeviceGroup>& groups, int64_t gpus) {
  if (groups.size() == 1) return {gpus, gpus};
  Devices d;
  for (const DeviceGroup& g : groups) {
    d.total += g.gpus;
    d.common = std::gcd(d.common, g.gpus);
  }
  return d;
}

}  // namespace meshwright::planner::space
