// `meshwright plan --stack` on a cluster of unlike GPUs: stages on each kind, layers and kept
// tensors by its speed and memory.
#pragma once

#include "planner/ir/model_spec.h"
#include "tools/output.h"
#include "tools/plan_stack.h"
#include "tools/resolve.h"
#include "tools/split_options.h"
#include "topologies/status.h"

namespace meshwright::tools {

/// True when the cluster's hosts have GPUs of more than one profile.
bool HasUnlikeDevices(const topologies::Cluster& cluster);

/// All GPUs of the cluster are used. kUnsupported for CPUs; kInfeasible as PlanStack.
Status PlanMixed(const SplitOptions& split, const StackPlanOptions& options,
                 const planner::ModelSpec& model, const topologies::Cluster& cluster,
                 Output& output);

}  // namespace meshwright::tools
