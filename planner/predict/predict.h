// Predict: step time, throughput and memory of a plan, from the simulated programs.
#pragma once

#include <vector>

#include "planner/ir/plan.h"
#include "planner/ir/program.h"
#include "planner/ir/trace.h"
#include "planner/predict/prices.h"
#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::planner {

struct PredictOptions {
  bool fold = true;
  bool merge = true;
  /// Steps to simulate. The step time is the last end of the last step less that of the step before
  /// it, so that work which overlaps with the next step (gathers of parameters) counts as it does
  /// in a long run. 1: the first step alone.
  int64_t steps = 2;
  bool trace = false;  ///< fill SimulatedStep::trace
};

/// A prediction and the timeline behind it.
struct SimulatedStep {
  Prediction prediction;
  std::vector<TraceRow> trace;  ///< all ranks, all simulated steps; on request
  int64_t nodes = 0;            ///< of the simulated graph
  int32_t classes = 0;          ///< of ranks
};

/// Simulates the programs of `plan` (which must have passed Verify) and sums up:
///   tokens_per_s_per_gpu = global_batch x sequence / step time / ranks
///   model_tflops_per_gpu = ModelFlopsPerStep / step time / ranks / 1e12   (causal attention
///   counted half) mfu                  = model FLOP/s per rank / dense peak of the plan's dtype
///   stage_time_s         = time a step in which ops run on the compute stream (longest class of
///   the stage) bubble_fraction      = 1 - sum of stage_time_s / (stages x step time) memory = the
///   arena of the stage's program + OutsideBytes
/// CPU ranks: the peak is that of the cores which a rank gets, cores of the host / its ranks, at
/// most one; mfu is 0 when the profile states no peak. Errors: those of ToTaskGraph and Simulate.
Result<SimulatedStep> Predict(const Plan& plan, const Programs& programs, const Prices& prices,
                              const PredictOptions& options = {});

/// Device memory of a rank beside the arena, from the profile's measured constants: context,
/// libraries, and of each communicator the buffers of its CTAs. 0 for CPU ranks.
Bytes OutsideBytes(const RankProgram& program, const cost::DeviceProfile& profile);

}  // namespace meshwright::planner
