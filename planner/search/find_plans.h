// FindPlans: the best ways to train a model on a cluster, found exactly for a stated objective and
// re-ranked by simulation.
//
// Space. (tp, sequence parallelism, pp, virtual stages, dp, micro-batch, ZeRO none/1, placement
// order; 1, tp or 2 tp chunks of tensor traffic, where copy engines carry it) over all of the GPUs;
// for each, contiguous layer ranges per stage and the recomputation of every stage. With virtual
// stages and layers all of one kind, any layer count per stage is tried and dealt over the stage's
// chunks so that the largest is as small as can be; with several kinds the chunks are EvenLayers.
//
// Objective, seconds of one optimizer step, v virtual stages, m micro-batches, P stages:
//
//   T = 1/v sum_p t1(p)  +  k sum_p s(p) / v  +  2 (P-1 + (k-1) P) c
//       +  max_p [ (m - 1/v) t(p) + (m-1) h(p) + e(p) ]
//
//   t1, t  forward + backward of the first / every other micro-batch on stage p: template costs
//          added up, of ops beside traffic slowed by it
//   c      one message to the next stage, slowest pipeline edge
//   k      times that a micro-batch comes round to stage 0 without slack: v where the interleaved
//          schedule's groups have P micro-batches, 1 where they have more (or v is 1). Each time it
//          meets all messages, in warm-up and in cool-down
//   s      by which gradients beside the last micro-batch's backward slow it (EndOfStep)
//   h      what a 1F1B stage waits for messages in the steady state: 2c (P-1-p) / (P-p), its share
//          of a round trip over the micro-batches in flight; 0 with virtual stages, whose schedule
//          is deep enough
//   e      end of the step that nothing hides (EndOfStep: reductions, norm, optimizer, gathers)
//
// Equal stages without messages give (m + (P-1)/v) t + e, the known bubble. The estimate leaves out
// links that several kinds of traffic share, chunks of a stage that are unlike (which stall
// interleaved schedules) and the slack of later stages at the end; simulation has them, and the gap
// is reported: within 1 % mostly.
//
// Memory. Every stage keeps PlannedMemory + OutsideBytes within its device's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cost_models/cost_model.h"
#include "planner/ir/model_spec.h"
#include "planner/ir/plan.h"
#include "topologies/cluster.h"
#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::planner {

struct SearchOptions {
  int64_t gpus = 0;  ///< devices to use; 0: all of the cluster; more than it has: hosts are added
  int64_t global_batch = 1;  ///< samples per step
  int64_t sequence = 0;      ///< tokens per sample; 0: the model's maximum
  DType dtype = DType::kBf16;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  bool deterministic = false;   ///< see Plan::deterministic
  int64_t vocab_quantum = 1;    ///< vocabulary is padded to a multiple of this times tp
  int64_t bucket_elements = 0;  ///< 0: the default of MakePlan
  int64_t logits_chunk_bytes = kLogitsChunkBytes;  ///< see ModulePlan

  // Axes held at a value; the others are searched.
  std::optional<int64_t> tp, cp, ep, pp, virtual_stages, dp, micro_batch;
  std::optional<bool> sequence_parallel;
  std::optional<int64_t> tensor_chunks;  ///< see ModulePlan
  std::optional<Sharding> sharding;
  std::optional<Recompute> recompute;  ///< of every stage
  std::vector<int64_t>
      layers;  ///< layers per stage (chunk c of stage p at c x pp + p); empty: searched

  /// Interleaved schedules of at most this many chunks a stage are searched where they are legal.
  /// Like 1F1B with fewer micro-batches than stages, anything beyond is proposed only when held.
  int64_t max_virtual_stages = 8;
  std::optional<Bytes>
      memory_limit;     ///< of every device, instead of what cluster and profile state
  int64_t top = 5;      ///< plans returned; simulated, the first of them always
  int threads = 1;      ///< the result does not depend on it
  bool front = false;   ///< fill SearchResult::front: what could stand in it is evaluated
  bool suggest = true;  ///< when nothing fits, search for changes that do
  /// Order in which configurations are tried, 0: canonical. The result does not depend on it.
  uint64_t shuffle_seed = 0;
  /// Simulation of a plan; empty: plans keep the order of the objective and an empty prediction.
  std::function<Result<Prediction>(const Plan&)> predict;
  /// What takes too long for every plan: called once, with the chosen one and its prediction. It may
  /// refuse it; what it gives is the plan's prediction. Empty: nothing.
  std::function<Result<Prediction>(const Plan&)> confirm;
};

struct FoundPlan {
  Plan plan;
  double objective_s = 0.0;
  double gap = 0.0;  ///< objective / simulated step time - 1; 0 without simulation
  std::vector<MemoryBreakdown> memory;  ///< per stage, `outside` included
};

/// Configurations are splits before layer ranges and recomputation.
struct SearchCounts {
  int64_t configurations = 0;     ///< legal ones
  int64_t bounded_by_memory = 0;  ///< parameters alone do not fit
  int64_t bounded_by_time = 0;    ///< lower bound above the worst of the best
  int64_t evaluated = 0;          ///< by dynamic programming
  int64_t feasible = 0;           ///< of the evaluated
  double seconds = 0.0;           ///< wall time, simulation included
  double simulation_seconds = 0.0;
};

/// A plan that no other beats in time, memory and GPUs at once.
struct FrontPoint {
  std::string plan;
  double objective_s = 0.0;
  int64_t memory_bytes = 0;  ///< of the fullest device
  int64_t gpus = 0;
};

struct SearchResult {
  std::vector<FoundPlan> plans;  ///< best first; the first has reasons and runners-up filled in
  SearchCounts counts;
  std::vector<FrontPoint> front;  ///< by time; of what was evaluated
};

/// Errors: kInvalidInput for options out of range; kInfeasible when no split is legal (all problems
/// at once) or none fits: the message names stage, bytes by part, and the smallest changes that
/// fit, each of them checked by a search; kUnsupported for what stack `meshwright` cannot run.
Result<SearchResult> FindPlans(const ModelSpec& model, const topologies::Cluster& cluster,
                               const cost::CostModel& costs, const SearchOptions& options);

}  // namespace meshwright::planner
