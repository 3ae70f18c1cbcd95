// Why a split is not in the space, in words; apart from the enumeration that it checks.
#pragma once

#include <string>
#include <vector>

#include "planner/space/space.h"
#include "topologies/status.h"

namespace meshwright::planner::space {

/// All rules that the split breaks, one sentence each: what was found, what is allowed. Empty: it
/// is legal on `gpus` devices (0 with several groups). Rules of parallelism.md 10.1 to 10.4.
std::vector<std::string> WhyIllegal(const std::vector<DeviceGroup>& groups,
                                    const SpaceOptions& options, int64_t gpus,
                                    const stack::Split& split);

/// kInfeasible: no split is legal, with the rules that the held members break by themselves.
Status NothingLegal(const std::vector<DeviceGroup>& groups, const SpaceOptions& options);

}  // namespace meshwright::planner::space
