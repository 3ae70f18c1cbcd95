// Slurm's short forms of lists. Internal to the detection of launchers.
#pragma once

#include <string>

#include "topologies/status.h"

namespace meshwright::runtime {

/// First host of a list like "gpu[003-006,9]-a,login1": "gpu003-a".
Result<std::string> FirstSlurmHost(const std::string& list);

/// Entry `node` (0-based) of a list like "4(x2),3", which is 4, 4, 3. With node -1 the list must
/// have one value only, which holds for all nodes.
Result<int> SlurmTasksOfNode(const std::string& list, int node);

}  // namespace meshwright::runtime
