// The options that name a model, a batch and (parts of) a split: shared by `plan` and `estimate`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/ir/model_spec.h"
#include "planner/ir/plan.h"
#include "planner/lower/make_plan.h"
#include "tools/command_line.h"
#include "tools/resolve.h"
#include "topologies/status.h"

namespace meshwright::tools {

inline constexpr int64_t kMostTensorChunks = 64;
inline constexpr int64_t kMostLogitsChunkMib = int64_t{1} << 20;

/// Axes that the user holds; empty ones are free.
struct SplitOptions {
  std::string model;
  std::optional<int64_t> global_batch, sequence;
  std::optional<int64_t> tp, cp, ep, pp, virtual_stages, dp, micro_batch;
  std::vector<int64_t> layers;  ///< per virtual stage
  std::optional<int64_t> vocab_quantum, tensor_chunks, logits_chunk_mib;
  std::string recompute, zero, sequence_parallel, dtype, optimizer = "adamw";
  bool deterministic = false;
  // Of foreign stacks.
  std::string stack = "meshwright";
  std::optional<int64_t> expert_tp;
  std::string schedule, precision;
  double expert_imbalance = 1.0;  ///< tokens of the busiest expert rank / the mean
  bool own_stack() const { return stack == "meshwright"; }

  void Declare(OptionSet& options);

  /// tp x cp x ep x pp x dp with 1 for what is not held.
  int64_t ranks() const;
  /// dp, or what the other axes leave of the machine's GPUs. kInfeasible when they do not divide
  /// them.
  Result<int64_t> DataParallel(const Machine& machine) const;
  planner::DType DTypeOn(bool cpu) const;  ///< default: bf16 on GPUs, fp32 on CPU ranks
  /// The vocabulary is padded to a multiple of this times tp. Default: 128 on GPUs, as Megatron-LM
  /// pads; products with 50257 columns take 7 times as long there as with 50304
  /// (cost_models/h200_runs.md).
  int64_t VocabQuantumOn(bool cpu) const { return vocab_quantum.value_or(cpu ? 1 : 128); }
  /// See ModulePlan. Default: on GPUs the power of two below 1/128 of the memory, 256 MiB to 1 GiB:
  /// the head's products have more rows then, and its weight's gradient is read and written less
  /// often (cost_models/h200_runs.md).
  int64_t LogitsChunkBytesOn(const Machine& machine) const;
  std::optional<planner::Recompute> HeldRecompute() const;
  std::optional<planner::Sharding> HeldSharding() const;
  std::optional<bool> HeldSequenceParallel() const;
  planner::OptimizerKind Optimizer() const;
};

/// kUnsupported for options that only foreign stacks have.
Status CheckOwnStack(const SplitOptions& options);

/// The split with 1 (none) for what is not held and dp from the number of GPUs.
Result<planner::SplitRequest> ToSplitRequest(const SplitOptions& options, const Machine& machine);

/// Longest sequence of the model's modules; 0: no limit stated.
int64_t MaxSequence(const planner::ModelSpec& model);

}  // namespace meshwright::tools
