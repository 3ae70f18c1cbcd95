// `meshwright plan --stack`: the whole space of a foreign stack, with certificate and answers.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "planner/ir/model_spec.h"
#include "planner/space/finalists.h"
#include "planner/space/find_splits.h"
#include "tools/output.h"
#include "tools/resolve.h"
#include "tools/split_options.h"
#include "topologies/status.h"

namespace meshwright::tools {

struct StackPlanOptions {
  int64_t top = 5;
  bool explain = false;           ///< decisions with their runners-up
  bool front = false;             ///< splits that nothing beats in time, memory and GPUs
  bool any_gpus = false;          ///< counts from one host up to --gpus, doubling
  double price_per_gpu_hour = 0;  ///< for the front's costs
  double train_tokens = 0;
};

/// Searches, predicts the best and shows it. kInfeasible: what binds and what would fit.
Status PlanStack(const SplitOptions& split, const StackPlanOptions& options,
                 const planner::ModelSpec& model, const Machine& machine, Output& output);

struct SimulatedSearch {
  planner::space::SpaceResult found;
  std::vector<planner::space::Finalist> finalists;  ///< at least one, best first
};
/// FindSplits, and of its best solutions the `shown` best by simulation of their pipelines. When
/// nothing fits, the error says what binds and what would fit, and the document lists it under
/// `would_fit`.
Result<SimulatedSearch> SearchAndSimulate(const std::vector<planner::space::DeviceGroup>& groups,
                                          planner::space::SpaceOptions space, size_t shown,
                                          nlohmann::json* document);
/// Certificate and finalists, under `search`, `simulated_step_s` and `runners_up` of the document.
void ShowSearch(const SimulatedSearch& search, Output& output);

/// Every shipped model (of one language module) on the machine: the best split, or why not.
Status WhichModelFits(const SplitOptions& split, const Machine& machine, Output& output);

}  // namespace meshwright::tools
