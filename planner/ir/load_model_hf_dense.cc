#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "planner/ir/load_model_hf_decoder.h"
#include "planner/ir/model_limits.h"

namespace meshwright::planner {
namespace {

using Json = nlohmann::json;

/// What Gemma and Gemma-2 share.
LayerSpec ReadGemmaDecoder(HfFields* f, const HfDefaults& d, ModuleSpec* module) {
  LayerSpec layer = ReadDecoder(f, d, HeadShape::kPlain, module);
  // hidden_act is a leftover there: both generations compute the tanh form.
  layer.mlp.activation = Activation::kGeluTanh;
  if (f->Find("hidden_activation") != nullptr) {
    layer.mlp.activation = f->ReadActivation({"hidden_activation"}, "", "");
  } else {
    f->ListDefault("hidden_activation", "gelu_pytorch_tanh", DefaultOf(d));
  }
  layer.attention.qkv_bias = layer.attention.output_bias = Flag(f, "attention_bias", false, d);
  module->norm_one_plus = true;
  if (module->hidden > 0) module->embedding_scale = std::sqrt(static_cast<double>(module->hidden));
  return layer;
}

/// A cap on logits; null switches it off.
double ReadSoftcap(HfFields* f, const char* key, double fallback, const HfDefaults& d) {
  return f->IsNull(key) ? 0 : f->Real({key}, 1e-3, 1e6, {fallback, DefaultOf(d)});
}

/// rotary_dim of a head that is rotated by `fraction` only; 0 when that is all of it.
int64_t PartialRotary(int64_t head_dim, double fraction) {
  const auto rotated = static_cast<int64_t>(static_cast<double>(head_dim) * fraction);
  return rotated == head_dim ? 0 : rotated;
}

void RefuseGpt2Variants(HfFields* f) {
  for (const char* key : {"add_cross_attention", "scale_attn_by_inverse_layer_idx"}) {
    const Json* value = f->Find(key);
    if (value == nullptr || *value == Json(false)) continue;
    f->Problem(key, FoundJson(*value), "false", "this variant cannot be planned");
  }
}

}  // namespace

void ReadLlama(HfFields* f, const HfDefaults& d, ModuleSpec* module) {
  LayerSpec layer = ReadDecoder(f, d, HeadShape::kPlain, module);
  ReadSilu(f, d, &layer);
  layer.attention.qkv_bias = layer.attention.output_bias = Flag(f, "attention_bias", false, d);
  layer.mlp.bias = Flag(f, "mlp_bias", false, d);
  SetLayers(module, LayerCount(f, d), [&](int64_t) { return layer; });
}

void ReadMistral(HfFields* f, const HfDefaults& d, ModuleSpec* module) {
  LayerSpec layer = ReadDecoder(f, d, HeadShape::kPlain, module);
  ReadSilu(f, d, &layer);
  layer.attention.window = ReadWindow(f, 4096, d);
  SetLayers(module, LayerCount(f, d), [&](int64_t) { return layer; });
}

void ReadQwen2(HfFields* f, const HfDefaults& d, ModuleSpec* module) {
  LayerSpec layer = ReadDecoder(f, d, HeadShape::kPlain, module);
  ReadSilu(f, d, &layer);
  BuiltInQkvBias(f, &layer);
  int64_t window = 0;
  const auto rule = QwenWindow(f, d, &window);
  SetWindowedLayers(f, module, layer, LayerCount(f, d), window, rule);
}

void ReadQwen3(HfFields* f, const HfDefaults& d, ModuleSpec* module) {
  LayerSpec layer = ReadDecoder(f, d, HeadShape::kPlain, module);
  ReadSilu(f, d, &layer);
  layer.attention.qkv_bias = layer.attention.output_bias = Flag(f, "attention_bias", false, d);
  layer.attention.qk_norm = true;
  int64_t window = 0;
  const auto rule = QwenWindow(f, d, &window);
  SetWindowedLayers(f, module, layer, LayerCount(f, d), window, rule);
}

void ReadGemma(HfFields* f, const HfDefaults& d, ModuleSpec* module) {
  const LayerSpec layer = ReadGemmaDecoder(f, d, module);
  SetLayers(module, LayerCount(f, d), [&](int64_t) { return layer; });
}

void ReadGemma2(HfFields* f, const HfDefaults& d, ModuleSpec* module) {
  LayerSpec layer = ReadGemmaDecoder(f, d, module);
  layer.post_norms = true;
  layer.attention.score_softcap = ReadSoftcap(f, "attn_logit_softcapping", 50, d);
  module->logit_softcap = ReadSoftcap(f, "final_logit_softcapping", 30, d);
  const double scalar = f->Real({"query_pre_attn_scalar"}, 1e-3, 1e9, {256.0, DefaultOf(d)});
  if (scalar > 0 && scalar != static_cast<double>(layer.attention.head_dim)) {
    layer.attention.score_scale = 1 / std::sqrt(scalar);
  }
  const int64_t window = ReadWindow(f, 4096, d);
  SetWindowedLayers(f, module, layer, LayerCount(f, d), window,
                    [](int64_t i) { return i % 2 == 0; });
}

void ReadPhi3(HfFields* f, const HfDefaults& d, ModuleSpec* module) {
  LayerSpec layer = ReadDecoder(f, d, HeadShape::kPlain, module);
  ReadSilu(f, d, &layer);
  const double fraction = f->Real({"partial_rotary_factor"}, 0.01, 1, {1.0, DefaultOf(d)});
  layer.attention.rotary_dim = PartialRotary(layer.attention.head_dim, fraction);
  CheckRotary(f, layer.attention, "partial_rotary_factor");
  layer.attention.window = ReadWindow(f, 0, d);
  SetLayers(module, LayerCount(f, d), [&](int64_t) { return layer; });
}

void ReadGptNeoX(HfFields* f, const HfDefaults& d, ModuleSpec* module) {
  module->hidden = Count(f, {"hidden_size"}, limits::kHidden, d.hidden, d);
  module->vocab = Count(f, {"vocab_size"}, limits::kVocab, d.vocab, d);
  module->max_positions =
      Count(f, {"max_position_embeddings"}, limits::kPositions, d.max_positions, d);
  module->norm = NormKind::kLayerNorm;
  module->norm_eps = f->Real({"layer_norm_eps"}, 0, 1, {d.norm_eps, DefaultOf(d)});
  module->init_std = f->Real({"initializer_range"}, 0, 1000, {0.02, DefaultOf(d)});
  module->tied_embeddings = Flag(f, "tie_word_embeddings", d.tied, d);
  LayerSpec layer;
  AttentionSpec& a = layer.attention;
  a.heads = a.kv_heads = Count(f, {"num_attention_heads"}, limits::kHeads, d.heads, d);
  a.head_dim = HeadDim(f, d, module->hidden, a.heads, "num_attention_heads");
  a.rope_theta = RopeTheta(f, {"rotary_emb_base", "rope_theta"}, d);
  const double fraction =
      f->Real({"rotary_pct", "partial_rotary_factor"}, 0.01, 1, {0.25, DefaultOf(d)});
  a.rotary_dim = PartialRotary(a.head_dim, fraction);
  CheckRotary(f, a, "rotary_pct");
  a.qkv_bias = a.output_bias = Flag(f, "attention_bias", true, d);
  layer.mlp.ffn = Count(f, {"intermediate_size"}, limits::kFfn, d.ffn, d);
  layer.mlp.activation = f->ReadActivation({"hidden_act"}, "gelu", DefaultOf(d));
  layer.mlp.bias = true;
  layer.parallel_residual = Flag(f, "use_parallel_residual", true, d);
  SetLayers(module, LayerCount(f, d), [&](int64_t) { return layer; });
}

void ReadGpt2(HfFields* f, const HfDefaults& d, ModuleSpec* module) {
  RefuseGpt2Variants(f);
  module->hidden = Count(f, {"n_embd", "hidden_size"}, limits::kHidden, d.hidden, d);
  module->vocab = Count(f, {"vocab_size"}, limits::kVocab, d.vocab, d);
  module->max_positions = Count(f, {"n_positions", "n_ctx", "max_position_embeddings"},
                                limits::kPositions, d.max_positions, d);
  module->positions = PositionKind::kLearned;
  module->norm = NormKind::kLayerNorm;
  module->norm_eps = f->Real({"layer_norm_epsilon"}, 0, 1, {d.norm_eps, DefaultOf(d)});
  module->init_std = f->Real({"initializer_range"}, 0, 1000, {0.02, DefaultOf(d)});
  module->tied_embeddings = Flag(f, "tie_word_embeddings", d.tied, d);
  LayerSpec layer;
  AttentionSpec& a = layer.attention;
  a.heads = a.kv_heads = Count(f, {"n_head", "num_attention_heads"}, limits::kHeads, d.heads, d);
  // GPT-2 has no head_dim field: hidden / heads is the only shape.
  if (module->hidden > 0 && a.heads > 0 && module->hidden % a.heads != 0) {
    f->Problem("n_head", fmt::format("{} for n_embd = {}", a.heads, module->hidden),
               fmt::format("a divisor of {}", module->hidden), "correct one of the two");
  } else if (a.heads > 0) {
    a.head_dim = module->hidden / a.heads;
  }
  a.qkv_bias = a.output_bias = true;  // built into the family
  if (!Flag(f, "scale_attn_weights", true, d)) a.score_scale = 1;
  layer.mlp.bias = true;
  layer.mlp.activation = f->ReadActivation({"activation_function"}, "gelu_new", DefaultOf(d));
  layer.mlp.ffn = f->WholeOrNull({"n_inner"}, 1, limits::kFfn, {4 * module->hidden, "4 x n_embd"});
  SetLayers(module, Count(f, {"n_layer", "num_hidden_layers"}, limits::kLayers, d.layers, d),
            [&](int64_t) { return layer; });
}

}  // namespace meshwright::planner
