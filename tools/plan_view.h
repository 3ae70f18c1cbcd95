// Plans, stages and predictions as tables and as JSON, the same in every command.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cost_models/device_profile.h"
#include "planner/ir/plan.h"
#include "tools/output.h"

namespace meshwright::tools {

/// Model, batch, split and placement of a plan in a few lines.
std::string PlanText(const planner::Plan& plan, const Style& style);
/// A row a pipeline stage: layers, recomputation, memory by part beside what the device has, busy
/// time.
std::string StagesText(const planner::Plan& plan, const planner::Prediction& prediction,
                       const std::vector<int64_t>& device_bytes, const Style& style);
/// Step time, tokens/s, TFLOP/s, MFU, bubble; with the formulas.
std::string PredictionText(const planner::Plan& plan, const planner::Prediction& prediction,
                           const cost::DeviceProfile& profile, const Style& style);
/// "heading" and a line for each of `lines`; empty for none.
std::string ListText(const std::string& heading, const std::vector<std::string>& lines,
                     const Style& style);

/// Bytes by part, `arena`, `total` (bytes) and `slots`.
nlohmann::json MemoryJson(const planner::MemoryBreakdown& memory);
/// Per pipeline stage: `layers` (how many), `layer_ranges`, `recompute`, `memory`, `device_bytes`,
/// `busy_time_s`.
nlohmann::json StagesJson(const planner::Plan& plan, const planner::Prediction& prediction,
                          const std::vector<int64_t>& device_bytes);
/// The split: axes, schedule, batch, dtype, name.
nlohmann::json SplitJson(const planner::Plan& plan);
/// `step_time_s`, `tokens_per_s_per_gpu`, `model_tflops_per_gpu`, `mfu` (null where the device has
/// no stated peak), `bubble_fraction`, `peak_memory_bytes`.
/// With `interval_s` of the step on GPUs (kOwnStepDeviation); null on CPU ranks.
void AddPrediction(const planner::Prediction& prediction, const cost::DeviceProfile& profile,
                   nlohmann::json* document);

/// Largest total of the stages; 0 for none.
int64_t PeakBytes(const planner::Prediction& prediction);

}  // namespace meshwright::tools
