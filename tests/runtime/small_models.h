// Small models of the two families that run on CPU ranks, shaped to exercise every split.
#pragma once

#include "planner/ir/model_spec.h"

namespace meshwright::testing {

/// GPT-2 shape: LayerNorm, biases, learned positions, plain GELU, tied embeddings; 8 heads, an odd
/// vocabulary, 7 layers.
inline planner::ModelSpec SmallGpt(bool tied = true, int layers = 7) {
  planner::LayerSpec layer;
  layer.attention.heads = 8;
  layer.attention.kv_heads = 8;
  layer.attention.head_dim = 4;
  layer.attention.qkv_bias = true;
  layer.attention.output_bias = true;
  layer.mlp.ffn = 48;
  layer.mlp.bias = true;
  layer.mlp.activation = planner::Activation::kGeluTanh;
  planner::ModuleSpec m;
  m.name = "language";
  m.hidden = 32;
  m.layer_kinds = {layer};
  m.layers.assign(static_cast<size_t>(layers), 0);
  m.norm = planner::NormKind::kLayerNorm;
  m.positions = planner::PositionKind::kLearned;
  m.max_positions = 24;
  m.vocab = 61;
  m.tied_embeddings = tied;
  m.init_std = 0.2;  // large enough that every parameter has a gradient worth comparing
  planner::ModelSpec spec;
  spec.name = "small-gpt";
  spec.family = "gpt2";
  spec.modules = {m};
  return spec;
}

/// Llama shape: RMSNorm, rotary positions, gated SiLU, no biases; 8 heads over `kv_heads`, 8
/// layers.
inline planner::ModelSpec SmallLlama(int64_t kv_heads = 4, bool tied = false, int layers = 8) {
  planner::LayerSpec layer;
  layer.attention.heads = 8;
  layer.attention.kv_heads = kv_heads;
  layer.attention.head_dim = 4;
  layer.attention.rope_theta = 10000.0;
  layer.mlp.ffn = 40;
  layer.mlp.gated = true;
  layer.mlp.activation = planner::Activation::kSilu;
  planner::ModuleSpec m;
  m.name = "language";
  m.hidden = 32;
  m.layer_kinds = {layer};
  m.layers.assign(static_cast<size_t>(layers), 0);
  m.max_positions = 64;
  m.vocab = 64;
  m.tied_embeddings = tied;
  m.init_std = 0.2;
  planner::ModelSpec spec;
  spec.name = "small-llama";
  spec.family = "llama";
  spec.modules = {m};
  return spec;
}

}  // namespace meshwright::testing
