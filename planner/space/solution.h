// A split with its layers and modes, priced.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/space/space.h"

namespace meshwright::planner::space {

struct Solution {
  Tuple tuple;
  std::vector<int32_t> groups;  ///< device group of each stage
  std::vector<int64_t> layers;  ///< of each stage
  std::vector<stack::StageContent> stages;
  double objective_s = 0.0;                ///< T of planner/stack/stage_costs.h
  std::vector<stack::StageMemory> memory;  ///< of each stage
  /// Bytes on the fullest device.
  double peak_bytes() const;
};

/// T and memory of given stages, by the definition of the objective.
Solution PriceSolution(const std::vector<DeviceGroup>& groups, const Tuple& tuple,
                       std::vector<int64_t> layers, std::vector<stack::StageContent> stages);

}  // namespace meshwright::planner::space
