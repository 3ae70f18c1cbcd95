#include "planner/ir/load_model_hf_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "planner/ir/model_limits.h"

namespace meshwright::planner {
namespace {

using Json = nlohmann::json;

void CheckKvHeads(HfFields* f, const AttentionSpec& a) {
  if (a.heads <= 0 || a.kv_heads <= 0 || a.heads % a.kv_heads == 0) return;
  f->Problem("num_key_value_heads", fmt::format("{} for {} heads", a.kv_heads, a.heads),
             fmt::format("a divisor of num_attention_heads = {}", a.heads),
             "every kv head serves equally many heads: correct one of the two");
}

}  // namespace

std::string DefaultOf(const HfDefaults& d) {
  return fmt::format("default of {}", d.config_class);
}

bool Flag(HfFields* f, const char* key, bool fallback, const HfDefaults& d) {
  return f->Flag({key}, {fallback, DefaultOf(d)});
}

int64_t Count(HfFields* f, Keys keys, int64_t high, int64_t fallback, const HfDefaults& d) {
  return f->Whole(keys, 1, high, {fallback, DefaultOf(d)});
}

void SetLayers(ModuleSpec* module, int64_t count, const std::function<LayerSpec(int64_t)>& make) {
  for (int64_t i = 0; i < count; ++i) {
    const LayerSpec layer = make(i);
    auto& kinds = module->layer_kinds;
    const auto found = std::find(kinds.begin(), kinds.end(), layer);
    module->layers.push_back(static_cast<int>(found - kinds.begin()));
    if (found == kinds.end()) kinds.push_back(layer);
  }
}

double RopeTheta(HfFields* f, Keys keys, const HfDefaults& d) {
  // Newer configurations move rope_theta into an object.
  const Json* parameters = f->Find("rope_parameters");
  if (parameters != nullptr && parameters->is_object() && parameters->contains("rope_theta") &&
      f->Find("rope_theta") == nullptr) {
    const Json& theta = (*parameters)["rope_theta"];
    if (theta.is_number() && theta.get<double>() >= 1e-3 && theta.get<double>() <= 1e15) {
      return theta.get<double>();
    }
    f->Problem("rope_parameters", "rope_theta " + FoundJson(theta), "a number from 0.001 to 1e+15",
               "correct the number");
    return d.rope_theta;
  }
  return f->Real(keys, 1e-3, 1e15, {d.rope_theta, DefaultOf(d)});
}

int64_t HeadDim(HfFields* f, const HfDefaults& d, int64_t hidden, int64_t heads,
                const std::string& heads_key) {
  const bool known = hidden > 0 && heads > 0;
  const bool stated = f->Find("head_dim") != nullptr;
  if (stated || d.head_dim > 0) {
    return f->WholeOrNull({"head_dim"}, 1, limits::kHeadDim, {d.head_dim, DefaultOf(d)});
  }
  if (known && hidden % heads != 0) {
    f->Problem(heads_key, fmt::format("{} for a hidden size of {}", heads, hidden),
               fmt::format("a divisor of {}, or a head_dim beside it", hidden),
               "correct the number, or state head_dim");
    return 0;
  }
  if (!known) return 0;
  return f->WholeOrNull({"head_dim"}, 1, limits::kHeadDim,
                        {hidden / heads, "hidden size / " + heads_key});
}

void CheckRotary(HfFields* f, const AttentionSpec& a, const std::string& key) {
  const int64_t rotated = a.rotary_dim > 0 ? a.rotary_dim : a.head_dim;
  if (rotated % 2 == 0) return;
  f->Problem(key, fmt::format("a rotary width of {}", rotated), "an even width",
             "rotation works on pairs: correct the sizes");
}

LayerSpec ReadDecoder(HfFields* f, const HfDefaults& d, HeadShape shape, ModuleSpec* module) {
  module->hidden = Count(f, {"hidden_size"}, limits::kHidden, d.hidden, d);
  module->vocab = Count(f, {"vocab_size"}, limits::kVocab, d.vocab, d);
  module->max_positions =
      Count(f, {"max_position_embeddings"}, limits::kPositions, d.max_positions, d);
  module->norm_eps = f->Real({"rms_norm_eps"}, 0, 1, {d.norm_eps, DefaultOf(d)});
  module->init_std = f->Real({"initializer_range"}, 0, 1000, {0.02, DefaultOf(d)});
  module->tied_embeddings = Flag(f, "tie_word_embeddings", d.tied, d);
  LayerSpec layer;
  AttentionSpec& a = layer.attention;
  a.heads = Count(f, {"num_attention_heads"}, limits::kHeads, d.heads, d);
  a.kv_heads =
      f->WholeOrNull({"num_key_value_heads"}, 1, limits::kHeads,
                     d.kv_heads > 0 ? Absent<int64_t>{d.kv_heads, DefaultOf(d)}
                                    : Absent<int64_t>{a.heads, "as many as num_attention_heads"});
  CheckKvHeads(f, a);
  if (shape == HeadShape::kPlain) {
    a.head_dim = HeadDim(f, d, module->hidden, a.heads, "num_attention_heads");
    CheckRotary(f, a, "head_dim");
  }
  a.rope_theta = RopeTheta(f, {"rope_theta"}, d);
  layer.mlp.ffn = Count(f, {"intermediate_size"}, limits::kFfn, d.ffn, d);
  layer.mlp.gated = true;
  layer.mlp.activation = Activation::kSilu;
  return layer;
}

int64_t LayerCount(HfFields* f, const HfDefaults& d) {
  return Count(f, {"num_hidden_layers"}, limits::kLayers, d.layers, d);
}

void ReadSilu(HfFields* f, const HfDefaults& d, LayerSpec* layer) {
  layer->mlp.activation = f->ReadActivation({"hidden_act"}, "silu", DefaultOf(d));
}

void BuiltInQkvBias(HfFields* f, LayerSpec* layer) {
  layer->attention.qkv_bias = true;
  f->ListDefault("q, k and v bias", "true", "built into the family");
}

int64_t ReadWindow(HfFields* f, int64_t fallback, const HfDefaults& d) {
  if (f->Find("sliding_window") == nullptr && (fallback == 0 || f->IsNull("sliding_window"))) {
    return 0;
  }
  return f->Whole({"sliding_window"}, 1, limits::kPositions, {fallback, DefaultOf(d)});
}

std::vector<bool> WindowedLayers(HfFields* f, int64_t layers,
                                 const std::function<bool(int64_t)>& rule) {
  std::vector<bool> windowed;
  for (int64_t i = 0; i < layers; ++i) windowed.push_back(rule(i));
  if (f->Find("layer_types") == nullptr) return windowed;
  const std::vector<std::string> types = f->TextList("layer_types");
  if (f->HasProblem("layer_types") || layers == 0) return windowed;
  if (static_cast<int64_t>(types.size()) != layers) {
    f->Problem("layer_types", fmt::format("{} entries", types.size()),
               fmt::format("{}, one a layer", layers), "correct the list or num_hidden_layers");
    return windowed;
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != "full_attention" && types[i] != "sliding_attention") {
      f->Problem("layer_types", Quoted(types[i]), "full_attention, sliding_attention",
                 "other layers cannot be planned: write the model as Meshwright YAML");
      return windowed;
    }
    windowed[i] = types[i] == "sliding_attention";
  }
  return windowed;
}

void SetWindowedLayers(HfFields* f, ModuleSpec* module, LayerSpec layer, int64_t count,
                       int64_t window, const std::function<bool(int64_t)>& rule) {
  const std::vector<bool> windowed = WindowedLayers(f, count, rule);
  SetLayers(module, count, [&](int64_t i) {
    layer.attention.window = windowed[static_cast<size_t>(i)] ? window : 0;
    return layer;
  });
}

std::function<bool(int64_t)> QwenWindow(HfFields* f, const HfDefaults& d, int64_t* window) {
  *window = 0;
  if (!Flag(f, "use_sliding_window", false, d)) return [](int64_t) { return false; };
  *window = ReadWindow(f, 4096, d);
  const int64_t first = f->Whole(
      {"max_window_layers"}, 0, limits::kPositions,
      {d.max_window_layers,
       d.max_window_layers > 0
           ? DefaultOf(d)
           : fmt::format("{} has no such field: a window on every layer", d.config_class)});
  return [first](int64_t i) { return i >= first; };
}

}  // namespace meshwright::planner
