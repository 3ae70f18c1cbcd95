// Plan: how one model is trained on one cluster. Immutable once found; lowered to Programs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/ir/dtype.h"
#include "planner/ir/model_spec.h"
#include "topologies/host.h"
#include "topologies/status.h"

namespace meshwright::planner {

enum class Recompute : uint8_t { kNone, kSelective, kFull };
enum class Sharding : uint8_t { kNone, kZero1 };  ///< of optimizer states over data parallel ranks
enum class ScheduleKind : uint8_t { kOneForwardOneBackward, kInterleaved };
enum class OptimizerKind : uint8_t { kAdamW, kSgd };

std::string ToString(Recompute value);
std::string ToString(Sharding value);
std::string ToString(ScheduleKind value);
std::string ToString(OptimizerKind value);
Result<Recompute> ParseRecompute(const std::string& text);
Result<Sharding> ParseSharding(const std::string& text);
Result<ScheduleKind> ParseScheduleKind(const std::string& text);
Result<OptimizerKind> ParseOptimizerKind(const std::string& text);

/// Layers [first_layer, first_layer + layer_count) of a module.
struct LayerRange {
  int64_t first_layer = 0;
  int64_t layer_count = 0;
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

/// Of plans that do not say: 1,024 rows of a vocabulary of 128 k in bf16. Large GPUs gain from more
/// (cost_models/h200_runs.md).
inline constexpr int64_t kLogitsChunkBytes = int64_t{256} << 20;

/// How one module is split. Rank = rank_offset + tp_i + tp*(cp_i + cp*(ep_i + ep*(dp_i +
/// dp*pp_i))): axes tp, cp, ep, dp, pp, the first varying fastest (parallelism.md section 1).
struct ModulePlan {
  std::string module;  ///< name of the ModuleSpec
  int64_t tp = 1;
  int64_t cp = 1;
  int64_t ep = 1;
  int64_t dp = 1;
  int64_t pp = 1;
  int64_t rank_offset = 0;
  int64_t virtual_stages = 1;  ///< model chunks per pipeline stage
  bool sequence_parallel = false;
  /// Chunks of rows into which products and traffic of the tensor group are cut, so that traffic of
  /// one goes beside products of another. With sequence parallelism a multiple of tp: parts of the
  /// ranks' slices of the sequence, which go around their ring. 1: not cut.
  int64_t tensor_chunks = 1;
  Sharding sharding = Sharding::kNone;
  /// chunks[c * pp + p] is chunk c of stage p; together they cover every layer once, in order.
  std::vector<LayerRange> chunks;
  std::vector<Recompute> recompute;  ///< per pipeline stage
  int64_t kv_copies = 1;             ///< tensor ranks that hold the same key-value head
  int64_t padded_vocab = 0;          ///< vocab rounded up to a multiple of vocab_quantum * tp
  int64_t bucket_elements = 0;       ///< target size of a gradient bucket, in elements
  /// The head's rows go in chunks of at most this many bytes of logits a rank, forward and
  /// backward.
  int64_t logits_chunk_bytes = kLogitsChunkBytes;
  friend bool operator==(const ModulePlan&, const ModulePlan&) = default;

  int64_t ranks() const { return tp * cp * ep * dp * pp; }
  /// Tensor ranks differ where each begins with the rows that it has itself.
  int64_t programs_per_stage() const { return sequence_parallel && tensor_chunks > 1 ? tp : 1; }
};

/// Traffic between two modules (indices into Plan::modules), see parallelism.md sections 2 and 3.
struct BridgePlan {
  int from = 0;
  int to = 0;
  friend bool operator==(const BridgePlan&, const BridgePlan&) = default;
};

/// Memory of one rank of a stage in bytes, by what it is for. The arena is the sum of the parts up
/// to `workspace`; `outside` (context, libraries, communicators) is a measured constant of the
/// profile.
struct MemoryBreakdown {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;      ///< moments and master weights
  int64_t saved = 0;          ///< slots x bytes saved for backward
  int64_t scratch = 0;        ///< largest block scratch, workspaces included
  int64_t communication = 0;  ///< receive and send buffers
  int64_t io = 0;             ///< labels and scalars
  int64_t outside = 0;
  int64_t slots = 0;  ///< number of saved slots (micro-batches x chunks in flight)
  friend bool operator==(const MemoryBreakdown&, const MemoryBreakdown&) = default;

  int64_t arena() const {
    return parameters + gradients + optimizer + saved + scratch + communication + io;
  }
  int64_t total() const { return arena() + outside; }
};

/// What the planner predicted for the plan; every figure is about one optimizer step.
struct Prediction {
  double step_time_s = 0.0;
  double bubble_fraction = 0.0;  ///< 1 - sum of busy compute time / (stages x step)
  double tokens_per_s_per_gpu = 0.0;
  double model_tflops_per_gpu = 0.0;
  double mfu = 0.0;                     ///< of the dense peak of the compute dtype
  std::vector<MemoryBreakdown> memory;  ///< per pipeline stage, modules in plan order
  std::vector<double> stage_time_s;     ///< busy compute time per pipeline stage
  friend bool operator==(const Prediction&, const Prediction&) = default;
};

/// A plan that lost, and why.
struct RunnerUp {
  std::string plan;  ///< e.g. "tp8 pp4 dp2 mb1 selective"
  double step_time_s = 0.0;
  std::string reason;
  friend bool operator==(const RunnerUp&, const RunnerUp&) = default;
};

inline constexpr int kPlanSchemaVersion = 2;

struct Plan {
  std::string stack = "meshwright";
  ModelSpec model;
  std::string cluster_name;
  std::string cluster_text;  ///< the cluster in its YAML form, so that the plan stands alone
  uint64_t model_fingerprint = 0;
  uint64_t cluster_fingerprint = 0;

  std::vector<ModulePlan> modules;
  std::vector<BridgePlan> bridges;
  ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward;
  DType dtype = DType::kBf16;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  topologies::DeviceKind device = topologies::DeviceKind::kGpu;  ///< that the programs are for
  /// Scratch of a rank for kernels' partial sums and library workspaces, in bytes. GPU kernels that
  /// need more are refused before the first step; CPU kernels need none.
  int64_t workspace_bytes = 0;
  /// GPU ranks compute the same bits from run to run, which takes other scratch (attention
  /// backward) and time. CPU ranks always do.
  bool deterministic = false;
  int64_t sequence = 0;            ///< tokens per sample
  int64_t micro_batch = 0;         ///< samples per micro-batch and data-parallel rank
  int64_t micro_batches = 0;       ///< per step and data-parallel rank
  int64_t global_batch = 0;        ///< samples per step = micro_batch * micro_batches * dp
  int64_t vocab_quantum = 1;       ///< vocabulary is padded to a multiple of this times tp
  std::vector<int64_t> placement;  ///< rank -> global GPU index of the cluster

  Prediction prediction;
  std::vector<std::string> reasons;
  std::vector<std::string> warnings;
  std::vector<RunnerUp> runners_up;
  friend bool operator==(const Plan&, const Plan&) = default;

  int64_t world_size() const {
    int64_t n = 0;
    for (const ModulePlan& m : modules) n = std::max(n, m.rank_offset + m.ranks());
    return n;
  }
};

/// "tp2 pp2 dp2 mb1 x4 1f1b sp zero1 none": the short name used in tables.
std::string ShortName(const Plan& plan);

/// Everything legality needs, all violations at once (kInfeasible), naming field, value, allowed,
/// remedy.
Status CheckPlan(const Plan& plan);

/// plan.json: versioned text form. Reading checks version, types, ranges and fingerprints.
std::string WritePlanJson(const Plan& plan);
Result<Plan> ParsePlanJson(const std::string& text, const std::string& source);

/// Fingerprint of everything that changes the lowered programs (prediction and reasons left out).
uint64_t Fingerprint(const Plan& plan);

}  // namespace meshwright::planner
