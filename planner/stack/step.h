// PredictStep: time and memory of one optimizer step of a split whose stages are given.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/stack/stack_costs.h"
#include "topologies/status.h"

namespace meshwright::planner::stack {

/// Where the seconds of a step go; they add up to `total`.
struct StepParts {
  double total = 0.0;
  double work = 0.0;    ///< micro-batches x the slowest stage
  double bubble = 0.0;  ///< filling and draining, messages on the way
  double end = 0.0;     ///< exposed reductions, optimizer, gathers
};

struct StepPrediction {
  StepParts parts;
  double low_s = 0.0, high_s = 0.0;  ///< interval: total x exp(-+2 x log deviation of the stack)
  std::vector<StageMemory> memory;   ///< per stage
  double tokens_per_s_per_gpu = 0.0;
  double model_tflops_per_gpu = 0.0;  ///< ModelFlopsPerStep / step / ranks
  double mfu = 0.0;                   ///< of the dense peak of the split's format

  double peak_bytes() const;
};

/// Stages of like numbers of layers: L over pp x virtual stages; where that does not divide,
/// embedding and head count as a layer each; where that does not either, the ends of the pipeline
/// get the short stages. All layers in one mode. kInfeasible with fewer layers than chunks.
Result<std::vector<StageContent>> EvenStages(const ModuleSpec& module, const Split& split,
                                             LayerMode mode);

/// `contents`: one a stage, together all layers of the module.
StepPrediction PredictStep(StackStageCosts& costs, const Split& split,
                           const std::vector<StageContent>& contents);

}  // namespace meshwright::planner::stack
