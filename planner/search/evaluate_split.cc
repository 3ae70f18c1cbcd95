// Dynamic programming over the layer sequence: which layers and which recomputation each stage
// gets.
#include <algorithm>
#include <limits>
#include <numeric>

#include "planner/search/evaluate.h"

namespace meshwright::planner::search {
namespace {

double D(int64_t value) {
  return static_cast<double>(value);
}

}  // namespace

bool Evaluator::Possible(int64_t stage, const StageFacts& f, double give_up) const {
  if (MemoryOf(stage, f).total() > limit_[static_cast<size_t>(stage)]) return false;
  const double v = D(c_.virtual_stages);
  const double m = D(c_.micro_batches);
  // What surely rises with the layers: all but the hidden part of the end of the step.
  const double least = (v * m - 1) * f.later_ns + v * (m - 1) * Waiting(stage) +
                       v * D(step_prices_->statistics_ns());
  return least_first_ns_ + least <= give_up;
}

std::vector<int64_t> Evaluator::MostLayers(double give_up) {
  const int64_t layers = context_.module().layer_count();
  std::vector<int64_t> most(static_cast<size_t>(c_.pp), layers);
  // With several kinds of layers the answer depends on where the stage begins.
  if (!fixed_layers_.empty() || !context_.uniform()) return most;
  for (int64_t p = 0; p < c_.pp; ++p) {
    int64_t best = 0;
    for (const Recompute mode : context_.recompute()) {
      int64_t low = best;  // known to be possible (in some mode), or 0
      int64_t high = layers - (c_.pp - 1) * c_.virtual_stages;
      while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        const bool possible =
            middle < c_.virtual_stages || Possible(p, Facts(p, 0, middle, mode), give_up);
        (possible ? low : high) = possible ? middle : middle - 1;
      }
      if (low >= c_.virtual_stages) best = std::max(best, low);
    }
    most[static_cast<size_t>(p)] = best;
  }
  return most;
}

std::pair<int64_t, int64_t> Evaluator::CountRange(int64_t stage, int64_t used) const {
  const int64_t left = context_.module().layer_count() - used;
  if (!fixed_layers_.empty()) {
    int64_t n = 0;
    for (int64_t c = 0; c < c_.virtual_stages; ++c) {
      n += fixed_layers_[static_cast<size_t>(c * c_.pp + stage)];
    }
    return n <= left ? std::pair{n, n} : std::pair<int64_t, int64_t>{1, 0};
  }
  if (stage == c_.pp - 1) return {left, left};
  return {c_.virtual_stages, left - (c_.pp - 1 - stage) * c_.virtual_stages};
}

void Evaluator::Insert(Front& front, const Step& step) {
  for (const Step& s : front) {
    if (s.sum <= step.sum && s.max <= step.max) return;
  }
  std::erase_if(front, [&](const Step& s) { return step.sum <= s.sum && step.max <= s.max; });
  front.push_back(step);
}

std::optional<Solution> Evaluator::Fastest(double worse_than) {
  TimeBound();
  const int64_t layers = context_.module().layer_count();
  const double fixed = Filling() * D(c_.virtual_stages);
  // A little slack, so that rounding never gives up a split that is as good as the bound.
  const double give_up = worse_than * 1e9 * D(c_.virtual_stages) * (1 + 1e-9) - fixed;
  const std::vector<int64_t> most = MostLayers(give_up);
  int64_t behind = std::accumulate(most.begin(), most.end(), int64_t{0});
  if (behind < layers) return std::nullopt;
  std::vector<std::vector<Front>> fronts(static_cast<size_t>(c_.pp) + 1);
  for (auto& row : fronts) row.resize(static_cast<size_t>(layers) + 1);
  fronts[0][0].push_back({});
  for (int64_t p = 0; p < c_.pp; ++p) {
    behind -= most[static_cast<size_t>(p)];  // layers that later stages can take
    for (int64_t used = 0; used <= layers; ++used) {
      const Front& from = fronts[static_cast<size_t>(p)][static_cast<size_t>(used)];
      if (from.empty()) continue;
      auto [low, high] = CountRange(p, used);
      low = std::max(low, layers - used - behind);
      high = std::min(high, most[static_cast<size_t>(p)]);
      for (int64_t n = low; n <= high; ++n) {
        for (const Recompute mode : context_.recompute()) {
          const StageFacts& f = Facts(p, used, n, mode);
          if (!Possible(p, f, give_up)) continue;
          const double max = Maximised(p, f);
          for (size_t i = 0; i < from.size(); ++i) {
            const Step step{from[i].sum + f.first_ns, std::max(from[i].max, max), n, mode,
                            static_cast<int32_t>(i)};
            if (std::max(step.sum, least_first_ns_) + step.max > give_up) continue;
            Insert(fronts[static_cast<size_t>(p) + 1][static_cast<size_t>(used + n)], step);
          }
        }
      }
    }
  }
  const Front& last = fronts[static_cast<size_t>(c_.pp)][static_cast<size_t>(layers)];
  if (last.empty()) return std::nullopt;
  size_t at = 0;
  for (size_t i = 1; i < last.size(); ++i) {
    if (last[i].sum + last[i].max < last[at].sum + last[at].max) at = i;
  }
  std::vector<std::pair<int64_t, Recompute>> stages(static_cast<size_t>(c_.pp));
  int64_t used = layers;
  for (int64_t p = c_.pp; p > 0; --p) {
    const Step& s = fronts[static_cast<size_t>(p)][static_cast<size_t>(used)][at];
    stages[static_cast<size_t>(p - 1)] = {s.layers, s.recompute};
    used -= s.layers;
    at = static_cast<size_t>(s.previous);
  }
  return Assemble(stages);
}

std::optional<Solution> Evaluator::LeastMemory() {
  NeedTemplates();
  struct Cell {
    int64_t excess = INT64_MAX;  ///< largest need less what there is, over the stages so far
    int64_t layers = 0;
    Recompute recompute = Recompute::kNone;
  };
  const int64_t layers = context_.module().layer_count();
  std::vector<std::vector<Cell>> best(static_cast<size_t>(c_.pp) + 1,
                                      std::vector<Cell>(static_cast<size_t>(layers) + 1));
  best[0][0].excess = INT64_MIN;
  for (int64_t p = 0; p < c_.pp; ++p) {
    for (int64_t used = 0; used <= layers; ++used) {
      const Cell& from = best[static_cast<size_t>(p)][static_cast<size_t>(used)];
      if (from.excess == INT64_MAX) continue;
      const auto [low, high] = CountRange(p, used);
      for (int64_t n = low; n <= high; ++n) {
        for (const Recompute mode : context_.recompute()) {
          const int64_t need = MemoryOf(p, Facts(p, used, n, mode)).total();
          const int64_t excess = std::max(from.excess, need - limit_[static_cast<size_t>(p)]);
          Cell& to = best[static_cast<size_t>(p) + 1][static_cast<size_t>(used + n)];
          if (excess < to.excess) to = {excess, n, mode};
        }
      }
    }
  }
  if (best.back().back().excess == INT64_MAX) return std::nullopt;
  std::vector<std::pair<int64_t, Recompute>> stages(static_cast<size_t>(c_.pp));
  int64_t used = layers;
  for (int64_t p = c_.pp; p > 0; --p) {
    const Cell& cell = best[static_cast<size_t>(p)][static_cast<size_t>(used)];
    stages[static_cast<size_t>(p - 1)] = {cell.layers, cell.recompute};
    used -= cell.layers;
  }
  return Assemble(stages);
}

bool Evaluator::Fits() {
  TimeBound();
  if (fixed_layers_.empty() && context_.uniform()) {
    const std::vector<int64_t> most = MostLayers(std::numeric_limits<double>::infinity());
    return *std::min_element(most.begin(), most.end()) >= c_.virtual_stages &&
           std::accumulate(most.begin(), most.end(), int64_t{0}) >= context_.module().layer_count();
  }
  const auto solution = LeastMemory();
  if (!solution) return false;
  for (size_t p = 0; p < solution->memory.size(); ++p) {
    if (solution->memory[p].total() > solution->limits[p]) return false;
  }
  return true;
}

Solution Evaluator::Assemble(const std::vector<std::pair<int64_t, Recompute>>& stages) {
  Solution solution;
  solution.limits = limit_;
  double sum_first = 0.0, sum_later = 0.0, most = -1.0;
  const StageFacts* slowest = nullptr;
  int64_t slowest_stage = 0;
  int64_t used = 0;
  for (int64_t p = 0; p < c_.pp; ++p) {
    const auto& [n, mode] = stages[static_cast<size_t>(p)];
    const StageFacts& f = Facts(p, used, n, mode);
    solution.stages.push_back({f.chunk_layers, mode});
    solution.memory.push_back(MemoryOf(p, f));
    sum_first += f.first_ns;
    sum_later += f.later_ns;
    if (const double max = Maximised(p, f); max > most) {
      most = max;
      slowest = &f;
      slowest_stage = p;
    }
    used += n;
  }
  const double v = D(c_.virtual_stages);
  const double m = D(c_.micro_batches);
  const double mean = sum_later / D(c_.pp);
  const double fill = Filling();
  ObjectiveParts& parts = solution.parts;
  parts.total = (sum_first + most + fill * v) / v * 1e-9;
  parts.work = m * mean * 1e-9;
  parts.imbalance = m * (slowest->later_ns - mean) * 1e-9;
  parts.bubble = (sum_first - slowest->later_ns) / v * 1e-9;
  parts.messages = (fill + (m - 1) * Waiting(slowest_stage)) * 1e-9;
  parts.end = slowest->end_ns * 1e-9;
  return solution;
}

}  // namespace meshwright::planner::search
