#include "tools/split_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace meshwright::tools {
namespace {

constexpr IntRange kAxis = {1, 1 << 20};

}  // namespace

void SplitOptions::Declare(OptionSet& options) {
  options.Text("--model", &model, "M",
               "a shipped name (llama-3-8b ...), our YAML, or a Hugging Face config.json");
  options.Int("--global-batch", &global_batch, {1, int64_t{1} << 30},
              "sequences in one optimizer step");
  options.Int("--seq", &sequence, {1, int64_t{1} << 24},
              "tokens in a sequence; default: the model's maximum");
  options.Require("--model");
  options.Require("--global-batch");
  options.Heading("How the model is split");
  options.Int("--tp", &tp, kAxis, "tensor parallel ranks");
  options.Int("--cp", &cp, kAxis, "context parallel ranks");
  options.Int("--ep", &ep, kAxis, "expert parallel ranks");
  options.Int("--pp", &pp, {1, 4096}, "pipeline stages");
  options.Int("--vpp", &virtual_stages, {1, 1024},
              "model chunks of each pipeline stage (interleaved schedule)");
  options.Int("--dp", &dp, kAxis, "data parallel ranks; default: GPUs / (tp pp cp ep)");
  options.Int("--micro-batch", &micro_batch, {1, 1 << 20}, "sequences in a micro-batch");
  options.Ints("--layers", &layers, {1, 1 << 20}, "layers of each (virtual) stage, in order");
  options.Int("--vocab-quantum", &vocab_quantum, {1, 1 << 20},
              "the vocabulary is padded to a multiple of this times tp; default: 128 on GPUs, 1 on "
              "CPU ranks");
  options.Choice("--recompute", &recompute, {"none", "selective", "full", "offload"},
                 "activations computed again in backward (offload: kept in host memory)");
  options.Choice("--zero", &zero, {"0", "1", "2", "3", "none", "zero1", "zero2", "zero3"},
                 "cut over data parallel ranks: 1 optimizer states, 2 gradients too, 3 parameters "
                 "too");
  options.Choice("--sp", &sequence_parallel, {"on", "off"},
                 "sequence parallelism inside tensor groups; default: on where legal");
  options.Int(
      "--tensor-chunks", &tensor_chunks, {1, kMostTensorChunks},
      "chunks of rows in which traffic of tensor groups goes beside products; with sequence "
      "parallelism a multiple of tp");
  options.Int(
      "--logits-chunk", &logits_chunk_mib, {1, kMostLogitsChunkMib},
      "MiB of logits that a rank computes at a time; default: 1/128 of a GPU's memory, from "
      "256 to 1024, 256 on CPU ranks");
  options.Choice("--dtype", &dtype, {"bf16", "fp32", "fp64"},
                 "of the arithmetic; default: bf16 on GPUs, fp32 on CPU ranks");
  options.Choice("--optimizer", &optimizer, {"adamw", "sgd"}, "decides the optimizer's memory");
  options.Flag("--deterministic", &deterministic,
               "GPU ranks compute the same bits from run to run: more scratch, slower");
  options.Heading("Training stack");
  options.Text("--stack", &stack, "NAME",
               "meshwright (ours, runs here), megatron, fsdp2, deepspeed ..., or a file");
  options.Int("--expert-tp", &expert_tp, kAxis, "tensor parallel ranks inside each expert");
  options.Choice("--schedule", &schedule, {"1f1b", "interleaved", "zb-h1"},
                 "order of a pipeline's passes");
  options.Choice("--precision", &precision,
                 {"bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32", "any"},
                 "number format of the linear layers; default: bf16; any: plan searches those that "
                 "GPU and stack have");
  options.Real("--expert-imbalance", &expert_imbalance, {1, 1000},
               "tokens of the busiest expert rank / the mean");
  options.Heading("");
}

Status CheckOwnStack(const SplitOptions& options) {
  const auto refuse = [](const std::string& flag, const std::string& found,
                         const std::string& allowed) {
    return Unsupported(fmt::format(
        "{} {}: stack meshwright does not run it; allowed: {}; for others add --stack megatron (or "
        "fsdp2, deepspeed)",
        flag, found, allowed));
  };
  if (options.recompute == "offload") {
    return refuse("--recompute", options.recompute, "none, selective, full");
  }
  if (options.zero.ends_with('2') || options.zero.ends_with('3')) {
    return refuse("--zero", options.zero, "0, 1");
  }
  if (options.schedule == "zb-h1")
    return refuse("--schedule", options.schedule, "1f1b, interleaved");
  if (options.expert_tp) return refuse("--expert-tp", std::to_string(*options.expert_tp), "none");
  if (!options.precision.empty() && options.precision != "bf16" && options.precision != "fp32") {
    return refuse("--precision", options.precision, "bf16, fp32");
  }
  return Status::Ok();
}

int64_t SplitOptions::ranks() const {
  return tp.value_or(1) * cp.value_or(1) * ep.value_or(1) * pp.value_or(1) * dp.value_or(1);
}

Result<int64_t> SplitOptions::DataParallel(const Machine& machine) const {
  const int64_t gpus = machine.gpus;
  const int64_t inner = tp.value_or(1) * cp.value_or(1) * ep.value_or(1) * pp.value_or(1);
  const std::string axes = fmt::format("tp {} x pp {} x cp {} x ep {}", tp.value_or(1),
                                       pp.value_or(1), cp.value_or(1), ep.value_or(1));
  const topologies::Cluster& cluster = machine.cluster;
  const std::string there =
      fmt::format("{} of the {} devices ({} hosts) of cluster '{}'", gpus, cluster.device_count(),
                  cluster.host_count(), cluster.name());
  if (dp) {
    if (inner * *dp <= gpus) return *dp;
    return Infeasible(fmt::format(
        "{} x dp {} needs {} devices, there are {}; pass --gpus {} (hosts are added) or "
        "make an axis smaller",
        axes, *dp, inner * *dp, there, inner * *dp));
  }
  if (inner <= gpus && gpus % inner == 0) return gpus / inner;
  return Infeasible(fmt::format(
      "{} = {} does not divide {} (remainder {}); pass --gpus with a multiple of {}, more "
      "--nodes, or other axes",
      axes, inner, there, gpus % inner, inner));
}

planner::DType SplitOptions::DTypeOn(bool cpu) const {
  if (dtype.empty()) return cpu ? planner::DType::kF32 : planner::DType::kBf16;
  return planner::ParseDType(dtype).value();  // one of the choices
}

std::optional<planner::Recompute> SplitOptions::HeldRecompute() const {
  if (recompute.empty()) return std::nullopt;
  return planner::ParseRecompute(recompute).value();
}

std::optional<planner::Sharding> SplitOptions::HeldSharding() const {
  if (zero.empty()) return std::nullopt;
  return zero == "1" || zero == "zero1" ? planner::Sharding::kZero1 : planner::Sharding::kNone;
}

std::optional<bool> SplitOptions::HeldSequenceParallel() const {
  if (sequence_parallel.empty()) return std::nullopt;
  return sequence_parallel == "on";
}

int64_t SplitOptions::LogitsChunkBytesOn(const Machine& machine) const {
  if (logits_chunk_mib) return *logits_chunk_mib << 20;
  if (machine.on_cpu()) return planner::kLogitsChunkBytes;
  const auto share = static_cast<uint64_t>(machine.profile.memory.value.value()) / 128;
  return std::clamp(static_cast<int64_t>(std::bit_floor(share)), planner::kLogitsChunkBytes,
                    int64_t{1} << 30);
}

planner::OptimizerKind SplitOptions::Optimizer() const {
  return planner::ParseOptimizerKind(optimizer).value();
}

Result<planner::SplitRequest> ToSplitRequest(const SplitOptions& options, const Machine& machine) {
  planner::SplitRequest request;
  MW_RETURN_IF_ERROR(CheckOwnStack(options));
  MW_ASSIGN_OR_RETURN(request.dp, options.DataParallel(machine));
  request.tp = options.tp.value_or(1);
  request.cp = options.cp.value_or(1);
  request.ep = options.ep.value_or(1);
  request.pp = options.pp.value_or(1);
  request.virtual_stages = options.virtual_stages.value_or(1);
  request.micro_batch = options.micro_batch.value_or(1);
  request.global_batch = *options.global_batch;
  request.sequence = options.sequence.value_or(0);
  request.sequence_parallel = options.HeldSequenceParallel();
  request.tensor_chunks = options.tensor_chunks.value_or(1);
  request.sharding = options.HeldSharding().value_or(planner::Sharding::kNone);
  if (const auto recompute = options.HeldRecompute()) request.recompute = {*recompute};
  request.layers = options.layers;
  request.vocab_quantum = options.VocabQuantumOn(machine.on_cpu());
  request.logits_chunk_bytes = options.LogitsChunkBytesOn(machine);
  request.dtype = options.DTypeOn(machine.on_cpu());
  request.device = machine.on_cpu() ? topologies::DeviceKind::kCpu : topologies::DeviceKind::kGpu;
  request.optimizer = options.Optimizer();
  request.deterministic = options.deterministic;
  return request;
}

int64_t MaxSequence(const planner::ModelSpec& model) {
  int64_t longest = 0;
  for (const planner::ModuleSpec& module : model.modules)
    longest = std::max(longest, module.max_positions);
  return longest;
}

}  // namespace meshwright::tools
