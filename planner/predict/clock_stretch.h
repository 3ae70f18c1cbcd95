// How much the power limit's clock stretches the products of a model's training step.
#pragma once

#include <cstdint>

#include "cost_models/cost_model.h"
#include "planner/ir/dtype.h"
#include "planner/ir/model_spec.h"
#include "topologies/cluster.h"
#include "topologies/status.h"

namespace meshwright::planner {

/// CostOptions::stretch for training `model` on sequences of this length: StretchOf what a step on
/// one GPU, of micro-batches of about 16,384 tokens, is busy with. What splits change, waiting and
/// recomputation, is left out (tensor traffic: MakePrices). 1 for CPUs, profiles without
/// `power_clock`, other arithmetic than bf16, and models that the stack meshwright cannot run.
///
/// `costs` has stretch 1; `cluster` gives a device to price on.
Result<double> ClockStretch(const ModelSpec& model, int64_t sequence, DType dtype,
                            const topologies::Cluster& cluster, const cost::CostModel& costs);

}  // namespace meshwright::planner
