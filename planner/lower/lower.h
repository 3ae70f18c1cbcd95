// Lower: Plan -> Programs, by named passes.
#pragma once

#include <functional>
#include <string>

#include "planner/ir/plan.h"
#include "planner/ir/program.h"
#include "topologies/status.h"

namespace meshwright::planner {

/// Programs of every rank. The plan is checked first (CheckPlan); kUnsupported names what the stack
/// `meshwright` cannot run yet (mixture of experts, latent attention, context parallelism ...).
Result<Programs> Lower(const Plan& plan);

/// As Lower, but all tensor ranks of a stage have the program of the first. Where Lower gives each
/// its own, they differ in which rows an op takes, not in how many or when: for Predict, which folds
/// equal ranks, and not to be run.
Result<Programs> LowerForPrices(const Plan& plan);

/// What stack `meshwright` cannot lower in this model and plan, all at once; ok when everything can.
Status CheckSupported(const Plan& plan);

/// Text of the graphs of one layer after each pass: build, shard, fuse, differentiate, recompute.
std::string DumpPasses(const Plan& plan, size_t module, int64_t stage);

}  // namespace meshwright::planner
