#include "planner/search/evaluate.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "planner/lower/make_plan.h"

namespace meshwright::planner::search {
namespace {

using lower::ItemKind;
using lower::kByteAlignment;
using lower::RoundUp;

double D(int64_t value) { return static_cast<double>(value); }

}  // namespace

int64_t Solution::peak() const {
  int64_t most = 0;
  for (const MemoryBreakdown& m : memory) most = std::max(most, m.total());
  return most;
}

Evaluator::Evaluator(Context& context, const Configuration& configuration,
                     std::shared_ptr<const Placed> placed)
    : context_(context), c_(configuration), placed_(std::move(placed)) {
  const SearchOptions& options = context.options();
  const Plan skeleton = context.Skeleton(c_);
  split_ = context.SplitOf(skeleton);
  rules_ = BucketRulesOf(skeleton, skeleton.modules.front(), split_);
  if (!options.layers.empty()) {
    fixed_layers_ = options.layers;
  } else if (c_.virtual_stages > 1 && !context.uniform()) {
    fixed_layers_ = EvenLayers(context.module().layer_count(), c_.pp * c_.virtual_stages);
  }
  for (int64_t p = 0; p < c_.pp; ++p) {
    shared_bytes_.push_back(
        CommunicationBytes(c_.pp, c_.virtual_stages, c_.micro_batches, p,
                           split_.residual_bytes()) +
        IoBytes(p == c_.pp - 1, context.sequence(), c_.micro_batch, c_.micro_batches));
    passes_.push_back(PassesInFlight(c_.pp, c_.virtual_stages, c_.micro_batches, p));
  }
  outside_ = context.OutsideOf(skeleton);
  limit_ = context.LimitsOf(c_, *placed_);
}

void Evaluator::NeedTemplates() {
  if (costs_ != nullptr) return;
  costs_ = context_.CostsFor(c_, *placed_);
  step_prices_.emplace(split_, rules_, placed_->prices(c_.sharding), *placed_);
  message_ns_ = D(MessageTime(split_, placed_->plain, *placed_));
}

const ItemCost& Evaluator::Layer(int64_t layer, bool first_of_chunk, Recompute mode) const {
  const int kind = context_.module().layers[static_cast<size_t>(layer)];
  return costs_->layer(kind, first_of_chunk, mode);
}

// --- bounds ----------------------------------------------------------------------------------------

int64_t Evaluator::ParameterBound() const {
  const auto elements = [&](ItemKind kind, int kind_index) {
    const ItemSizes s = ParameterSizes(split_, {kind, kind_index});
    return s.main_elements + s.late_elements;
  };
  int64_t all = elements(ItemKind::kEmbedding, 0);
  if (!rules_.tied_here) all += elements(ItemKind::kHead, 0);
  std::vector<int64_t> of_kind;
  for (size_t k = 0; k < context_.module().layer_kinds.size(); ++k) {
    of_kind.push_back(elements(ItemKind::kLayer, static_cast<int>(k)));
  }
  for (const int kind : context_.module().layers) all += of_kind[static_cast<size_t>(kind)];
  const double bytes = D(SizeOf(split_.dtypes.compute) + SizeOf(split_.dtypes.gradient)) +
                       D(rules_.states * rules_.state_bytes) / D(rules_.sharded ? rules_.dp : 1);
  // The fullest stage holds at least the mean.
  return static_cast<int64_t>(D(all) / D(c_.pp) * bytes) +
         *std::min_element(outside_.begin(), outside_.end());
}

int64_t Evaluator::MemoryBound() {
  NeedTemplates();
  double saved = 0.0;
  int64_t scratch = INT64_MAX;
  for (int64_t l = 0; l < context_.module().layer_count(); ++l) {
    int64_t least = INT64_MAX;
    for (const Recompute mode : context_.recompute()) {
      for (const bool first : {false, true}) {
        const ItemSizes& s = Layer(l, first, mode).sizes;
        least = std::min(least, s.saved_bytes);
        scratch = std::min(scratch, s.scratch_bytes);
      }
    }
    saved += D(least);
  }
  const int64_t passes = *std::min_element(passes_.begin(), passes_.end());
  return ParameterBound() + scratch + *std::min_element(shared_bytes_.begin(), shared_bytes_.end()) +
         static_cast<int64_t>(saved * D(passes) / D(c_.virtual_stages) / D(c_.pp));
}

double Evaluator::TimeBound() {
  NeedTemplates();
  double first = D(costs_->embedding().forward_ns + costs_->embedding().backward_first_ns +
                   costs_->head().backward_first_ns);
  double later = D(costs_->embedding().forward_ns + costs_->embedding().backward_ns +
                   costs_->head().backward_ns);
  for (int64_t l = 0; l < context_.module().layer_count(); ++l) {
    double least_first = 1e300;
    double least_later = 1e300;
    for (const Recompute mode : context_.recompute()) {
      for (const bool entry : {false, true}) {
        const ItemCost& cost = Layer(l, entry, mode);
        least_first = std::min(least_first, D(cost.forward_ns + cost.backward_first_ns));
        least_later = std::min(least_later, D(cost.forward_ns + cost.backward_ns));
      }
    }
    first += least_first;
    later += least_later;
  }
  const double v = D(c_.virtual_stages);
  const double fixed = D(c_.pp) * v * D(costs_->join_ns()) + D(costs_->tokens_ns());
  least_first_ns_ = first + fixed;
  // The slowest stage takes at least the mean.
  const double scaled = least_first_ns_ + 2 * D(c_.pp - 1) * message_ns_ * v +
                        (v * D(c_.micro_batches) - 1) * (later + fixed) / D(c_.pp) +
                        v * D(step_prices_->statistics_ns());
  return scaled / v * 1e-9;
}

// --- one stage -------------------------------------------------------------------------------------

std::vector<LayerRange> Evaluator::DealtChunks(int64_t stage, int64_t n, Recompute mode) const {
  const auto count = static_cast<size_t>(c_.virtual_stages);
  std::vector<LayerRange> chunks(count, LayerRange{0, 1});
  std::vector<int64_t> bytes(count, Layer(0, true, mode).sizes.saved_bytes);
  if (EndsOf(stage).first) bytes.front() += costs_->embedding().sizes.saved_bytes;
  if (EndsOf(stage).last) bytes.back() += costs_->head().sizes.saved_bytes;
  const int64_t inner = Layer(0, false, mode).sizes.saved_bytes;
  for (int64_t rest = n - c_.virtual_stages; rest > 0; --rest) {
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += inner;
    ++chunks[static_cast<size_t>(least - bytes.begin())].layer_count;
  }
  return chunks;
}

std::vector<LayerRange> Evaluator::ChunksOf(int64_t stage, int64_t begin, int64_t n,
                                            Recompute mode) const {
  if (!fixed_layers_.empty()) {
    std::vector<LayerRange> chunks;
    int64_t at = 0;
    for (size_t i = 0; i < fixed_layers_.size(); ++i) {
      if (static_cast<int64_t>(i) % c_.pp == stage) chunks.push_back({at, fixed_layers_[i]});
      at += fixed_layers_[i];
    }
    return chunks;
  }
  if (c_.virtual_stages == 1) return {{begin, n}};
  return DealtChunks(stage, n, mode);
}

Evaluator::StageFacts Evaluator::Compute(int64_t stage, int64_t begin, int64_t n, Recompute mode) {
  StageFacts facts;
  std::vector<StageItem> items;
  std::vector<BucketItem> bucket_items;
  int64_t forward = 0, backward = 0, backward_first = 0, scratch = 0;
  int64_t before = EndsOf(stage).first ? costs_->tokens_ns() : 0;
  const auto add = [&](ItemKind kind, const ItemCost& cost) {
    items.push_back({&cost, before});
    forward += before;
    before = 0;
    bucket_items.push_back({kind, cost.sizes.main_elements, cost.sizes.late_elements});
    forward += cost.forward_ns;
    backward += cost.backward_ns;
    backward_first += cost.backward_first_ns;
    scratch = std::max(scratch, cost.sizes.scratch_bytes);
    return cost.sizes.saved_bytes;
  };
  const std::vector<LayerRange> chunks = ChunksOf(stage, begin, n, mode);
  for (size_t c = 0; c < chunks.size(); ++c) {
    int64_t saved = 0;
    if (EndsOf(stage).first && c == 0) {
      saved += add(ItemKind::kEmbedding, costs_->embedding());
    }
    for (int64_t l = 0; l < chunks[c].layer_count; ++l) {
      saved += add(ItemKind::kLayer, Layer(chunks[c].first_layer + l, l == 0, mode));
    }
    before = costs_->join_ns();
    if (EndsOf(stage).last && c + 1 == chunks.size()) saved += add(ItemKind::kHead, costs_->head());
    facts.slot_bytes = std::max(facts.slot_bytes, saved);
    facts.chunk_layers.push_back(chunks[c].layer_count);
  }
  forward += before;
  const BucketSums sums = SumBuckets(rules_, bucket_items);
  facts.first_ns = D(forward + backward_first);
  facts.later_ns = D(forward + backward);
  facts.end_ns = D(EndOfStep(items, sums, *step_prices_, c_.micro_batches == 1));
  facts.memory.parameters =
      RoundUp(sums.elements * SizeOf(split_.dtypes.compute), kByteAlignment);
  facts.memory.gradients =
      RoundUp(sums.elements * SizeOf(split_.dtypes.gradient), kByteAlignment);
  facts.memory.optimizer = RoundUp(sums.optimizer_bytes, kByteAlignment);
  facts.memory.scratch = RoundUp(scratch, kByteAlignment);
  return facts;
}

const Evaluator::StageFacts& Evaluator::Facts(int64_t stage, int64_t begin, int64_t n,
                                              Recompute mode) {
  const bool fixed = !fixed_layers_.empty();
  const int where = fixed ? 4 + static_cast<int>(stage)
                          : (EndsOf(stage).first ? 1 : 0) + (EndsOf(stage).last ? 2 : 0);
  const std::tuple key{where, fixed || context_.uniform() ? 0 : begin, n, mode};
  const auto known = facts_.find(key);
  if (known != facts_.end()) return known->second;
  return facts_.emplace(key, Compute(stage, begin, n, mode)).first->second;
}

MemoryBreakdown Evaluator::MemoryOf(int64_t stage, const StageFacts& facts) const {
  const auto p = static_cast<size_t>(stage);
  MemoryBreakdown m = facts.memory;
  m.slots = passes_[p];
  m.saved = RoundUp(passes_[p] * facts.slot_bytes, kByteAlignment);
  m.io = IoBytes(EndsOf(stage).last, context_.sequence(), c_.micro_batch, c_.micro_batches);
  m.communication = shared_bytes_[p] - m.io;
  m.outside = outside_[p];
  return m;
}

double Evaluator::Maximised(int64_t stage, const StageFacts& f) const {
  const double v = D(c_.virtual_stages);
  const double m = D(c_.micro_batches);
  return (v * m - 1) * f.later_ns + v * (m - 1) * Waiting(stage) + v * f.end_ns;
}

double Evaluator::Waiting(int64_t stage) const {
  if (c_.virtual_stages > 1) return 0.0;
  return 2 * message_ns_ * D(c_.pp - 1 - stage) / D(c_.pp - stage);
}

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
        const bool possible = middle < c_.virtual_stages ||
                              Possible(p, Facts(p, 0, middle, mode), give_up);
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

// --- dynamic programming ---------------------------------------------------------------------------

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
  const double fixed = 2 * D(c_.pp - 1) * message_ns_ * D(c_.virtual_stages);
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
  std::vector<std::vector<Cell>> best(
      static_cast<size_t>(c_.pp) + 1, std::vector<Cell>(static_cast<size_t>(layers) + 1));
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
  const double fill = 2 * D(c_.pp - 1) * message_ns_;
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
