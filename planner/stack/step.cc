#include "planner/stack/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "planner/predict/model_flops.h"

namespace meshwright::planner::stack {
namespace {

/// Layers of each chunk in model order.
std::vector<int64_t> ChunkLayers(int64_t layers, const Split& split) {
  const int64_t chunks = split.pp * split.virtual_stages;
  std::vector<int64_t> counts(static_cast<size_t>(chunks), layers / chunks);
  const int64_t left = layers % chunks;
  if (left == 0) return counts;
  if ((layers + 2) % chunks == 0) {
    std::fill(counts.begin(), counts.end(), (layers + 2) / chunks);
    --counts.front();
    --counts.back();
    return counts;
  }
  // From the second stage on, so that the ends stay short.
  for (int64_t i = 0; i < left; ++i) ++counts[static_cast<size_t>((1 + i) % chunks)];
  return counts;
}

}  // namespace

double StepPrediction::peak_bytes() const {
  double peak = 0;
  for (const StageMemory& m : memory) peak = std::max(peak, m.total());
  return peak;
}

Result<std::vector<StageContent>> EvenStages(const ModuleSpec& module, const Split& split,
                                             LayerMode mode) {
  const int64_t layers = module.layer_count();
  const int64_t chunks = split.pp * split.virtual_stages;
  if (layers < chunks && layers + 2 != chunks) {
    return Infeasible(fmt::format(
        "pp {} x virtual stages {} = {} chunks, but the model has {} layers; allowed: at most one "
        "chunk a layer; lower pp or the virtual stages",
        split.pp, split.virtual_stages, chunks, layers));
  }
  StageContent empty;
  empty.kinds.resize(module.layer_kinds.size());
  std::vector<StageContent> stages(static_cast<size_t>(split.pp), empty);
  const std::vector<int64_t> counts = ChunkLayers(layers, split);
  int64_t layer = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    StageContent& stage = stages[static_cast<size_t>(chunk % split.pp)];
    for (int64_t i = 0; i < counts[static_cast<size_t>(chunk)]; ++i, ++layer) {
      const auto kind = static_cast<size_t>(module.layers[static_cast<size_t>(layer)]);
      ++stage.kinds[kind].layers[static_cast<size_t>(mode)];
    }
  }
  stages.front().embedding = true;
  stages.back().head = true;
  return stages;
}

StepPrediction PredictStep(StackStageCosts& costs, const Split& split,
                           const std::vector<StageContent>& contents) {
  const ItemTable& table = costs.Items(split);
  const auto m = static_cast<double>(split.micro_batches);
  StepPrediction prediction;
  double filling = 0, slowest = 0, work = 0, end = 0;
  for (size_t p = 0; p < contents.size(); ++p) {
    const StageSums sums = SumOf(contents[p], table);
    const StageTimes times = TimesOf(split, table, sums);
    const double e = costs.EndOfStep(split, sums);
    filling += times.z;
    const double own = m * times.t - times.z + e;
    if (p == 0 || own > slowest) {
      slowest = own;
      work = m * times.t;
      end = e;
    }
    prediction.memory.push_back(
        costs.Memory(split, sums, InFlight(split, static_cast<int64_t>(p))));
  }
  StepParts& parts = prediction.parts;
  parts.total = filling + FillMessages(split) * table.message_s + slowest;
  parts.work = work;
  parts.end = end;
  parts.bubble = parts.total - work - end;

  const StackResiduals& residuals = costs.inputs().stack.residuals;
  prediction.low_s = parts.total * std::exp(-2 * residuals.log_deviation);
  prediction.high_s = parts.total * std::exp(2 * residuals.log_deviation);
  const int64_t samples = split.micro_batch * split.micro_batches * split.dp;
  const double per_gpu = parts.total * static_cast<double>(split.ranks());
  prediction.tokens_per_s_per_gpu = static_cast<double>(samples * costs.sequence()) / per_gpu;
  const double flops = ModelFlopsPerStep(costs.module(), costs.sequence(), samples).value();
  prediction.model_tflops_per_gpu = flops / per_gpu / 1e12;
  const Result<FlopsPerSecond> peak = PeakOf(costs.inputs().profile, PrecisionOf(split.format));
  if (peak.ok()) prediction.mfu = flops / per_gpu / peak->value();
  return prediction;
}

}  // namespace meshwright::planner::stack
