#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "planner/ir/load_model_hf_decoder.h"
#include "planner/ir/model_limits.h"

namespace meshwright::planner {
namespace {

/// Mixture-of-experts layers of Qwen: every decoder_sparse_step-th one that mlp_only_layers spares.
void SetQwenMoeLayers(HfFields* f, const HfDefaults& d, ModuleSpec* module, const LayerSpec& dense,
                      const MoeSpec& moe) {
  const int64_t step = f->Whole({"decoder_sparse_step"}, 1, limits::kLayers, {1, DefaultOf(d)});
  const std::vector<int64_t> list = f->WholeList("mlp_only_layers", 0, limits::kLayers);
  const std::set<int64_t> spared(list.begin(), list.end());
  int64_t window = 0;
  const auto rule = QwenWindow(f, d, &window);
  const int64_t count = LayerCount(f, d);
  const std::vector<bool> windowed = WindowedLayers(f, count, rule);
  SetLayers(module, count, [&](int64_t i) {
    LayerSpec layer = dense;
    layer.attention.window = windowed[static_cast<size_t>(i)] ? window : 0;
    if (spared.count(i) == 0 && step > 0 && (i + 1) % step == 0) {
      layer.mlp.ffn = 0;
      layer.mlp.moe = moe;
    }
    return layer;
  });
}

MoeSpec ReadQwenMoe(HfFields* f, const HfDefaults& d, int64_t experts, int64_t top_k,
                    int64_t expert_ffn) {
  MoeSpec moe;
  moe.experts = Count(f, {"num_experts", "num_local_experts"}, limits::kExperts, experts, d);
  moe.top_k = Count(f, {"num_experts_per_tok"}, std::max<int64_t>(moe.experts, 1), top_k, d);
  moe.expert_ffn = Count(f, {"moe_intermediate_size"}, limits::kFfn, expert_ffn, d);
  moe.normalize_top_k = Flag(f, "norm_topk_prob", false, d);
  return moe;
}

/// Attention of DeepSeek-V2 and V3.
void ReadLatent(HfFields* f, const HfDefaults& d, AttentionSpec* a) {
  LatentAttentionSpec l;
  // null is a shape of its own here: q without the low-rank step.
  l.q_rank = f->IsNull("q_lora_rank")
                 ? 0
                 : f->Whole({"q_lora_rank"}, 1, limits::kRank, {1536, DefaultOf(d)});
  l.kv_rank = Count(f, {"kv_lora_rank"}, limits::kRank, 512, d);
  l.nope_dim = Count(f, {"qk_nope_head_dim"}, limits::kHeadDim, 128, d);
  l.rope_dim = Count(f, {"qk_rope_head_dim"}, limits::kHeadDim, 64, d);
  l.value_dim = Count(f, {"v_head_dim"}, limits::kHeadDim, 128, d);
  if (l.rope_dim % 2 != 0) {
    f->Problem("qk_rope_head_dim", fmt::format("{}", l.rope_dim), "an even number",
               "rotation works on pairs: correct the number");
  }
  a->head_dim = l.nope_dim + l.rope_dim;
  a->latent = l;
}

struct DeepSeekMoe {
  int64_t experts;
  std::optional<int64_t> top_k;  ///< none: the class has no default that a model can run with
  int64_t expert_ffn, shared, groups, top_groups, first_dense;
  double scale;
  bool normalize;
  RouterScore score;
};

MoeSpec ReadDeepSeekMoe(HfFields* f, const HfDefaults& d, const DeepSeekMoe& fallback) {
  MoeSpec moe;
  moe.experts = Count(f, {"n_routed_experts"}, limits::kExperts, fallback.experts, d);
  const int64_t experts = std::max<int64_t>(moe.experts, 1);
  moe.top_k = f->Whole({"num_experts_per_tok"}, 1, experts, {fallback.top_k, DefaultOf(d)});
  moe.expert_ffn = Count(f, {"moe_intermediate_size"}, limits::kFfn, fallback.expert_ffn, d);
  moe.shared_experts =
      f->IsNull("n_shared_experts")
          ? 0
          : f->Whole({"n_shared_experts"}, 0, limits::kExperts, {fallback.shared, DefaultOf(d)});
  moe.shared_ffn = moe.shared_experts * moe.expert_ffn;
  if (moe.shared_ffn > limits::kFfn) {
    f->Problem("n_shared_experts", fmt::format("{}", moe.shared_experts),
               fmt::format("at most {} elements of shared width", limits::kFfn),
               "correct the number");
  }
  moe.groups = f->WholeOrNull({"n_group"}, 1, experts, {fallback.groups, DefaultOf(d)});
  moe.top_groups = f->WholeOrNull({"topk_group"}, 1, std::max<int64_t>(moe.groups, 1),
                                  {fallback.top_groups, DefaultOf(d)});
  moe.routed_scale = f->Real({"routed_scaling_factor"}, 1e-6, 1e6, {fallback.scale, DefaultOf(d)});
  moe.normalize_top_k = Flag(f, "norm_topk_prob", fallback.normalize, d);
  const std::string score = f->Text({"scoring_func"}, {ToString(fallback.score), DefaultOf(d)});
  moe.score = fallback.score;
  if (!Parse(score, &moe.score) && !f->HasProblem("scoring_func")) {
    f->Problem("scoring_func", Quoted(score), KnownNames<RouterScore>(), "correct the name");
  }
  return moe;
}

void ReadDeepSeek(HfFields* f, const HfDefaults& d, ModuleSpec* module, const DeepSeekMoe& fallback,
                  bool router_bias) {
  LayerSpec dense = ReadDecoder(f, d, HeadShape::kLatent, module);
  ReadSilu(f, d, &dense);
  AttentionSpec& a = dense.attention;
  if (a.kv_heads > 0 && a.heads > 0 && a.kv_heads != a.heads &&
      !f->HasProblem("num_key_value_heads")) {
    f->Problem("num_key_value_heads", fmt::format("{} for {} heads", a.kv_heads, a.heads),
               "as many as num_attention_heads: keys and values come from one latent",
               "correct one of the two");
  }
  ReadLatent(f, d, &a);
  a.qkv_bias = a.output_bias = Flag(f, "attention_bias", false, d);
  MoeSpec moe = ReadDeepSeekMoe(f, d, fallback);
  moe.router_bias = router_bias;
  const int64_t first =
      f->Whole({"first_k_dense_replace"}, 0, limits::kLayers, {fallback.first_dense, DefaultOf(d)});
  const int64_t every = f->Whole({"moe_layer_freq"}, 1, limits::kLayers, {1, DefaultOf(d)});
  module->next_token_layers =
      f->Find("num_nextn_predict_layers") == nullptr
          ? 0
          : f->Whole({"num_nextn_predict_layers"}, 0, limits::kNextTokenLayers, {0, DefaultOf(d)});
  SetLayers(module, LayerCount(f, d), [&](int64_t i) {
    LayerSpec layer = dense;
    if (i >= first && every > 0 && i % every == 0) {
      layer.mlp.ffn = 0;
      layer.mlp.moe = moe;
    }
    return layer;
  });
}

}  // namespace

void ReadMixtral(HfFields* f, const HfDefaults& d, ModuleSpec* module) {
  LayerSpec layer = ReadDecoder(f, d, HeadShape::kPlain, module);
  ReadSilu(f, d, &layer);
  layer.attention.window = ReadWindow(f, 0, d);
  MoeSpec moe;
  moe.experts = Count(f, {"num_local_experts", "num_experts"}, limits::kExperts, 8, d);
  moe.top_k = Count(f, {"num_experts_per_tok"}, std::max<int64_t>(moe.experts, 1), 2, d);
  moe.expert_ffn = layer.mlp.ffn;
  layer.mlp.ffn = 0;
  layer.mlp.moe = moe;
  SetLayers(module, LayerCount(f, d), [&](int64_t) { return layer; });
}

void ReadQwen2Moe(HfFields* f, const HfDefaults& d, ModuleSpec* module) {
  LayerSpec layer = ReadDecoder(f, d, HeadShape::kPlain, module);
  ReadSilu(f, d, &layer);
  layer.attention.qkv_bias = Flag(f, "qkv_bias", true, d);
  MoeSpec moe = ReadQwenMoe(f, d, 60, 4, 1408);
  moe.shared_experts = 1;
  moe.shared_ffn = Count(f, {"shared_expert_intermediate_size"}, limits::kFfn, 5632, d);
  moe.shared_gate = true;
  SetQwenMoeLayers(f, d, module, layer, moe);
}

void ReadQwen3Moe(HfFields* f, const HfDefaults& d, ModuleSpec* module) {
  LayerSpec layer = ReadDecoder(f, d, HeadShape::kPlain, module);
  ReadSilu(f, d, &layer);
  layer.attention.qkv_bias = layer.attention.output_bias = Flag(f, "attention_bias", false, d);
  layer.attention.qk_norm = true;
  SetQwenMoeLayers(f, d, module, layer, ReadQwenMoe(f, d, 128, 8, 768));
}

void ReadDeepSeekV2(HfFields* f, const HfDefaults& d, ModuleSpec* module) {
  ReadDeepSeek(f, d, module,
               {64, std::nullopt, 1407, 2, 1, 1, 0, 1.0, false, RouterScore::kSoftmax}, false);
}

void ReadDeepSeekV3(HfFields* f, const HfDefaults& d, ModuleSpec* module) {
  // The correction bias steers the choice of experts ("noaux_tc"): one number per expert.
  ReadDeepSeek(f, d, module, {256, 8, 2048, 1, 8, 4, 3, 2.5, true, RouterScore::kSigmoid}, true);
}

}  // namespace meshwright::planner
