// The best splits once more, by simulation of their pipelines.
#pragma once

#include <vector>

#include "planner/space/solution.h"
#include "topologies/status.h"

namespace meshwright::planner::space {

struct Finalist {
  Solution solution;
  double simulated_s = 0.0;  ///< of planner/stack/pipeline.h
  double gap = 0.0;          ///< objective / simulated - 1
};

/// By simulated time, then objective and tuple. Errors of SimulatePipeline.
Result<std::vector<Finalist>> SimulateFinalists(const std::vector<DeviceGroup>& groups,
                                                std::vector<Solution> solutions);

}  // namespace meshwright::planner::space
