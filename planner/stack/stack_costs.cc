#include "planner/stack/stack_costs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/stack/overlap.h"

namespace meshwright::planner::stack {
namespace {

/// All stages of a pipeline lie in one domain.
bool StagesShareDomain(const Split& split, const Fabric& fabric) {
  const int64_t span =
      split.order == RankOrder::kStagesInside ? split.tp * split.cp * split.pp : split.ranks();
  return span <= fabric.domain_gpus;
}

}  // namespace

Result<std::unique_ptr<StackStageCosts>> StackStageCosts::Make(CostInputs inputs) {
  if (!inputs.profile.gpu) {
    return InvalidInput("device profile '" + inputs.profile.name +
                        "': stacks are priced on GPUs; found a CPU");
  }
  std::vector<cost::Precision> precisions;
  for (const cost::PeakRate& peak : inputs.profile.peaks) precisions.push_back(peak.precision);
  MW_ASSIGN_OR_RETURN(cost::CostModel prices,
                      cost::CostModel::Make(inputs.profile, {std::move(precisions)}));
  return std::unique_ptr<StackStageCosts>(
      new StackStageCosts(std::move(inputs), std::move(prices)));
}

bool StackStageCosts::Supports(LinearFormat format) const {
  return HasFormat(inputs_.profile, format);
}

std::pair<int64_t, int64_t> StackStageCosts::SizeAndStride(const Split& split, Group group) {
  const Groups strides = GroupsOf(split);
  switch (group) {
    case Group::kTensor:
      return {split.tp, strides.tensor_stride};
    case Group::kContext:
      return {split.cp, strides.context_stride};
    case Group::kExpert:
      return {split.ep, strides.expert_stride};
    case Group::kExpertTensor:
      return {split.expert_tp, 1};
    case Group::kData:
      return {split.dp * split.cp, split.cp > 1 ? strides.context_stride : strides.data_stride};
  }
  return {1, 1};
}

double StackStageCosts::CollectiveTime(const Split& split, cost::CollectiveKind kind, double bytes,
                                       Group group) const {
  const auto [size, stride] = SizeAndStride(split, group);
  if (size <= 1) return 0.0;
  const cost::PathFacts path = PathOf(inputs_.fabric, size, stride);
  const Bytes whole(static_cast<int64_t>(std::llround(bytes)));
  return ToSeconds(prices_.PriceCollective({kind, whole}, path)).value();
}

size_t StackStageCosts::ProductHash::operator()(const Product& p) const {
  uint64_t hash = p.accumulate ? 1 : 0;
  for (const int64_t part :
       {static_cast<int64_t>(p.precision), p.m, p.n, p.k, p.batch, p.read, p.written}) {
    // Multiply and fold: the low bits of sizes are mostly zeros.
    hash = (hash ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 32;
  }
  return hash;
}

double StackStageCosts::OpTime(const StackOp& op) const {
  const StackCostFactors& f = inputs_.stack.factors;
  const cost::Work& w = op.work;
  if (w.kind == cost::WorkKind::kGemm) {
    const auto [at, fresh] = products_.try_emplace(
        {w.precision, w.accumulate, w.m, w.n, w.k, w.batch, w.read.value(), w.written.value()},
        0.0);
    if (fresh) at->second = ToSeconds(prices_.PriceOp(w)).value();
    return at->second * f.gemm;
  }
  const double launch = inputs_.profile.launch_overhead.value.value();
  const double time = ToSeconds(prices_.PriceOp(op.work)).value();
  if (w.kind == cost::WorkKind::kAttention) {
    const double share = inputs_.profile.gpu->flash_share.value;
    const bool flash = inputs_.stack.lowering.flash_attention && share > 0;
    return time * f.attention / (flash ? share : 1.0);
  }
  return (time - launch) * (op.scores ? f.scores : f.pointwise) +
         launch * static_cast<double>(op.launches);
}

std::array<ItemCost, kLayerModes> StackStageCosts::Modes(const Split& split,
                                                         const PricedItem& priced,
                                                         double next_bytes) const {
  const ItemOps& item = priced.item;
  std::array<ItemCost, kLayerModes> modes;
  for (size_t m = 0; m < kLayerModes; ++m) {
    const auto mode = static_cast<LayerMode>(m);
    ItemCost& cost = modes[m];
    cost.forward_s = ForwardOf(priced.times);
    cost.backward_s = BackwardOf(priced.times, mode);
    cost.weight_s = priced.times.weight_s;
    // A layer's input is one tensor, whatever the kernels are.
    const StackAllocator& a = inputs_.stack.allocator;
    cost.saved_bytes = item.saved[m] * (mode == LayerMode::kFull ? a.stream : a.saved);
    cost.transient_bytes = std::max(item.transient, item.working * a.stream);
    if (mode == LayerMode::kFull ||
        (mode == LayerMode::kSelective && inputs_.stack.lowering.selective_keeps_products)) {
      // What backward computes again.
      cost.transient_bytes += std::max(
          0.0, item.saved[static_cast<size_t>(LayerMode::kKeep)] * a.saved - cost.saved_bytes);
    }
    if (mode == LayerMode::kOffload) {
      // Out behind forward, back behind backward; two layers' worth stays on the device.
      const double host_rate = inputs_.fabric.host_bandwidth.value();
      const double copy = host_rate > 0 ? cost.saved_bytes / host_rate : 1e6;
      cost.forward_s += Exposed(copy, cost.forward_s, inputs_.stack.factors.hidden_share);
      cost.backward_s += Exposed(copy, cost.backward_s, inputs_.stack.factors.hidden_share);
      cost.transient_bytes += 2 * cost.saved_bytes;
      cost.saved_bytes = 0.0;
    }
    AddSharded(split, priced, next_bytes, &cost);
  }
  return modes;
}

double StackStageCosts::GatheredBytes(const Split& split, const PricedItem& priced) const {
  const StackState& state = inputs_.stack.state;
  const ItemParameters& own = priced.item.parameters;
  // Ends that tensor ranks do not share are gathered whole on each.
  const bool whole = priced.end && !inputs_.stack.lowering.vocabulary_parallel;
  return (own.dense + own.expert) * (whole ? static_cast<double>(split.tp) : 1.0) *
         (BitsOf(split.format) < 16 ? 2.0 : state.gathered);
}

void StackStageCosts::AddSharded(const Split& split, const PricedItem& priced, double next_bytes,
                                 ItemCost* cost) const {
  if (!SharesParameters(split, inputs_.stack.lowering) || split.dp * split.cp * split.tp == 1)
    return;
  const StackCostFactors& f = inputs_.stack.factors;
  const StackState& state = inputs_.stack.state;
  const ItemParameters& parameters = priced.item.parameters;
  const double whole = parameters.dense + parameters.expert;
  const double bytes = GatheredBytes(split, priced);
  const double gather =
      f.reduction * CollectiveTime(split, cost::CollectiveKind::kAllGather, bytes, Group::kData);
  const double scatter =
      f.reduction * CollectiveTime(split, cost::CollectiveKind::kReduceScatter,
                                   inputs_.frozen ? 0.0 : whole * state.gradient_wire,
                                   Group::kData);
  cost->forward_s += Exposed(gather, cost->forward_s, f.hidden_share);
  cost->backward_s += Exposed(gather + scatter, cost->backward_s, f.hidden_share);
  if (priced.end) {
    // The loss comes before any gradient of parameters.
    cost->transient_bytes =
        bytes + next_bytes + std::max(cost->transient_bytes, bytes + whole * state.pending);
    return;
  }
  // The layer in use and the next one, the gradient of the one before on its way, and what there
  // is of the layer's own.
  cost->transient_bytes +=
      bytes + next_bytes + whole * state.pending + priced.item.last_product * state.gathered;
}

ItemCost StackStageCosts::HeadCost(const Split& split, const PricedItems& priced,
                                   ItemParameters* parameters) const {
  *parameters = priced.head.item.parameters;
  const bool stay = inputs_.stack.lowering.ends_stay_gathered && split.pp == 1;
  const ModuleSpec& module = inputs_.module;
  double other = 0.0;
  if (stay) {
    other = GatheredBytes(split, priced.embedding);
    if (!module.layers.empty()) {
      other += GatheredBytes(split, priced.layers[static_cast<size_t>(module.layers.back())]);
    }
  }
  ItemCost cost = Modes(split, priced.head, other)[static_cast<size_t>(LayerMode::kKeep)];
  if (module.next_token_layers == 0 || module.layer_count() == 0) return cost;
  // A multi-token prediction layer: a product over [hidden, embedding], a layer, the head again.
  const auto count = static_cast<double>(module.next_token_layers);
  const PricedItem& layer = priced.layers[static_cast<size_t>(module.layers.back())];
  const ItemCost more =
      Modes(split, layer, GatheredBytes(split, layer))[static_cast<size_t>(LayerMode::kKeep)];
  const double pair = 2 * static_cast<double>(module.hidden) * static_cast<double>(module.hidden);
  const ItemCost once = cost;
  cost.forward_s += count * (more.forward_s + once.forward_s);
  cost.backward_s += count * (more.backward_s + once.backward_s);
  cost.weight_s += count * (more.weight_s + once.weight_s);
  cost.saved_bytes += count * (more.saved_bytes + once.saved_bytes);
  cost.transient_bytes = std::max(cost.transient_bytes, more.transient_bytes);
  parameters->dense += count * (layer.item.parameters.dense + pair);
  parameters->expert += count * layer.item.parameters.expert;
  return cost;
}

StackStageCosts::PricedItem StackStageCosts::Price(const Split& split, ItemOps item) const {
  PricedItem priced{std::move(item), {}, false};
  priced.times = TimesOf(SumsOf(split, priced.item.ops));
  priced.item.ops = std::vector<StackOp>();
  return priced;
}

const StackStageCosts::PricedItems& StackStageCosts::Priced(const Split& split) {
  const bool far =
      split.order == RankOrder::kStagesInside && split.ep * split.expert_tp > split.tp * split.cp;
  const Key key{split.tp,
                split.cp,
                split.ep,
                split.expert_tp,
                split.sequence_parallel,
                split.micro_batch,
                split.format,
                far ? RankOrder::kStagesInside : RankOrder::kDataInside,
                split.pp > 1 && inputs_.module.tied_embeddings,
                0,
                0};
  const auto [at, fresh] = priced_.try_emplace(key);
  if (!fresh) return at->second;
  const ItemContext context{inputs_.stack, inputs_.module, split, inputs_.sequence,
                            inputs_.expert_imbalance};
  PricedItems& items = at->second;
  for (const LayerSpec& kind : inputs_.module.layer_kinds) {
    items.layers.push_back(Price(split, LayerOps(context, kind)));
  }
  items.embedding = Price(split, EmbeddingOps(context));
  items.head = Price(split, HeadOps(context));
  items.embedding.end = items.head.end = true;
  return items;
}

ItemTable StackStageCosts::Build(const Split& split) {
  const ItemContext context{inputs_.stack, inputs_.module, split, inputs_.sequence,
                            inputs_.expert_imbalance};
  const StackCostFactors& f = inputs_.stack.factors;
  const PricedItems& priced = Priced(split);
  ItemTable table;
  const bool stay = inputs_.stack.lowering.ends_stay_gathered && split.pp == 1;
  const double embedding = GatheredBytes(split, priced.embedding);
  for (const PricedItem& layer : priced.layers) {
    const PricedItem& next = LoneLayers(split) ? priced.embedding : layer;
    const double ends = stay ? embedding + GatheredBytes(split, priced.head) : 0.0;
    table.layers.push_back(Modes(split, layer, ends + GatheredBytes(split, next)));
    table.layer_parameters.push_back(layer.item.parameters);
  }
  table.embedding = Modes(split, priced.embedding, 0.0)[static_cast<size_t>(LayerMode::kKeep)];
  table.embedding_parameters = priced.embedding.item.parameters;
  table.head = HeadCost(split, priced, &table.head_parameters);
  table.exposed_message_s = f.micro_batch_s;
  if (split.pp > 1) {
    if (inputs_.stack.lowering.keeps_stage_outputs) {
      table.output_bytes = context.element_bytes() * inputs_.stack.allocator.stream *
                           static_cast<double>(split.virtual_stages * context.outer_tokens() *
                                               inputs_.module.hidden);
    }
    // Megatron sends 1/tp of the activation from each tensor rank.
    const double bytes = context.element_bytes() * static_cast<double>(inputs_.module.hidden) *
                         static_cast<double>(context.tokens()) / static_cast<double>(split.tp);
    // The slowest edge crosses hosts unless all stages lie in one domain.
    const bool near = StagesShareDomain(split, inputs_.fabric);
    const cost::PathFacts path = PathOf(inputs_.fabric, 2, near ? 1 : inputs_.fabric.domain_gpus);
    const Bytes whole(static_cast<int64_t>(std::llround(bytes)));
    table.message_s =
        ToSeconds(prices_.PriceCollective({cost::CollectiveKind::kSend, whole}, path)).value() +
        f.message_s;
    if (split.tp > 1 && !split.sequence_parallel) {
      table.message_s +=
          f.collective * CollectiveTime(split, cost::CollectiveKind::kAllGather,
                                        bytes * static_cast<double>(split.tp), Group::kTensor);
    }
    const bool hides = inputs_.stack.lowering.hides_messages && split.virtual_stages > 1;
    table.exposed_message_s += hides ? 0.0 : 2 * table.message_s;
  }
  return table;
}

const ItemTable& StackStageCosts::Items(const Split& split) {
  const bool sharded = SharesParameters(split, inputs_.stack.lowering);
  const int64_t outputs = inputs_.stack.lowering.keeps_stage_outputs ? split.virtual_stages : 0;
  const Key key{split.tp,
                split.cp,
                split.ep,
                split.expert_tp,
                split.sequence_parallel,
                split.micro_batch,
                split.format,
                split.order,
                split.pp > 1 && StagesShareDomain(split, inputs_.fabric),
                sharded ? split.dp : 0,
                (split.pp > 1 ? 1 : 0) + (split.virtual_stages > 1 ? 2 : 0) +
                    (LoneLayers(split) ? 4 : 0) + 8 * static_cast<int>(outputs)};
  std::unique_ptr<ItemTable>& entry = tables_[key];
  if (!entry) entry = std::make_unique<ItemTable>(Build(split));
  return *entry;
}

Split StackStageCosts::LeastOf(const Split& split) {
  Split least = split;
  least.pp = least.dp = least.virtual_stages = 1;
  least.sharding = ShardingLevel::kNone;
  least.order = RankOrder::kDataInside;
  return least;
}

const ItemTable* StackStageCosts::LeastItems(const Split& split) {
  return &Items(LeastOf(split));
}

}  // namespace meshwright::planner::stack
