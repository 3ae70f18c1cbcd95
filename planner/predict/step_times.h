// What a simulation of steps says of time; Predict and PredictFromFew sum it up.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/ir/plan.h"
#include "planner/ir/program.h"
#include "planner/predict/predict.h"
#include "planner/predict/prices.h"
#include "topologies/status.h"

namespace meshwright::planner {

struct StepTimes {
  double step_s = 0.0;          ///< the last step's, see PredictOptions::steps
  std::vector<double> stage_s;  ///< Prediction::stage_time_s, the mean of all steps

  // Of the first step, which a second one does not reach before its last Backward.
  double backward_end_s = 0.0;        ///< the last
  std::vector<double> first_stage_s;  ///< as stage_s
  /// By stage: from the first to the last op that a Forward or Backward has on the compute stream,
  /// summed up. What it waits for within counts, what it waits for to begin does not.
  std::vector<double> stage_pass_s;

  std::vector<TraceRow> trace;  ///< on request
  int64_t nodes = 0;
  int32_t classes = 0;
};

/// Errors: those of ToTaskGraph and Simulate; kInfeasible for programs without ops.
Result<StepTimes> SimulateSteps(const Programs& programs, const Prices& prices,
                                const PredictOptions& options);

/// `programs` are those of `plan`; times may come from others.
SimulatedStep SumUp(const Plan& plan, const Programs& programs, const Prices& prices,
                    StepTimes times);

}  // namespace meshwright::planner
