// The step time of many micro-batches from steps of few.
#pragma once

#include <cstdint>
#include <optional>

#include "cost_models/cost_model.h"
#include "planner/ir/plan.h"
#include "planner/predict/predict.h"
#include "topologies/cluster.h"
#include "topologies/status.h"

namespace meshwright::planner {

/// Counts of micro-batches to simulate instead of a plan's own.
struct FewMicroBatches {
  int64_t first = 0;  ///< in each of two steps
  int64_t group = 0;  ///< by which to go on, in steps of their own
};

/// Groups of the interleaved schedule, or without it of the pipeline's depth, at least 2; two at
/// first, where that saves a quarter of the simulation, or one. Absent where that saves no quarter
/// either, or another count of groups would have another schedule (last groups of unlike size).
std::optional<FewMicroBatches> EnoughMicroBatches(int64_t pp, int64_t virtual_stages,
                                                  int64_t micro_batches);

/// Micro-batches that PredictFromFew simulates in two steps if it need not go on; at most
/// `micro_batches`.
int64_t SimulatedMicroBatches(int64_t pp, int64_t virtual_stages, int64_t micro_batches);

/// LowerForPrices, MakePrices and Predict (two steps), but of fewer micro-batches where
/// EnoughMicroBatches. A step is a timed event graph: when its pipeline has settled, every further
/// micro-batch adds the time that it takes in the slowest stage, so
///   T(M) = T(m) + E(n) - E(m) + (M - n) x max(slope, pace)
/// with m = first; T the second of two steps; E the last end of a Backward in the first, which
/// nothing of the second reaches; slope = (E(n) - E(m)) / (n - m), and pace that of the stage whose
/// passes (StepTimes::stage_pass_s) take longest. n doubles until the slope reaches that pace:
/// before, a slower stage still uses up the lead of the others. Within 0.7 % of Predict in
/// tests/planner/few_micro_batches_test.cc, on average 0.1 %: gradients and parameters that share
/// links with messages disturb a short step otherwise than a long one. Memory is of the plan
/// itself. No trace.
Result<SimulatedStep> PredictFromFew(const Plan& plan, const topologies::Cluster& cluster,
                                     const cost::CostModel& costs);

}  // namespace meshwright::planner
