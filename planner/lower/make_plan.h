// MakePlan: a complete plan from a split that somebody names, without a search.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/ir/plan.h"
#include "topologies/status.h"

namespace meshwright::planner {

/// The split of a model's first module; zero or empty means "the natural default".
struct SplitRequest {
  int64_t tp = 1, pp = 1, dp = 1, cp = 1, ep = 1;
  int64_t virtual_stages = 1;
  int64_t micro_batch = 1;
  int64_t global_batch = 1;
  int64_t sequence = 0;                   ///< 0: the model's maximum
  std::optional<bool> sequence_parallel;  ///< default: on where legal
  int64_t tensor_chunks = 1;  ///< see ModulePlan
  Sharding sharding = Sharding::kNone;
  std::vector<Recompute> recompute;  ///< one for all stages, or one a stage; empty: none
  std::vector<int64_t> layers;  ///< layers per virtual stage (pp * virtual_stages); empty: even
  DType dtype = DType::kBf16;
  topologies::DeviceKind device = topologies::DeviceKind::kCpu;
  bool deterministic = false;  ///< see Plan::deterministic
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  int64_t vocab_quantum = 1;    ///< vocabulary is padded to a multiple of this times tp
  int64_t logits_chunk_bytes = kLogitsChunkBytes;  ///< see ModulePlan
  int64_t bucket_elements = 0;  ///< 0: max(40e6, 1e6 dp) (parallelism.md 8.1)
};

/// Layers per virtual stage, as even as possible; the longer stages lie in the middle, away from
/// embedding and head (30 over 4: 7 8 8 7).
std::vector<int64_t> EvenLayers(int64_t layers, int64_t stages);

/// Workspace of a plan's ranks: what the kernels of GPU ranks may use beside their operands (32 MiB
/// for cuBLASLt on Hopper, as its manual recommends; twice that for partial sums of column
/// reductions); none on CPU ranks.
constexpr int64_t WorkspaceBytes(topologies::DeviceKind device) {
  return device == topologies::DeviceKind::kGpu ? int64_t{64} << 20 : 0;
}

/// Fills in a plan and checks it (CheckPlan). Placement is rank i on GPU i; prediction stays empty.
Result<Plan> MakePlan(const ModelSpec& model, const SplitRequest& request);

}  // namespace meshwright::planner
