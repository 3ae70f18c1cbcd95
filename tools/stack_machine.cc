#include "tools/stack_machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "planner/space/legal.h"
#include "tools/table.h"

namespace meshwright::tools {
namespace {

using planner::stack::LayerMode;
using planner::stack::LinearFormat;
using planner::stack::Schedule;
using planner::stack::ShardingLevel;
using planner::stack::Split;
using planner::stack::StageContent;
using planner::stack::StageMemory;

LinearFormat FormatOf(const std::string& name) {
  if (name == "fp16") return LinearFormat::kFp16;
  if (name == "fp8") return LinearFormat::kFp8;
  if (name == "mxfp8") return LinearFormat::kMxFp8;
  if (name == "nvfp4") return LinearFormat::kNvFp4;
  if (name == "fp32") return LinearFormat::kFp32;
  return LinearFormat::kBf16;
}

std::optional<ShardingLevel> ShardingOf(const std::string& zero) {
  if (zero.empty()) return std::nullopt;
  if (zero.ends_with('1')) return ShardingLevel::kZero1;
  if (zero.ends_with('2')) return ShardingLevel::kZero2;
  if (zero.ends_with('3')) return ShardingLevel::kZero3;
  return ShardingLevel::kNone;
}

std::optional<Schedule> ScheduleOf(const std::string& name) {
  if (name == "1f1b") return Schedule::kOneForwardOneBackward;
  if (name == "interleaved") return Schedule::kInterleaved;
  if (name == "zb-h1") return Schedule::kZeroBubbleH1;
  return std::nullopt;
}

int64_t Whole(double bytes) {
  return std::llround(bytes);
}

nlohmann::json MemoryJson(const StageMemory& m) {
  return {{"parameters", Whole(m.parameters)}, {"gradients", Whole(m.gradients)},
          {"optimizer", Whole(m.optimizer)},   {"activations", Whole(m.activations)},
          {"transient", Whole(m.transient)},   {"reserve", Whole(m.reserve)},
          {"outside", Whole(m.outside)},       {"allocated", Whole(m.allocated())},
          {"reserved", Whole(m.reserved())},   {"total", Whole(m.total())}};
}

int64_t LayersOf(const StageContent& stage) {
  int64_t layers = 0;
  for (const planner::stack::ModeCounts& kind : stage.kinds) layers += kind.total();
  return layers;
}

}  // namespace

std::string KeptText(const std::vector<StageContent>& stages) {
  std::array<int64_t, planner::stack::kLayerModes> counts{};
  for (const StageContent& stage : stages) {
    for (const planner::stack::ModeCounts& kind : stage.kinds) {
      for (size_t m = 0; m < counts.size(); ++m) counts[m] += kind.layers[m];
    }
  }
  std::vector<std::string> parts;
  for (size_t m = 0; m < counts.size(); ++m) {
    if (counts[m] > 0) {
      parts.push_back(fmt::format("{} {}", counts[m], ToString(static_cast<LayerMode>(m))));
    }
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

double DeviceBytesOf(const Machine& machine) {
  double bytes = static_cast<double>(machine.profile.memory.value.value());
  for (int host = 0; host < machine.cluster.host_count(); ++host) {
    const int64_t stated =
        machine.cluster.Device(machine.cluster.FirstDeviceOf(host)).memory.value();
    if (stated > 0) bytes = std::min(bytes, static_cast<double>(stated));
  }
  return bytes;
}

Result<std::unique_ptr<planner::stack::StackStageCosts>> StackCostsFor(
    const SplitOptions& options, const planner::ModelSpec& model, const Machine& machine) {
  if (machine.on_cpu()) {
    return Unsupported("--stack " + options.stack +
                       ": found a cluster of CPU ranks; allowed: GPU clusters; leave --stack out "
                       "for CPU ranks");
  }
  for (const auto& [option, value] : {std::pair{"--tensor-chunks", options.tensor_chunks},
                                      {"--logits-chunk", options.logits_chunk_mib}}) {
    if (!value) continue;
    return Unsupported(
        fmt::format("{} {}: found --stack {}; allowed: stack meshwright; leave one of them out",
                    option, *value, options.stack));
  }
  if (model.modules.size() != 1) {
    return Unsupported(
        fmt::format("--stack {}: model '{}' has {} modules; allowed: one language model",
                    options.stack, model.name, model.modules.size()));
  }
  planner::stack::CostInputs inputs;
  MW_ASSIGN_OR_RETURN(inputs.stack, planner::stack::LoadStack(options.stack));
  inputs.module = model.modules.front();
  MW_ASSIGN_OR_RETURN(inputs.fabric, planner::stack::FabricOf(machine.cluster));
  inputs.profile = machine.profile;
  inputs.expert_imbalance = options.expert_imbalance;
  inputs.sequence = options.sequence.value_or(inputs.module.max_positions);
  if (inputs.sequence < 1)
    return InvalidInput("--seq: the model states no longest sequence; give one");
  MW_ASSIGN_OR_RETURN(std::unique_ptr<planner::stack::StackStageCosts> costs,
                      planner::stack::StackStageCosts::Make(std::move(inputs)));
  if (options.precision == "any") return costs;
  const LinearFormat format = FormatOf(options.precision);
  const std::vector<LinearFormat>& offered = costs->inputs().stack.formats;
  if (!costs->Supports(format) ||
      std::find(offered.begin(), offered.end(), format) == offered.end()) {
    std::vector<std::string> allowed;
    for (const LinearFormat f : offered) {
      if (costs->Supports(f)) allowed.emplace_back(ToString(f));
    }
    return Unsupported(fmt::format(
        "--precision {}: stack {} on {} has no such linear layers; allowed: {}", ToString(format),
        costs->inputs().stack.name, machine.profile.description, fmt::join(allowed, ", ")));
  }
  return costs;
}

Result<planner::space::SpaceOptions> SpaceFor(const SplitOptions& options,
                                              const planner::stack::CostInputs& inputs,
                                              const Machine& machine) {
  const planner::stack::StackSpec& stack = inputs.stack;
  planner::space::SpaceOptions space;
  space.gpus = {machine.gpus};
  space.global_batch = *options.global_batch;
  space.sharding = stack.sharding;
  space.schedules = stack.schedules;
  space.formats = {FormatOf(options.precision)};
  if (options.precision == "any") {
    // Formats of lower precision than bf16, where the device has a rate for them.
    for (const LinearFormat format :
         {LinearFormat::kFp8, LinearFormat::kMxFp8, LinearFormat::kNvFp4}) {
      const bool offered =
          std::find(stack.formats.begin(), stack.formats.end(), format) != stack.formats.end();
      if (offered && HasFormat(machine.profile, format)) {
        space.formats.push_back(format);
      }
    }
  }
  space.modes = {false, false, false, false};
  for (const LayerMode mode : stack.modes) space.modes[static_cast<size_t>(mode)] = true;
  space.offload_in_pipelines = false;
  space.even_layers = !stack.uneven_layers;
  space.most_virtual_stages = stack.max_virtual_stages;
  planner::space::Axes& held = space.held;
  held.tp = options.tp;
  held.cp = options.cp;
  held.ep = options.ep;
  held.expert_tp = options.expert_tp;
  held.pp = options.pp;
  held.virtual_stages = options.virtual_stages;
  held.dp = options.dp;
  held.micro_batch = options.micro_batch;
  held.sequence_parallel = options.HeldSequenceParallel();
  held.sharding = ShardingOf(options.zero);
  held.schedule = ScheduleOf(options.schedule);
  if (!options.recompute.empty()) {
    space.modes = {false, false, false, false};
    space.modes[static_cast<size_t>(NamedMode(options))] = true;
  }
  return space;
}

LayerMode NamedMode(const SplitOptions& options) {
  if (options.recompute == "selective") return LayerMode::kSelective;
  if (options.recompute == "full") return LayerMode::kFull;
  if (options.recompute == "offload") return LayerMode::kOffload;
  return LayerMode::kKeep;
}

Result<Split> NamedSplit(const SplitOptions& options, planner::stack::StackStageCosts& costs,
                         const Machine& machine) {
  const planner::stack::StackSpec& stack = costs.inputs().stack;
  Split split;
  split.tp = options.tp.value_or(1);
  split.cp = options.cp.value_or(1);
  split.ep = options.ep.value_or(1);
  split.expert_tp = options.expert_tp.value_or(1);
  split.pp = options.pp.value_or(1);
  split.virtual_stages = options.virtual_stages.value_or(1);
  const int64_t inner = split.tp * split.cp * split.pp;
  if (!options.dp && machine.gpus % inner != 0) {
    return Infeasible(fmt::format(
        "tp {} x cp {} x pp {} = {} does not divide {} GPUs; pass --gpus with a multiple of {}, or "
        "other axes",
        split.tp, split.cp, split.pp, inner, machine.gpus, inner));
  }
  split.dp = options.dp.value_or(machine.gpus / inner);
  split.micro_batch = options.micro_batch.value_or(1);
  const int64_t per_pass = split.dp * split.micro_batch;
  if (*options.global_batch % per_pass != 0) {
    return Infeasible(fmt::format(
        "--global-batch {} is not a multiple of dp {} x micro-batch {} = {}; nearest: {} and {}",
        *options.global_batch, split.dp, split.micro_batch, per_pass,
        std::max<int64_t>(*options.global_batch / per_pass, 1) * per_pass,
        (*options.global_batch / per_pass + 1) * per_pass));
  }
  split.micro_batches = *options.global_batch / per_pass;
  split.sequence_parallel = options.HeldSequenceParallel().value_or(split.tp > 1);
  split.sharding = ShardingOf(options.zero).value_or(stack.sharding.front());
  split.format = FormatOf(options.precision);
  split.schedule = ScheduleOf(options.schedule)
                       .value_or(split.virtual_stages > 1 ? Schedule::kInterleaved
                                                          : Schedule::kOneForwardOneBackward);
  MW_ASSIGN_OR_RETURN(planner::space::SpaceOptions space,
                      SpaceFor(options, costs.inputs(), machine));
  space.held = {};
  space.sequence_parallel_tied = false;
  space.offload_in_pipelines = true;
  const int64_t gpus = options.dp ? split.ranks() : machine.gpus;
  space.gpus = {gpus};
  const std::vector<planner::space::DeviceGroup> groups = {
      {machine.cluster.name(), &costs, DeviceBytesOf(machine), gpus}};
  const std::vector<std::string> broken = planner::space::WhyIllegal(groups, space, gpus, split);
  if (!broken.empty()) {
    Status status =
        Infeasible(fmt::format("split {}: {}", ShortName(split), fmt::join(broken, "; ")));
    return status;
  }
  return split;
}

std::vector<std::string> StackFitProblems(const planner::stack::StepPrediction& prediction,
                                          double device_bytes) {
  std::vector<std::string> problems;
  for (size_t p = 0; p < prediction.memory.size(); ++p) {
    const StageMemory& m = prediction.memory[p];
    if (m.total() <= device_bytes) continue;
    problems.push_back(fmt::format(
        "stage {} needs {} of {}: parameters {}, gradients {}, optimizer {}, activations {}, "
        "working "
        "set {}, allocator {}, outside {}; recompute or shard more, raise pp or tp, or lower the "
        "micro-batch",
        p, BytesText(Whole(m.total())), BytesText(Whole(device_bytes)),
        BytesText(Whole(m.parameters)), BytesText(Whole(m.gradients)),
        BytesText(Whole(m.optimizer)), BytesText(Whole(m.activations)),
        BytesText(Whole(m.transient)), BytesText(Whole(m.reserve)), BytesText(Whole(m.outside))));
  }
  return problems;
}

void ShowStackPrediction(const planner::ModelSpec& model, const Machine& machine,
                         const planner::stack::StackStageCosts& costs, const Split& split,
                         const std::vector<StageContent>& stages,
                         const planner::stack::StepPrediction& prediction, Output& output) {
  const double device_bytes = DeviceBytesOf(machine);
  const std::vector<std::string> problems = StackFitProblems(prediction, device_bytes);
  nlohmann::json& d = output.document();
  const planner::stack::StackSpec& stack = costs.inputs().stack;
  d["stack"] = stack.name;
  d["fits"] = problems.empty();
  d["step_time_s"] = prediction.parts.total;
  d["interval_s"] = {prediction.low_s, prediction.high_s};
  d["tokens_per_s_per_gpu"] = prediction.tokens_per_s_per_gpu;
  d["model_tflops_per_gpu"] = prediction.model_tflops_per_gpu;
  d["mfu"] = prediction.mfu > 0 ? nlohmann::json(prediction.mfu) : nlohmann::json(nullptr);
  d["peak_memory_bytes"] = Whole(prediction.peak_bytes());
  d["step_parts_s"] = {{"work", prediction.parts.work},
                       {"bubble", prediction.parts.bubble},
                       {"end", prediction.parts.end}};
  d["split"] = {{"name", ShortName(split)},
                {"tp", split.tp},
                {"cp", split.cp},
                {"ep", split.ep},
                {"expert_tp", split.expert_tp},
                {"pp", split.pp},
                {"virtual_stages", split.virtual_stages},
                {"dp", split.dp},
                {"micro_batch", split.micro_batch},
                {"micro_batches", split.micro_batches},
                {"sequence_parallel", split.sequence_parallel},
                {"sharding", ToString(split.sharding)},
                {"schedule", ToString(split.schedule)},
                {"precision", ToString(split.format)},
                {"order", ToString(split.order)}};
  d["stages"] = nlohmann::json::array();
  Table table({"stage", "layers", "kept", "parameters", "gradients", "optimizer", "activations",
               "working set", "allocator", "outside", "total", "of device"});
  for (size_t p = 0; p < stages.size(); ++p) {
    const StageMemory& m = prediction.memory[p];
    d["stages"].push_back({{"layers", LayersOf(stages[p])},
                           {"recompute", KeptText({stages[p]})},
                           {"memory", MemoryJson(m)},
                           {"device_bytes", Whole(device_bytes)}});
    table.Row({std::to_string(p), std::to_string(LayersOf(stages[p])), KeptText({stages[p]}),
               BytesText(Whole(m.parameters)), BytesText(Whole(m.gradients)),
               BytesText(Whole(m.optimizer)), BytesText(Whole(m.activations)),
               BytesText(Whole(m.transient)), BytesText(Whole(m.reserve)),
               BytesText(Whole(m.outside)), BytesText(Whole(m.total())),
               PercentText(m.total() / device_bytes)});
  }
  const Style& style = output.style();
  Table facts({"", "", ""});
  facts.Row({"model", model.name, Thousands(planner::TotalParameters(model)) + " parameters"});
  facts.Row({"stack", stack.name, stack.description});
  facts.Row({"step time", SecondsText(prediction.parts.total),
             fmt::format("{} to {} by the errors of {} measured rows (twice their deviation)",
                         SecondsText(prediction.low_s), SecondsText(prediction.high_s),
                         stack.residuals.rows)});
  facts.Row({"  of it", "",
             fmt::format("micro-batches {}, bubble {}, end of the step {}",
                         SecondsText(prediction.parts.work), SecondsText(prediction.parts.bubble),
                         SecondsText(prediction.parts.end))});
  facts.Row({"tokens/s a GPU", NumberText(prediction.tokens_per_s_per_gpu), ""});
  facts.Row({"model TFLOP/s a GPU", NumberText(prediction.model_tflops_per_gpu),
             "6 x matrix parameters x tokens + attention (causal: half), nothing recomputed"});
  facts.Row({"MFU", prediction.mfu > 0 ? PercentText(prediction.mfu) : "unknown",
             fmt::format("of the dense {} peak", ToString(split.format))});
  facts.Row({"memory, fullest rank", BytesText(Whole(prediction.peak_bytes())),
             fmt::format("of {}", BytesText(Whole(device_bytes)))});
  output.Text(HeadingText("split " + ShortName(split), style) + facts.ToText(style) +
              HeadingText("stages, memory of one rank", style) + table.ToText(style));
}

}  // namespace meshwright::tools
