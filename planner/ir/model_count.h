// The parameter formulas, over any number type: int64_t for exact counts, double to see an
// overflow before it happens. Internal to planner/ir; callers use CountParameters.
#pragma once

#include "planner/ir/model_spec.h"

namespace meshwright::planner::internal {

template <typename N>
struct Counts {
  N embedding{}, head{}, attention{}, mlp{}, norms{}, next_token{}, active_mlp{};
};

/// Weights of an in x out projection and, with `bias`, one number per output.
template <typename N>
N Linear(N in, N out, bool bias) {
  return in * out + (bias ? out : N{});
}

template <typename N>
N NormParameters(NormKind kind, N width) {
  return kind == NormKind::kLayerNorm ? width * N{2} : width;
}

template <typename N>
N AttentionParameters(const AttentionSpec& a, N hidden) {
  const N heads = N(a.heads);
  if (!a.latent) {
    const N q = heads * N(a.head_dim);
    const N kv = N(a.kv_heads) * N(a.head_dim);
    return Linear(hidden, q, a.qkv_bias) + N{2} * Linear(hidden, kv, a.qkv_bias) +
           Linear(q, hidden, a.output_bias);
  }
  const LatentAttentionSpec& l = *a.latent;
  const N q_width = heads * (N(l.nope_dim) + N(l.rope_dim));
  const N q = l.q_rank > 0 ? Linear(hidden, N(l.q_rank), a.qkv_bias) + N(l.q_rank) * q_width
                           : hidden * q_width;
  const N kv = Linear(hidden, N(l.kv_rank) + N(l.rope_dim), a.qkv_bias) +
               N(l.kv_rank) * heads * (N(l.nope_dim) + N(l.value_dim));
  return q + kv + Linear(heads * N(l.value_dim), hidden, a.output_bias);
}

template <typename N>
N DenseMlpParameters(const MlpSpec& m, N hidden, N ffn) {
  return N(m.gated ? 2 : 1) * Linear(hidden, ffn, m.bias) + Linear(ffn, hidden, m.bias);
}

/// `experts` of the routed experts, router and shared part included.
template <typename N>
N MoeParameters(const MlpSpec& m, N hidden, N experts) {
  const MoeSpec& moe = *m.moe;
  N sum = Linear(hidden, N(moe.experts), moe.router_bias);
  sum += experts * DenseMlpParameters(m, hidden, N(moe.expert_ffn));
  if (moe.shared_experts > 0) sum += DenseMlpParameters(m, hidden, N(moe.shared_ffn));
  if (moe.shared_gate) sum += hidden;
  return sum;
}

/// Norms of one layer: before (and with post_norms after) both sub-layers, of q and k heads, of the
/// latent ranks.
template <typename N>
N LayerNormParameters(const ModuleSpec& module, const LayerSpec& layer) {
  const AttentionSpec& a = layer.attention;
  N sum = N(layer.post_norms ? 4 : 2) * NormParameters(module.norm, N(module.hidden));
  if (a.qk_norm) sum += N{2} * N(a.head_dim);
  if (a.latent) sum += N(a.latent->q_rank) + N(a.latent->kv_rank);
  return sum;
}

template <typename N>
void AddLayer(const ModuleSpec& module, const LayerSpec& layer, N times, Counts<N>* counts) {
  const N hidden = N(module.hidden);
  const MlpSpec& mlp = layer.mlp;
  counts->attention += times * AttentionParameters(layer.attention, hidden);
  counts->norms += times * LayerNormParameters<N>(module, layer);
  counts->mlp += times * (mlp.moe ? MoeParameters(mlp, hidden, N(mlp.moe->experts))
                                  : DenseMlpParameters(mlp, hidden, N(mlp.ffn)));
  counts->active_mlp += times * (mlp.moe ? MoeParameters(mlp, hidden, N(mlp.moe->top_k))
                                         : DenseMlpParameters(mlp, hidden, N(mlp.ffn)));
}

template <typename N>
Counts<N> Count(const ModuleSpec& module) {
  Counts<N> counts;
  const N hidden = N(module.hidden);
  const N vocab = N(module.vocab);
  counts.embedding = vocab * hidden;
  if (module.positions == PositionKind::kLearned) {
    counts.embedding += N(module.max_positions) * hidden;
  }
  if (module.head && !module.tied_embeddings) counts.head += vocab * hidden;
  if (module.head && module.head_bias) counts.head += vocab;

  std::vector<int64_t> uses(module.layer_kinds.size(), 0);
  for (const int kind : module.layers) ++uses[static_cast<size_t>(kind)];
  for (size_t kind = 0; kind < uses.size(); ++kind) {
    AddLayer(module, module.layer_kinds[kind], N(uses[kind]), &counts);
  }
  if (module.final_norm) counts.norms += NormParameters(module.norm, hidden);

  // A prediction layer: norms of both inputs, their projection to hidden, one more layer of the
  // last kind, an output norm; embedding and head are shared with the main model.
  if (module.next_token_layers > 0 && !module.layers.empty()) {
    Counts<N> one;
    AddLayer(module, module.layer(module.layer_count() - 1), N{1}, &one);
    counts.next_token = N(module.next_token_layers) *
                        (one.attention + one.mlp + one.norms +
                         N{3} * NormParameters(module.norm, hidden) + N{2} * hidden * hidden);
  }
  return counts;
}

}  // namespace meshwright::planner::internal
