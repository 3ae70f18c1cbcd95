#include "planner/stack/stage_costs.h"

#include <algorithm>
#include <limits>

#include "topologies/status.h"

namespace meshwright::planner::stack {
namespace {

double D(int64_t value) {
  return static_cast<double>(value);
}

void Add(const ItemCost& cost, double count, StageSums& sums) {
  sums.forward_s += count * cost.forward_s;
  sums.backward_s += count * cost.backward_s;
  sums.weight_s += count * cost.weight_s;
  sums.saved_bytes += count * cost.saved_bytes;
  sums.transient_bytes = std::max(sums.transient_bytes, cost.transient_bytes);
}

void Add(const ItemParameters& parameters, double count, StageSums& sums) {
  sums.parameters.dense += count * parameters.dense;
  sums.parameters.expert += count * parameters.expert;
}

}  // namespace

bool StageCosts::LeastPasses(const Split& split, BoundOver over,
                             const std::array<bool, kLayerModes>& modes, LeastSeconds* least) {
  if (over != BoundOver::kShape) return false;
  const ItemTable* table = LeastItems(split);
  if (table == nullptr) return false;
  const auto passes = [](const ItemCost& cost) { return cost.forward_s + cost.backward_s; };
  least->layer_s.assign(table->layers.size(), std::numeric_limits<double>::infinity());
  for (size_t kind = 0; kind < table->layers.size(); ++kind) {
    double& seconds = least->layer_s[kind];
    for (size_t mode = 0; mode < kLayerModes; ++mode) {
      if (modes[mode]) seconds = std::min(seconds, passes(table->layers[kind][mode]));
    }
  }
  least->embedding_s = passes(table->embedding);
  least->head_s = passes(table->head);
  return true;
}

double InFlight(const Split& split, int64_t stage) {
  const int64_t m = split.micro_batches;
  if (split.schedule != Schedule::kInterleaved) return D(std::min(split.pp - stage, m));
  const int64_t v = split.virtual_stages;
  // Warm-up of parallelism.md 9.2 with groups of pp micro-batches, and the one after it.
  return D(std::min(v * m, 2 * (split.pp - stage - 1) + (v - 1) * split.pp + 1)) / D(v);
}

double FillMessages(const Split& split) {
  return 2 * D(split.pp * split.virtual_stages - 1);
}

StageSums SumOf(const StageContent& content, const ItemTable& table) {
  MW_CHECK(content.kinds.size() == table.layers.size());
  StageSums sums;
  if (content.embedding) {
    Add(table.embedding, 1.0, sums);
    Add(table.embedding_parameters, 1.0, sums);
  }
  for (size_t kind = 0; kind < content.kinds.size(); ++kind) {
    const ModeCounts& counts = content.kinds[kind];
    for (size_t mode = 0; mode < kLayerModes; ++mode) {
      if (counts.layers[mode] > 0) Add(table.layers[kind][mode], D(counts.layers[mode]), sums);
    }
    Add(table.layer_parameters[kind], D(counts.total()), sums);
  }
  if (content.head) {
    Add(table.head, 1.0, sums);
    Add(table.head_parameters, 1.0, sums);
  } else {
    sums.saved_bytes += table.output_bytes;
  }
  return sums;
}

StageTimes TimesOf(const Split& split, const ItemTable& table, const StageSums& sums) {
  const double v = D(split.virtual_stages);
  StageTimes times;
  times.t = sums.forward_s + sums.backward_s + v * table.exposed_message_s;
  times.z = split.schedule == Schedule::kZeroBubbleH1 ? std::max(0.0, times.t - 2 * sums.weight_s)
                                                      : times.t / v;
  return times;
}

}  // namespace meshwright::planner::stack
