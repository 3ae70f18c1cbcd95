// The best splits once more, by simulation of their pipelines.
#pragma once

#include <cstddef>
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

/// The `shown` fastest by simulation of solutions in order of their objective, of which those are
/// simulated that could still win by it: the objective leaves out where unlike chunks wait for one
/// another. Errors of SimulatePipeline.
Result<std::vector<Finalist>> BestFinalists(const std::vector<DeviceGroup>& groups,
                                            const std::vector<Solution>& solutions, size_t shown);

}  // namespace meshwright::planner::space
