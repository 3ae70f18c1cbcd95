// The fields of the YAML form, stated once for the reader and the writer: each Visit* function
// hands every field of a spec to a visitor with
//   Need(key, field)                 must be stated
//   Fill(key, field, value, why)     when absent `value`, and that is listed in defaults_filled
//   Off(key, field, value)           when absent `value`, silently: a feature that is not used
// Fields that others' defaults depend on come first. Internal to planner/ir.
#pragma once

#include <cstdint>

#include "planner/ir/model_spec.h"

namespace meshwright::planner::internal {

template <typename Visitor, typename Latent>
void VisitLatent(Visitor& v, Latent& l) {
  v.Off("q_rank", l.q_rank, int64_t{0});
  v.Need("kv_rank", l.kv_rank);
  v.Need("nope_dim", l.nope_dim);
  v.Need("rope_dim", l.rope_dim);
  v.Need("value_dim", l.value_dim);
}

/// hidden / heads, 0 (which CheckModel refuses) when that is not a whole number.
inline int64_t HeadDimOf(int64_t hidden, int64_t heads) {
  return heads > 0 && hidden > 0 && hidden % heads == 0 ? hidden / heads : 0;
}

template <typename Visitor, typename Attention>
void VisitAttention(Visitor& v, const ModuleSpec& module, Attention& a) {
  v.Sub("latent", a.latent, [](auto& sub, auto& latent) { VisitLatent(sub, latent); });
  v.Need("heads", a.heads);
  v.Fill("kv_heads", a.kv_heads, a.heads, "absent: as many as heads");
  if (a.latent) {
    const bool sane = a.latent->nope_dim < (int64_t{1} << 40) &&
                      a.latent->rope_dim < (int64_t{1} << 40) && a.latent->nope_dim >= 0 &&
                      a.latent->rope_dim >= 0;
    v.Fill("head_dim", a.head_dim, sane ? a.latent->nope_dim + a.latent->rope_dim : 0,
           "absent: nope_dim + rope_dim");
  } else {
    v.Fill("head_dim", a.head_dim, HeadDimOf(module.hidden, a.heads), "absent: hidden / heads");
  }
  v.Off("qkv_bias", a.qkv_bias, false);
  v.Off("output_bias", a.output_bias, false);
  v.Off("qk_norm", a.qk_norm, false);
  v.Off("causal", a.causal, true);
  v.Off("window", a.window, int64_t{0});
  if (module.positions == PositionKind::kRotary) {
    v.Fill("rope_theta", a.rope_theta, 10000.0, "absent: the value of the rotary paper");
  } else {
    v.Off("rope_theta", a.rope_theta, 10000.0);
  }
  v.Off("rotary_dim", a.rotary_dim, int64_t{0});
  v.Off("score_scale", a.score_scale, 0.0);
  v.Off("score_softcap", a.score_softcap, 0.0);
}

template <typename Visitor, typename Moe>
void VisitMoe(Visitor& v, Moe& m) {
  v.Need("experts", m.experts);
  v.Need("top_k", m.top_k);
  v.Need("expert_ffn", m.expert_ffn);
  v.Off("shared_experts", m.shared_experts, int64_t{0});
  v.Off("shared_ffn", m.shared_ffn, int64_t{0});
  v.Off("shared_gate", m.shared_gate, false);
  v.Off("router_bias", m.router_bias, false);
  v.Fill("score", m.score, RouterScore::kSoftmax, "absent: the usual router");
  v.Fill("normalize_top_k", m.normalize_top_k, true, "absent: the usual router");
  v.Off("routed_scale", m.routed_scale, 1.0);
  v.Off("groups", m.groups, int64_t{1});
  v.Off("top_groups", m.top_groups, int64_t{1});
}

template <typename Visitor, typename Mlp>
void VisitMlp(Visitor& v, Mlp& m) {
  v.Sub("moe", m.moe, [](auto& sub, auto& moe) { VisitMoe(sub, moe); });
  if (m.moe) {
    v.Off("ffn", m.ffn, int64_t{0});
  } else {
    v.Need("ffn", m.ffn);
  }
  v.Need("gated", m.gated);
  v.Need("activation", m.activation);
  v.Off("bias", m.bias, false);
}

/// Everything of a module but its layers.
template <typename Visitor, typename Module>
void VisitModule(Visitor& v, Module& m) {
  v.Need("name", m.name);
  v.Need("kind", m.kind);
  v.Need("hidden", m.hidden);
  v.Need("norm", m.norm);
  v.Fill("norm_eps", m.norm_eps, 1e-5, "absent: the usual value");
  v.Off("norm_one_plus", m.norm_one_plus, false);
  v.Need("positions", m.positions);
  v.Off("max_positions", m.max_positions, int64_t{0});
  v.Off("vocab", m.vocab, int64_t{0});
  v.Off("head", m.head, true);
  if (m.head) {
    v.Need("tied_embeddings", m.tied_embeddings);
  } else {
    v.Off("tied_embeddings", m.tied_embeddings, false);
  }
  v.Off("head_bias", m.head_bias, false);
  v.Off("final_norm", m.final_norm, true);
  v.Off("embedding_scale", m.embedding_scale, 1.0);
  v.Off("logit_softcap", m.logit_softcap, 0.0);
  v.Fill("init_std", m.init_std, 0.02, "absent: the usual value");
  v.Off("next_token_layers", m.next_token_layers, int64_t{0});
  v.Off("trained", m.trained, true);
}

template <typename Visitor, typename Edge>
void VisitEdge(Visitor& v, Edge& e) {
  v.Need("from", e.from);
  v.Need("to", e.to);
}

}  // namespace meshwright::planner::internal
