// What each Hugging Face model family means: its fields, its defaults, its layers. Internal to
// planner/ir.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/ir/load_model_hf_fields.h"
#include "planner/ir/model_spec.h"

namespace meshwright::planner {

/// Defaults of a configuration class of `transformers`.
struct HfDefaults {
  const char* config_class;
  int64_t vocab;
  int64_t hidden;
  int64_t ffn;
  int64_t layers;
  int64_t heads;
  int64_t kv_heads;  ///< 0: as many as heads
  int64_t head_dim;  ///< 0: hidden / heads
  int64_t max_positions;
  double norm_eps;
  double rope_theta;
  bool tied;
  /// Qwen: first layer with a sliding window. 0: the class has no such field, all layers have it.
  int64_t max_window_layers = 28;
};

struct HfFamily {
  std::string_view model_type;
  HfDefaults defaults;
  /// Fills the module from the fields; problems go to the fields' collector.
  void (*read)(HfFields* fields, const HfDefaults& defaults, ModuleSpec* module);
};

/// Readers of the families; one reader may serve several model_types.
void ReadLlama(HfFields* f, const HfDefaults& d, ModuleSpec* module);
void ReadMistral(HfFields* f, const HfDefaults& d, ModuleSpec* module);
void ReadMixtral(HfFields* f, const HfDefaults& d, ModuleSpec* module);
void ReadQwen2(HfFields* f, const HfDefaults& d, ModuleSpec* module);
void ReadQwen3(HfFields* f, const HfDefaults& d, ModuleSpec* module);
void ReadQwen2Moe(HfFields* f, const HfDefaults& d, ModuleSpec* module);
void ReadQwen3Moe(HfFields* f, const HfDefaults& d, ModuleSpec* module);
void ReadGemma(HfFields* f, const HfDefaults& d, ModuleSpec* module);
void ReadGemma2(HfFields* f, const HfDefaults& d, ModuleSpec* module);
void ReadPhi3(HfFields* f, const HfDefaults& d, ModuleSpec* module);
void ReadGptNeoX(HfFields* f, const HfDefaults& d, ModuleSpec* module);
void ReadGpt2(HfFields* f, const HfDefaults& d, ModuleSpec* module);
void ReadDeepSeekV2(HfFields* f, const HfDefaults& d, ModuleSpec* module);
void ReadDeepSeekV3(HfFields* f, const HfDefaults& d, ModuleSpec* module);

/// All text families, sorted by model_type.
const std::vector<HfFamily>& HfFamilies();
const HfFamily* FindHfFamily(std::string_view model_type);

}  // namespace meshwright::planner
