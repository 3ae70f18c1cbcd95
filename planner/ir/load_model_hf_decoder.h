// Reading steps that several Hugging Face families share. Internal to planner/ir.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/ir/load_model_hf_families.h"
#include "planner/ir/load_model_hf_fields.h"
#include "planner/ir/model_spec.h"

namespace meshwright::planner {

/// "default of LlamaConfig".
std::string DefaultOf(const HfDefaults& d);
bool Flag(HfFields* f, const char* key, bool fallback, const HfDefaults& d);
/// A whole number of 1..high.
int64_t Count(HfFields* f, Keys keys, int64_t high, int64_t fallback, const HfDefaults& d);

/// `make(i)` is layer i; equal layers share one kind.
void SetLayers(ModuleSpec* module, int64_t count, const std::function<LayerSpec(int64_t)>& make);
int64_t LayerCount(HfFields* f, const HfDefaults& d);

double RopeTheta(HfFields* f, Keys keys, const HfDefaults& d);
/// head_dim where the file may leave it out: hidden / heads, which must then be whole.
int64_t HeadDim(HfFields* f, const HfDefaults& d, int64_t hidden, int64_t heads,
                const std::string& heads_key);
/// The rotated width of a head must be even; `key` is the field to blame.
void CheckRotary(HfFields* f, const AttentionSpec& a, const std::string& key);

/// Where the size of a head comes from: head_dim or hidden / heads, or fields of its own.
enum class HeadShape { kPlain, kLatent };
/// What the Llama-like families share. Returns the layer that most of them have throughout.
LayerSpec ReadDecoder(HfFields* f, const HfDefaults& d, HeadShape shape, ModuleSpec* module);
void ReadSilu(HfFields* f, const HfDefaults& d, LayerSpec* layer);
/// Qwen2's biases on q, k and v, which no field states.
void BuiltInQkvBias(HfFields* f, LayerSpec* layer);

/// sliding_window: absent means `fallback` (0: none), null means none.
int64_t ReadWindow(HfFields* f, int64_t fallback, const HfDefaults& d);
/// Which layers have a sliding window: as layer_types says, else as `rule` says.
std::vector<bool> WindowedLayers(HfFields* f, int64_t layers,
                                 const std::function<bool(int64_t)>& rule);
/// Layers that differ from `layer` in the window only.
void SetWindowedLayers(HfFields* f, ModuleSpec* module, LayerSpec layer, int64_t count,
                       int64_t window, const std::function<bool(int64_t)>& rule);
/// Qwen's switch: a window on the layers from max_window_layers on, when use_sliding_window.
std::function<bool(int64_t)> QwenWindow(HfFields* f, const HfDefaults& d, int64_t* window);

}  // namespace meshwright::planner
