// Passes of items as sums over their ops, and the least passes of a shape from shared parts: the
// rest of StackStageCosts.
#include <algorithm>
#include <cmath>
#include <limits>

#include "planner/stack/overlap.h"
#include "planner/stack/stack_costs.h"

namespace meshwright::planner::stack {

OpSums StackStageCosts::SumsOf(const Split& split, const std::vector<StackOp>& ops) const {
  const StackCostFactors& f = inputs_.stack.factors;
  const bool per_op = inputs_.stack.lowering.selective_keeps_products;
  OpSums sums;
  for (const StackOp& op : ops) {
    const bool forward = op.phase == Phase::kForward;
    PassSums& pass = forward ? sums.forward : sums.backward;
    if (op.work.kind == cost::WorkKind::kCollective) {
      const double time =
          f.collective * CollectiveTime(split, op.collective.kind,
                                        static_cast<double>(op.collective.bytes.value()), op.group);
      pass.host_s += f.collective_launch_s;
      const auto ranks = static_cast<double>(SizeAndStride(split, op.group).first);
      pass.skew_s += f.collective_skew_s * std::log2(ranks);
      (!op.hidden                    ? pass.exposed_s
       : op.group == Group::kContext ? pass.ring_s
                                     : pass.tensor_s) += time;
      continue;
    }
    if (inputs_.frozen && op.phase == Phase::kBackwardWeight) continue;
    const double time = OpTime(op);
    pass.device_s += time;
    pass.host_s += op.launches * (forward ? f.launch_forward_s : f.launch_backward_s);
    if (op.phase == Phase::kBackwardWeight) sums.weight_s += time;
    if (op.work.kind == cost::WorkKind::kGemm && !op.core) {
      pass.products_s += time;
    } else if (op.core && op.work.kind != cost::WorkKind::kMemory) {
      pass.attention_s += time;
    }
    // What selective recomputation runs again: the core, or every other product and all pointwise.
    const bool again = per_op ? forward && !op.core : op.core;
    if (forward && again) {
      const double share = per_op && op.work.kind == cost::WorkKind::kGemm ? 0.5 : 1.0;
      sums.core_s += share * time;
      sums.core_host_s += share * op.launches * f.launch_forward_s;
    }
  }
  return sums;
}

ItemTimes StackStageCosts::TimesOf(const OpSums& sums) const {
  const double share = inputs_.stack.factors.hidden_share;
  const bool chunked = inputs_.stack.lowering.overlaps_tensor_exchange;
  const auto times = [&](const PassSums& pass, double beside_tensor) {
    const double exposed = pass.exposed_s + (Exposed(pass.ring_s, pass.attention_s, share) +
                                             Exposed(pass.tensor_s, beside_tensor, share));
    return PassTimes{pass.device_s + exposed, pass.host_s, pass.skew_s};
  };
  return {times(sums.forward, sums.forward.products_s),
          times(sums.backward, chunked ? sums.backward.products_s : sums.weight_s), sums.weight_s,
          sums.core_s, sums.core_host_s};
}

size_t StackStageCosts::PartHash::operator()(const PartKey& key) const {
  uint64_t hash = 0;
  for (const int64_t part : {key.size, key.ranks, key.other_ranks, static_cast<int64_t>(key.part),
                             static_cast<int64_t>(key.format), int64_t{key.sequence_parallel}}) {
    // Multiply and fold: the low bits of powers of two are zeros.
    hash = (hash ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 32;
  }
  return hash;
}

const std::vector<OpSums>& StackStageCosts::PartOf(const Split& split, LayerPart part) {
  const ItemContext context{inputs_.stack, inputs_.module, split, inputs_.sequence,
                            inputs_.expert_imbalance};
  PartKey key{context.tokens(), split.tp, 0, part, split.format, split.sequence_parallel};
  if (part == LayerPart::kCore) {
    key = {split.micro_batch, split.tp, split.cp, part, split.format, false};
  } else if (part == LayerPart::kExperts) {
    key = {context.dispatched_tokens(), split.ep, split.expert_tp, part, split.format, false};
  }
  const auto [at, fresh] = parts_.try_emplace(key);
  std::vector<OpSums>& sums = at->second;
  if (!fresh) return sums;
  for (const LayerSpec& kind : inputs_.module.layer_kinds) {
    sums.push_back(SumsOf(split, OpsOf(context, kind, part)));
  }
  if (part == LayerPart::kRest) {
    sums.push_back(SumsOf(split, EmbeddingOps(context).ops));
    sums.push_back(SumsOf(split, HeadOps(context).ops));
  }
  return sums;
}

bool StackStageCosts::LeastPasses(const Split& split, BoundOver over,
                                  const std::array<bool, kLayerModes>& modes, LeastSeconds* least) {
  const Split alone = LeastOf(split);
  const std::vector<OpSums>& core = PartOf(alone, LayerPart::kCore);
  const std::vector<OpSums>& rest = PartOf(alone, LayerPart::kRest);
  // Without experts an item takes less: products beside a collective hide no more than they take.
  const std::vector<OpSums>* experts =
      over == BoundOver::kShape ? &PartOf(alone, LayerPart::kExperts) : nullptr;
  const auto passes = [](const ItemTimes& times, LayerMode mode) {
    return ForwardOf(times) + BackwardOf(times, mode);
  };
  const ModuleSpec& module = inputs_.module;
  const size_t kinds = module.layer_kinds.size();
  const size_t last = module.layers.empty() ? kinds : static_cast<size_t>(module.layers.back());
  double next_token = 0.0;  // the layer that predicts one more
  least->layer_s.resize(kinds);
  for (size_t kind = 0; kind < kinds; ++kind) {
    const OpSums shared = core[kind] + rest[kind];
    const ItemTimes times = TimesOf(experts != nullptr ? shared + (*experts)[kind] : shared);
    double seconds = std::numeric_limits<double>::infinity();
    for (size_t mode = 0; mode < kLayerModes; ++mode) {
      // Offloading takes no less than keeping.
      if (modes[mode]) seconds = std::min(seconds, passes(times, static_cast<LayerMode>(mode)));
    }
    least->layer_s[kind] = seconds;
    if (kind == last) next_token = passes(times, LayerMode::kKeep);
  }
  least->embedding_s = passes(TimesOf(rest[kinds]), LayerMode::kKeep);
  least->head_s = passes(TimesOf(rest[kinds + 1]), LayerMode::kKeep);
  if (last < kinds) {
    least->head_s += static_cast<double>(module.next_token_layers) * (next_token + least->head_s);
  }
  return true;
}

}  // namespace meshwright::planner::stack
