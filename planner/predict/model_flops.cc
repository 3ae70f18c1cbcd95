#include "planner/predict/model_flops.h"

#include <algorithm>

namespace meshwright::planner {
namespace {

double D(int64_t value) {
  return static_cast<double>(value);
}

double AttentionParameters(const AttentionSpec& a, int64_t hidden) {
  const double h = D(hidden);
  if (!a.latent) {
    const double width = D(a.heads) * D(a.head_dim);
    return h * width + 2 * h * D(a.kv_heads) * D(a.head_dim) + width * h;
  }
  const LatentAttentionSpec& l = *a.latent;
  const double q_width = D(a.heads) * D(l.nope_dim + l.rope_dim);
  const double q = l.q_rank > 0 ? h * D(l.q_rank) + D(l.q_rank) * q_width : h * q_width;
  const double kv =
      h * D(l.kv_rank + l.rope_dim) + D(l.kv_rank) * D(a.heads) * D(l.nope_dim + l.value_dim);
  return q + kv + D(a.heads) * D(l.value_dim) * h;
}

double MlpParameters(const MlpSpec& mlp, int64_t hidden) {
  const double h = D(hidden);
  const double matrices = mlp.gated ? 3 : 2;
  if (!mlp.moe) return matrices * h * D(mlp.ffn);
  const MoeSpec& moe = *mlp.moe;
  return h * D(moe.experts) +
         matrices * h * (D(moe.top_k) * D(moe.expert_ffn) + D(moe.shared_ffn)) +
         (moe.shared_gate ? h : 0.0);
}

/// Elements of a query (and key) and of a value, over all heads.
double ScoreAndValueWidth(const AttentionSpec& a) {
  const double value = a.latent ? D(a.latent->value_dim) : D(a.head_dim);
  return D(a.heads) * (D(a.head_dim) + value);
}

}  // namespace

double MatmulParametersPerToken(const ModuleSpec& module) {
  double parameters = module.head ? D(module.vocab) * D(module.hidden) : 0.0;
  for (const int kind : module.layers) {
    const LayerSpec& layer = module.layer_kinds[static_cast<size_t>(kind)];
    parameters += AttentionParameters(layer.attention, module.hidden) +
                  MlpParameters(layer.mlp, module.hidden);
  }
  return parameters;
}

double AttentionPairs(const AttentionSpec& attention, int64_t sequence) {
  const double s = D(sequence);
  const double window = attention.window > 0 ? D(std::min(attention.window, sequence)) : s;
  const double causal = s * window - window * window / 2;
  return attention.causal ? causal : 2 * causal;
}

Flops ModelFlopsPerStep(const ModuleSpec& module, int64_t sequence, int64_t batch) {
  double attention = 0.0;
  for (const int kind : module.layers) {
    const AttentionSpec& a = module.layer_kinds[static_cast<size_t>(kind)].attention;
    attention += 6 * AttentionPairs(a, sequence) * ScoreAndValueWidth(a);
  }
  const double products = 6 * MatmulParametersPerToken(module) * D(sequence);
  const double passes = module.trained ? 1.0 : 1.0 / 3.0;
  return Flops(D(batch) * (products + attention) * passes);
}

}  // namespace meshwright::planner
