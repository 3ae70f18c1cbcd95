#include "tools/plan_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/evaluate.h"
#include "tools/table.h"

namespace meshwright::tools {
namespace {

using nlohmann::json;
using planner::MemoryBreakdown;
using planner::ModulePlan;
using planner::Plan;
using planner::Prediction;

struct StageRef {
  const ModulePlan& module;
  int64_t stage = 0;  ///< within the module
  size_t index = 0;   ///< over all modules
};

std::vector<StageRef> StagesOf(const Plan& plan) {
  std::vector<StageRef> stages;
  for (const ModulePlan& m : plan.modules) {
    for (int64_t p = 0; p < m.pp; ++p) stages.push_back({m, p, stages.size()});
  }
  return stages;
}

std::vector<planner::LayerRange> RangesOf(const StageRef& s) {
  std::vector<planner::LayerRange> ranges;
  for (int64_t c = 0; c < s.module.virtual_stages; ++c) {
    ranges.push_back(s.module.chunks[static_cast<size_t>(c * s.module.pp + s.stage)]);
  }
  return ranges;
}

std::string LayersText(const StageRef& s) {
  std::vector<std::string> parts;
  int64_t count = 0;
  for (const planner::LayerRange& r : RangesOf(s)) {
    count += r.layer_count;
    parts.push_back(r.layer_count == 1
                        ? std::to_string(r.first_layer)
                        : fmt::format("{}-{}", r.first_layer, r.first_layer + r.layer_count - 1));
  }
  if (parts.size() > 4) parts = {parts[0], parts[1], "...", parts.back()};
  return fmt::format("{} ({})", count, fmt::join(parts, ", "));
}

std::string ShareText(int64_t used, int64_t available) {
  if (available <= 0 || available == INT64_MAX) return "";
  return PercentText(static_cast<double>(used) / static_cast<double>(available));
}

}  // namespace

int64_t PeakBytes(const Prediction& prediction) {
  int64_t peak = 0;
  for (const MemoryBreakdown& m : prediction.memory) peak = std::max(peak, m.total());
  return peak;
}

std::string PlanText(const Plan& plan, const Style& style) {
  const ModulePlan& m = plan.modules.front();
  Table table({"", ""});
  table.Row({"model", fmt::format("{}, {} parameters", plan.model.name,
                                  Thousands(planner::TotalParameters(plan.model)))});
  table.Row({"cluster", fmt::format("{}, {} of its devices", plan.cluster_name,
                                    Thousands(plan.world_size()))});
  table.Row(
      {"batch", fmt::format("{} sequences x {} tokens = {} tokens a step; {} micro-batches of {}",
                            Thousands(plan.global_batch), Thousands(plan.sequence),
                            Thousands(plan.global_batch * plan.sequence),
                            Thousands(plan.micro_batches), plan.micro_batch)});
  table.Row(
      {"split",
       fmt::format("tensor {}{}{}, pipeline {}{}, data {}{}{}{}", m.tp,
                   m.sequence_parallel ? " with sequence parallelism" : "",
                   m.tensor_chunks > 1 ? fmt::format(" in {} chunks of rows", m.tensor_chunks) : "",
                   m.pp, m.virtual_stages > 1 ? fmt::format(" x {} chunks", m.virtual_stages) : "",
                   m.dp, m.sharding == planner::Sharding::kZero1 ? " with ZeRO-1" : "",
                   m.cp > 1 ? fmt::format(", context {}", m.cp) : "",
                   m.ep > 1 ? fmt::format(", expert {}", m.ep) : "")});
  table.Row({"schedule", planner::ToString(plan.schedule)});
  table.Row({"arithmetic",
             fmt::format("{}, {}, logits in chunks of at most {}", planner::ToString(plan.dtype),
                         planner::ToString(plan.optimizer), BytesText(m.logits_chunk_bytes))});
  if (m.kv_copies > 1) {
    table.Row(
        {"key-value heads",
         fmt::format("each one on {} tensor ranks, their gradients are summed", m.kv_copies)});
  }
  return HeadingText("plan " + planner::ShortName(plan), style) + table.ToText(style);
}

std::string StagesText(const Plan& plan, const Prediction& prediction,
                       const std::vector<int64_t>& device_bytes, const Style& style) {
  Table table({"stage", "layers", "recompute", "parameters", "gradients", "optimizer",
               "saved (slots)", "scratch", "buffers", "outside", "total", "of device",
               "busy time"});
  for (const StageRef& s : StagesOf(plan)) {
    if (s.index >= prediction.memory.size()) break;
    const MemoryBreakdown& m = prediction.memory[s.index];
    const std::string name = plan.modules.size() > 1
                                 ? fmt::format("{} {}", s.module.module, s.stage)
                                 : std::to_string(s.stage);
    table.Row(
        {name, LayersText(s), planner::ToString(s.module.recompute[static_cast<size_t>(s.stage)]),
         BytesText(m.parameters), BytesText(m.gradients), BytesText(m.optimizer),
         fmt::format("{} ({})", BytesText(m.saved), m.slots), BytesText(m.scratch),
         BytesText(m.communication + m.io), BytesText(m.outside), BytesText(m.total()),
         s.index < device_bytes.size() ? ShareText(m.total(), device_bytes[s.index]) : "",
         s.index < prediction.stage_time_s.size() ? SecondsText(prediction.stage_time_s[s.index])
                                                  : ""});
  }
  return HeadingText("stages, memory of one rank", style) + table.ToText(style);
}

std::string PredictionText(const Plan& plan, const Prediction& p,
                           const cost::DeviceProfile& profile, const Style& style) {
  Table table({"", "", ""});
  table.Row(
      {"step time", SecondsText(p.step_time_s), "simulated with the profile " + profile.name});
  if (profile.gpu) {
    table.Row({"  within", fmt::format("{:.1f} %", 200 * kOwnStepDeviation),
               "twice the deviation of 80 runs on H200s (cost_models/validation/own_h200.csv)"});
  }
  table.Row({"tokens/s a GPU", NumberText(p.tokens_per_s_per_gpu),
             fmt::format("tokens of a step / step time / {} ranks", Thousands(plan.world_size()))});
  table.Row({"tokens/s",
             NumberText(p.tokens_per_s_per_gpu * static_cast<double>(plan.world_size())),
             "of all ranks"});
  table.Row({"model TFLOP/s a GPU", NumberText(p.model_tflops_per_gpu),
             "6 x matrix parameters x tokens + attention (causal: half), nothing recomputed"});
  table.Row({"MFU", p.mfu > 0 ? PercentText(p.mfu) : "unknown",
             profile.cpu ? "of the fastest measured matrix product of the cores that a rank has"
                         : "of the dense " + planner::ToString(plan.dtype) + " peak"});
  table.Row({"pipeline bubble", PercentText(p.bubble_fraction),
             "1 - busy compute time / (stages x step time)"});
  table.Row({"memory, fullest rank", BytesText(PeakBytes(p)), ""});
  return HeadingText("prediction", style) + table.ToText(style);
}

std::string ListText(const std::string& heading, const std::vector<std::string>& lines,
                     const Style& style) {
  if (lines.empty()) return "";
  std::string text = HeadingText(heading, style);
  for (const std::string& line : lines) text += "  - " + line + "\n";
  return text;
}

json MemoryJson(const MemoryBreakdown& m) {
  return {{"parameters", m.parameters},
          {"gradients", m.gradients},
          {"optimizer", m.optimizer},
          {"saved", m.saved},
          {"scratch", m.scratch},
          {"communication", m.communication},
          {"io", m.io},
          {"outside", m.outside},
          {"arena", m.arena()},
          {"total", m.total()},
          {"slots", m.slots}};
}

json StagesJson(const Plan& plan, const Prediction& prediction,
                const std::vector<int64_t>& device_bytes) {
  json stages = json::array();
  for (const StageRef& s : StagesOf(plan)) {
    json stage = {
        {"module", s.module.module},
        {"stage", s.stage},
        {"recompute", planner::ToString(s.module.recompute[static_cast<size_t>(s.stage)])}};
    int64_t layers = 0;
    json ranges = json::array();
    for (const planner::LayerRange& r : RangesOf(s)) {
      layers += r.layer_count;
      ranges.push_back({{"first", r.first_layer}, {"count", r.layer_count}});
    }
    stage["layers"] = layers;
    stage["layer_ranges"] = std::move(ranges);
    if (s.index < prediction.memory.size())
      stage["memory"] = MemoryJson(prediction.memory[s.index]);
    if (s.index < device_bytes.size()) stage["device_bytes"] = device_bytes[s.index];
    if (s.index < prediction.stage_time_s.size())
      stage["busy_time_s"] = prediction.stage_time_s[s.index];
    stages.push_back(std::move(stage));
  }
  return stages;
}

json SplitJson(const Plan& plan) {
  const ModulePlan& m = plan.modules.front();
  return {{"name", planner::ShortName(plan)},
          {"gpus", plan.world_size()},
          {"tp", m.tp},
          {"cp", m.cp},
          {"ep", m.ep},
          {"dp", m.dp},
          {"pp", m.pp},
          {"vpp", m.virtual_stages},
          {"sequence_parallel", m.sequence_parallel},
          {"tensor_chunks", m.tensor_chunks},
          {"zero", m.sharding == planner::Sharding::kZero1 ? 1 : 0},
          {"micro_batch", plan.micro_batch},
          {"micro_batches", plan.micro_batches},
          {"global_batch", plan.global_batch},
          {"sequence", plan.sequence},
          {"schedule", planner::ToString(plan.schedule)},
          {"dtype", planner::ToString(plan.dtype)},
          {"optimizer", planner::ToString(plan.optimizer)},
          {"kv_copies", m.kv_copies},
          {"padded_vocab", m.padded_vocab},
          {"logits_chunk_bytes", m.logits_chunk_bytes}};
}

void AddPrediction(const Prediction& p, const cost::DeviceProfile& profile, json* document) {
  json& d = *document;
  d["step_time_s"] = p.step_time_s;
  d["interval_s"] = profile.gpu ? json{p.step_time_s * (1 - 2 * kOwnStepDeviation),
                                       p.step_time_s * (1 + 2 * kOwnStepDeviation)}
                                : json();
  d["tokens_per_s_per_gpu"] = p.tokens_per_s_per_gpu;
  d["model_tflops_per_gpu"] = p.model_tflops_per_gpu;
  d["mfu"] = p.mfu > 0 ? json(p.mfu) : json();
  d["bubble_fraction"] = p.bubble_fraction;
  d["peak_memory_bytes"] = PeakBytes(p);
}

}  // namespace meshwright::tools
