// What a foreign stack costs on the machine that the user named, and the split that was asked for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "planner/ir/model_spec.h"
#include "planner/space/space.h"
#include "planner/stack/stack_costs.h"
#include "planner/stack/step.h"
#include "tools/output.h"
#include "tools/resolve.h"
#include "tools/split_options.h"
#include "topologies/status.h"

namespace meshwright::tools {

/// Costs of the model's (only) language module under --stack. kUnsupported for clusters of CPUs or
/// of unlike GPUs, models of several modules and formats that the GPUs lack.
Result<std::unique_ptr<planner::stack::StackStageCosts>> StackCostsFor(
    const SplitOptions& options, const planner::ModelSpec& model, const Machine& machine);

/// What the stack offers, and the axes that the options hold. Shards of the sequence below 256
/// tokens and micro-batches above 131,072 tokens are left out unless they are asked for: neither
/// pays.
Result<planner::space::SpaceOptions> SpaceFor(const SplitOptions& options,
                                              const planner::stack::CostInputs& inputs,
                                              const Machine& machine);

/// Bytes that a rank may use: of the smallest device.
double DeviceBytesOf(const Machine& machine);

/// The split that the options name, 1 (or the stack's first choice) for what is not held.
/// kInfeasible with every rule that it breaks.
Result<planner::stack::Split> NamedSplit(const SplitOptions& options,
                                         planner::stack::StackStageCosts& costs,
                                         const Machine& machine);

/// kKeep where --recompute is not given.
planner::stack::LayerMode NamedMode(const SplitOptions& options);

/// Stages, prediction and memory as tables, and the same in the document: the fields that
/// `estimate` has for our own stack, and `interval_s`, `stack`, `assumptions`.
void ShowStackPrediction(const planner::ModelSpec& model, const Machine& machine,
                         const planner::stack::StackStageCosts& costs,
                         const planner::stack::Split& split,
                         const std::vector<planner::stack::StageContent>& stages,
                         const planner::stack::StepPrediction& prediction, Output& output);

/// What layers keep over all stages: "14 keep, 2 full".
std::string KeptText(const std::vector<planner::stack::StageContent>& stages);

/// A sentence for every stage that needs more than its device has.
std::vector<std::string> StackFitProblems(const planner::stack::StepPrediction& prediction,
                                          double device_bytes);

}  // namespace meshwright::tools
