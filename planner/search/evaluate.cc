#include "planner/search/evaluate.h"

#include <algorithm>

#include "planner/lower/make_plan.h"
#include "planner/lower/schedule.h"

namespace meshwright::planner::search {
namespace {

using lower::ItemKind;
using lower::kByteAlignment;
using lower::RoundUp;

double D(int64_t value) {
  return static_cast<double>(value);
}

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
  if (c_.virtual_stages > 1) group_ = lower::InterleavingGroup(c_.pp, c_.micro_batches);
  if (!options.layers.empty()) {
    fixed_layers_ = options.layers;
  } else if (c_.virtual_stages > 1 && !context.uniform()) {
    fixed_layers_ = EvenLayers(context.module().layer_count(), c_.pp * c_.virtual_stages);
  }
  for (int64_t p = 0; p < c_.pp; ++p) {
    shared_bytes_.push_back(
        CommunicationBytes(c_.pp, c_.virtual_stages, c_.micro_batches, p, split_.residual_bytes()) +
        IoBytes(p == c_.pp - 1, context.sequence(), c_.micro_batch, c_.micro_batches));
    passes_.push_back(PassesInFlight(c_.pp, c_.virtual_stages, c_.micro_batches, p));
  }
  workspace_bytes_ = RoundUp(skeleton.workspace_bytes, kByteAlignment);
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

// --- bounds

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
  return ParameterBound() + scratch +
         *std::min_element(shared_bytes_.begin(), shared_bytes_.end()) +
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
  const double scaled = least_first_ns_ + Filling() * v +
                        (v * D(c_.micro_batches) - 1) * (later + fixed) / D(c_.pp) +
                        v * D(step_prices_->statistics_ns());
  return scaled / v * 1e-9;
}

// --- one stage

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
  bool begins_chunk = true;
  const auto add = [&](ItemKind kind, const ItemCost& cost) {
    items.push_back({&cost, before, begins_chunk});
    begins_chunk = false;
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
    begins_chunk = true;
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
  const StepEnd end = EndOfStep(items, sums, *step_prices_, group_, c_.micro_batches == 1);
  facts.first_ns = D(forward + backward_first) + Rounds() * D(end.slowed_ns);
  facts.later_ns = D(forward + backward);
  facts.end_ns = D(end.after_ns);
  facts.memory.parameters = RoundUp(sums.elements * SizeOf(split_.dtypes.compute), kByteAlignment);
  facts.memory.gradients = RoundUp(sums.elements * SizeOf(split_.dtypes.gradient), kByteAlignment);
  facts.memory.optimizer = RoundUp(sums.optimizer_bytes, kByteAlignment);
  facts.memory.scratch = RoundUp(scratch, kByteAlignment) + workspace_bytes_;
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

double Evaluator::Rounds() const {
  // A larger group has other micro-batches to pass meanwhile.
  return group_ == c_.pp ? D(c_.virtual_stages) : 1.0;
}

double Evaluator::Filling() const {
  return message_ns_ * (2 * D(c_.pp - 1) + 2 * (Rounds() - 1) * D(c_.pp));
}

double Evaluator::Waiting(int64_t stage) const {
  if (c_.virtual_stages > 1) return 0.0;
  return 2 * message_ns_ * D(c_.pp - 1 - stage) / D(c_.pp - stage);
}

}  // namespace meshwright::planner::search
