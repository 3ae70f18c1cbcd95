#include "planner/space/reduced.h"

#include <algorithm>
#include <limits>

namespace meshwright::planner::space {
namespace {

using stack::kLayerModes;
using stack::LayerMode;
using stack::Schedule;
using stack::Split;
using stack::StageContent;
using stack::StageSums;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;

double D(int64_t value) {
  return static_cast<double>(value);
}

}  // namespace

EqualStages::EqualStages(const std::vector<DeviceGroup>& groups, const SpaceOptions& options)
    : groups_(groups), options_(options), module_(groups.front().costs->module()) {
  kind_ = static_cast<size_t>(module_.layers.front());
  applies_ = groups.size() == 1 && options.mode_rule == ModeRule::kUniform && options.even_layers &&
             std::all_of(module_.layers.begin(), module_.layers.end(),
                         [&](int kind) { return static_cast<size_t>(kind) == kind_; });
  content_.kinds.resize(module_.layer_kinds.size());
}

bool EqualStages::Allowed(const Split& split, size_t mode) const {
  if (!options_.modes[mode]) return false;
  return static_cast<LayerMode>(mode) != LayerMode::kOffload || split.pp == 1 ||
         options_.offload_in_pipelines;
}

int64_t EqualStages::ModesOf(const Split& split) const {
  int64_t count = 0;
  for (size_t mode = 0; mode < kLayerModes; ++mode) count += Allowed(split, mode) ? 1 : 0;
  return count;
}

StageContent EqualStages::Content(const Split& split, size_t mode, int64_t stage) const {
  StageContent content;
  content.kinds.resize(module_.layer_kinds.size());
  content.kinds[kind_].layers[mode] = module_.layer_count() / split.pp;
  content.embedding = stage == 0;
  content.head = stage == split.pp - 1;
  return content;
}

double EqualStages::Price(const Split& split, const stack::ItemTable& table, size_t mode) {
  stack::StageCosts& costs = *groups_.front().costs;
  const double m = D(split.micro_batches);
  content_.kinds[kind_] = {};
  content_.kinds[kind_].layers[mode] = module_.layer_count() / split.pp;
  double sum = 0.0, most = -kInfinity;
  // In-flight micro-batches fall along the pipeline: of the inner stages the second holds most.
  for (const int64_t stage : {int64_t{0}, int64_t{1}, split.pp - 1}) {
    const bool inner = stage == 1;
    if (inner && split.pp < 3) continue;
    content_.embedding = stage == 0;
    content_.head = stage == split.pp - 1;
    const StageSums sums = stack::SumOf(content_, table);
    const double bytes = costs.Memory(split, sums, stack::InFlight(split, stage)).total();
    if (bytes > groups_.front().memory_bytes) return kInfinity;
    const stack::StageTimes times = stack::TimesOf(split, table, sums);
    sum += times.z * (inner ? D(split.pp - 2) : 1.0);
    most = std::max(most, m * times.t - times.z + costs.EndOfStep(split, sums));
    if (split.pp == 1) break;
  }
  return sum + stack::FillMessages(split) * table.message_s + most;
}

std::optional<Solution> EqualStages::Best(const Split& split, double give_up, Counts& counts) {
  const stack::ItemTable& table = groups_.front().costs->Items(split);
  const double P = D(split.pp), v = D(split.virtual_stages), m = D(split.micro_batches);
  const double ends = table.embedding.forward_s + table.embedding.backward_s +
                      table.head.forward_s + table.head.backward_s;
  const double messages = stack::FillMessages(split) * table.message_s;
  double best = kInfinity;
  size_t best_mode = kLayerModes;
  for (size_t mode = 0; mode < kLayerModes; ++mode) {
    if (!Allowed(split, mode)) continue;
    const stack::ItemCost& layer = table.layers[kind_][mode];
    const double work = D(module_.layer_count()) * (layer.forward_s + layer.backward_s) + ends;
    // bounds.h, proof 1 and 2, without the end of the step.
    const double mean = work / P + v * table.exposed_message_s;
    const double bound = split.schedule == Schedule::kZeroBubbleH1
                             ? messages + m * mean
                             : messages + P / v * mean + (m - 1 / v) * mean;
    if (bound > std::min(give_up, best) * (1 + kRounding)) {
      ++counts.bounded;
      continue;
    }
    ++counts.evaluated;
    const double seconds = Price(split, table, mode);
    if (seconds < kInfinity) ++counts.feasible;
    if (seconds < best) {
      best = seconds;
      best_mode = mode;
    }
  }
  if (best_mode == kLayerModes || best > give_up * (1 + kRounding)) return std::nullopt;
  std::vector<StageContent> stages;
  for (int64_t p = 0; p < split.pp; ++p) stages.push_back(Content(split, best_mode, p));
  std::vector<int64_t> layers(stages.size(), module_.layer_count() / split.pp);
  return PriceSolution(groups_, {split, 0}, std::move(layers), std::move(stages));
}

}  // namespace meshwright::planner::space
