// ModelSpec: what is trained. Modules (language model, vision encoder, projector ...) with layers
// of stated shape, and the edges between them. A value: compared, printed, never mutated in place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topologies/status.h"

namespace meshwright::planner {

enum class NormKind { kRmsNorm, kLayerNorm };
enum class Activation { kGelu, kGeluTanh, kSilu, kRelu, kQuickGelu };
enum class PositionKind { kNone, kLearned, kRotary };
enum class ModuleKind { kLanguage, kVision, kAudio, kProjector };
/// How a router turns its logits into scores.
enum class RouterScore { kSoftmax, kSigmoid };

/// Names as model files write them ("rms_norm", "gelu_tanh", "learned", "language", "softmax").
std::string ToString(NormKind kind);
std::string ToString(Activation activation);
std::string ToString(PositionKind kind);
std::string ToString(ModuleKind kind);
std::string ToString(RouterScore score);
/// The reverse of ToString; false, and `*out` untouched, for any other name.
bool Parse(std::string_view name, NormKind* out);
bool Parse(std::string_view name, Activation* out);
bool Parse(std::string_view name, PositionKind* out);
bool Parse(std::string_view name, ModuleKind* out);
bool Parse(std::string_view name, RouterScore* out);
/// All names that Parse of that type takes, as "a, b, c".
template <typename Enum>
std::string KnownNames();

/// Multi-head latent attention (DeepSeek-V2/V3): low-rank q and kv projections, split rotary part.
/// The head_dim of its AttentionSpec is nope_dim + rope_dim.
struct LatentAttentionSpec {
  int64_t q_rank = 0;  ///< 0: q is projected directly from hidden
  int64_t kv_rank = 0;
  int64_t nope_dim = 0;  ///< per head, without rotary
  int64_t rope_dim = 0;  ///< per head, rotary, shared by all heads on the key side
  int64_t value_dim = 0;
  friend bool operator==(const LatentAttentionSpec&, const LatentAttentionSpec&) = default;
};

/// One attention sub-layer. Widths of q, k, v are heads (or kv_heads) x head_dim elements.
struct AttentionSpec {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  bool qkv_bias = false;  ///< with `latent`: on the two down projections (and not on q_rank = 0)
  bool output_bias = false;
  bool qk_norm = false;  ///< RMS norm of every q and k head before rotary (Qwen3)
  bool causal = true;
  int64_t window = 0;  ///< sliding window in tokens; 0: none
  double rope_theta = 10000.0;
  int64_t rotary_dim = 0;      ///< leading elements of a head that are rotated; 0: all of head_dim
  double score_scale = 0.0;    ///< 0: 1/sqrt(head_dim)
  double score_softcap = 0.0;  ///< 0: none (Gemma-2)
  std::optional<LatentAttentionSpec> latent;
  friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

/// Mixture of experts in place of the dense MLP.
struct MoeSpec {
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t expert_ffn = 0;
  int64_t shared_experts = 0;
  int64_t shared_ffn = 0;    ///< width of all shared experts together
  bool router_bias = false;  ///< e.g. the correction bias of DeepSeek-V3: one per expert
  bool shared_gate = false;  ///< one sigmoid gate of width hidden on the shared expert
  RouterScore score = RouterScore::kSoftmax;
  bool normalize_top_k = true;  ///< the weights of the visited experts are scaled to sum 1
  double routed_scale = 1.0;    ///< factor on the routed experts' output
  int64_t groups = 1;           ///< experts come in this many groups ...
  int64_t top_groups = 1;       ///< ... of which a token may use this many
  friend bool operator==(const MoeSpec&, const MoeSpec&) = default;
};

/// The MLP of a layer; `moe` set: its experts have the shape given there, `ffn` is unused.
struct MlpSpec {
  int64_t ffn = 0;
  bool gated = false;
  Activation activation = Activation::kGeluTanh;
  bool bias = false;
  std::optional<MoeSpec> moe;
  friend bool operator==(const MlpSpec&, const MlpSpec&) = default;
};

/// One transformer layer: pre-norm attention and MLP, plus post-norms where a family has them.
struct LayerSpec {
  AttentionSpec attention;
  MlpSpec mlp;
  bool post_norms = false;         ///< a norm after attention and after the MLP too (Gemma-2)
  bool parallel_residual = false;  ///< attention and MLP both read the layer's input (GPT-NeoX)
  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

/// One module: a stack of layers between an embedding (or input projection) and a head.
struct ModuleSpec {
  std::string name;
  ModuleKind kind = ModuleKind::kLanguage;
  int64_t hidden = 0;
  std::vector<LayerSpec> layer_kinds;  ///< distinct layer shapes
  std::vector<int> layers;             ///< per layer, index into layer_kinds
  NormKind norm = NormKind::kRmsNorm;
  double norm_eps = 1e-5;
  bool norm_one_plus = false;  ///< norm weight is stored as w - 1 (Gemma)
  PositionKind positions = PositionKind::kRotary;
  int64_t max_positions = 0;
  int64_t vocab = 0;  ///< true size; 0: the module has no token embedding
  bool tied_embeddings = false;
  bool final_norm = true;
  bool head = true;  ///< has a language-model head
  bool head_bias = false;
  double embedding_scale = 1.0;
  double logit_softcap = 0.0;  ///< 0: none
  double init_std = 0.02;
  int64_t next_token_layers = 0;  ///< multi-token prediction layers, counted apart (DeepSeek-V3)
  bool trained = true;
  friend bool operator==(const ModuleSpec&, const ModuleSpec&) = default;

  int64_t layer_count() const { return static_cast<int64_t>(layers.size()); }
  const LayerSpec& layer(int64_t i) const {
    return layer_kinds[static_cast<size_t>(layers[static_cast<size_t>(i)])];
  }
};

/// Output of module `from` feeds module `to` (indices into ModelSpec::modules).
struct ModuleEdge {
  int from = 0;
  int to = 0;
  friend bool operator==(const ModuleEdge&, const ModuleEdge&) = default;
};

struct ModelSpec {
  std::string name;
  std::string family;  ///< e.g. "llama", "gpt2", "qwen2", as the source calls it
  std::vector<ModuleSpec> modules;
  std::vector<ModuleEdge> edges;
  /// Fields that the source left out, as "field = value (why)".
  std::vector<std::string> defaults_filled;
  /// What the source states and this spec does not hold, one sentence each.
  std::vector<std::string> notes;
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

/// Exact numbers of parameters of one module. A tied head counts once, in `embedding`.
struct ParameterCount {
  int64_t embedding = 0;  ///< token embedding (and learned positions)
  int64_t head = 0;       ///< untied head
  int64_t attention = 0;
  int64_t mlp = 0;  ///< dense MLPs, experts and routers
  int64_t norms = 0;
  int64_t next_token = 0;  ///< multi-token prediction layers; not in total()
  int64_t active_mlp = 0;  ///< like mlp, but only the experts a token visits
  int64_t total() const { return embedding + head + attention + mlp + norms; }
  int64_t active() const { return embedding + head + attention + active_mlp + norms; }
};

/// `module` must have passed CheckModel (or be as small): the sums are not checked for overflow.
ParameterCount CountParameters(const ModuleSpec& module);
/// Sum of total() over the modules.
int64_t TotalParameters(const ModelSpec& model);

/// Stable 64-bit fingerprint of everything that changes the plan: FNV-1a over the text form without
/// name, family, defaults_filled and notes, with layer kinds in order of first use.
uint64_t Fingerprint(const ModelSpec& model);

/// A few lines for people: shape of every module and its parameters.
std::string DescribeModel(const ModelSpec& model);

/// Checks shapes, ranges and contradictions of a whole spec; the error lists all problems at once,
/// fields named as in the YAML form. `source` names the spec in the message. A spec that passes has
/// at most 1e15 parameters, so that no count or byte size of it overflows 64 bits.
Status CheckModel(const ModelSpec& model, const std::string& source);

}  // namespace meshwright::planner
