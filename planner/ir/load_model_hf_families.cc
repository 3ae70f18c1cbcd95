#include "planner/ir/load_model_hf_families.h"

namespace meshwright::planner {

// Defaults: models/*/configuration_*.py of Hugging Face `transformers` 4.57.3; 5.0.0 has the same.
const std::vector<HfFamily>& HfFamilies() {
  // model_type, {class, vocab, hidden, ffn, layers, heads, kv, head_dim, positions, eps, theta,
  // tied, max_window_layers}
  static const std::vector<HfFamily> families = {
      {"deepseek_v2",
       {"DeepseekV2Config", 32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6, 1e4, false},
       ReadDeepSeekV2},
      {"deepseek_v3",
       {"DeepseekV3Config", 129280, 7168, 18432, 61, 128, 0, 0, 4096, 1e-6, 1e4, false},
       ReadDeepSeekV3},
      {"gemma",
       {"GemmaConfig", 256000, 3072, 24576, 28, 16, 16, 256, 8192, 1e-6, 1e4, true},
       ReadGemma},
      {"gemma2",
       {"Gemma2Config", 256000, 2304, 9216, 26, 8, 4, 256, 8192, 1e-6, 1e4, true},
       ReadGemma2},
      {"gpt2", {"GPT2Config", 50257, 768, 0, 12, 12, 0, 0, 1024, 1e-5, 1e4, true}, ReadGpt2},
      {"gpt_neox",
       {"GPTNeoXConfig", 50432, 6144, 24576, 44, 64, 0, 0, 2048, 1e-5, 1e4, false},
       ReadGptNeoX},
      {"llama",
       {"LlamaConfig", 32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6, 1e4, false},
       ReadLlama},
      {"mistral",
       {"MistralConfig", 32000, 4096, 14336, 32, 32, 8, 0, 131072, 1e-6, 1e4, false},
       ReadMistral},
      {"mixtral",
       {"MixtralConfig", 32000, 4096, 14336, 32, 32, 8, 0, 131072, 1e-5, 1e6, false},
       ReadMixtral},
      {"phi3", {"Phi3Config", 32064, 3072, 8192, 32, 32, 0, 0, 4096, 1e-5, 1e4, false}, ReadPhi3},
      {"qwen2",
       {"Qwen2Config", 151936, 4096, 22016, 32, 32, 32, 0, 32768, 1e-6, 1e4, false},
       ReadQwen2},
      {"qwen2_5_vl_text",
       {"Qwen2_5_VLTextConfig", 152064, 8192, 29568, 80, 64, 8, 0, 32768, 1e-5, 1e6, false, 80},
       ReadQwen2},
      {"qwen2_moe",
       {"Qwen2MoeConfig", 151936, 2048, 5632, 24, 16, 16, 0, 32768, 1e-6, 1e4, false},
       ReadQwen2Moe},
      {"qwen2_vl_text",
       {"Qwen2VLTextConfig", 152064, 8192, 29568, 80, 64, 8, 0, 32768, 1e-5, 1e6, false, 80},
       ReadQwen2},
      {"qwen3",
       {"Qwen3Config", 151936, 4096, 22016, 32, 32, 32, 128, 32768, 1e-6, 1e4, false},
       ReadQwen3},
      {"qwen3_moe",
       {"Qwen3MoeConfig", 151936, 2048, 6144, 24, 32, 4, 0, 32768, 1e-6, 1e4, false, 0},
       ReadQwen3Moe},
  };
  return families;
}

const HfFamily* FindHfFamily(std::string_view model_type) {
  for (const HfFamily& family : HfFamilies()) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

}  // namespace meshwright::planner
