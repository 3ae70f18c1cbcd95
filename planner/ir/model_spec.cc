#include "planner/ir/model_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "planner/ir/hash.h"
#include "planner/ir/model_count.h"
#include "planner/ir/model_yaml.h"

namespace meshwright::planner {
namespace {

template <typename Enum, size_t kCount>
using Names = std::array<std::pair<Enum, std::string_view>, kCount>;

constexpr Names<NormKind, 2> kNormNames{
    {{NormKind::kRmsNorm, "rms_norm"}, {NormKind::kLayerNorm, "layer_norm"}}};
constexpr Names<Activation, 5> kActivationNames{{{Activation::kGelu, "gelu"},
                                                 {Activation::kGeluTanh, "gelu_tanh"},
                                                 {Activation::kSilu, "silu"},
                                                 {Activation::kRelu, "relu"},
                                                 {Activation::kQuickGelu, "quick_gelu"}}};
constexpr Names<PositionKind, 3> kPositionNames{{{PositionKind::kNone, "none"},
                                                 {PositionKind::kLearned, "learned"},
                                                 {PositionKind::kRotary, "rotary"}}};
constexpr Names<ModuleKind, 4> kModuleNames{{{ModuleKind::kLanguage, "language"},
                                             {ModuleKind::kVision, "vision"},
                                             {ModuleKind::kAudio, "audio"},
                                             {ModuleKind::kProjector, "projector"}}};
constexpr Names<RouterScore, 2> kScoreNames{
    {{RouterScore::kSoftmax, "softmax"}, {RouterScore::kSigmoid, "sigmoid"}}};

constexpr const auto& NamesOf(NormKind) {
  return kNormNames;
}
constexpr const auto& NamesOf(Activation) {
  return kActivationNames;
}
constexpr const auto& NamesOf(PositionKind) {
  return kPositionNames;
}
constexpr const auto& NamesOf(ModuleKind) {
  return kModuleNames;
}
constexpr const auto& NamesOf(RouterScore) {
  return kScoreNames;
}

template <typename Enum>
std::string NameOf(Enum value) {
  for (const auto& [known, name] : NamesOf(value)) {
    if (known == value) return std::string(name);
  }
  MW_CHECK(false);  // every value of the enum is in its table
}

template <typename Enum>
bool ValueOf(std::string_view text, Enum* out) {
  for (const auto& [value, name] : NamesOf(Enum{})) {
    if (name == text) {
      *out = value;
      return true;
    }
  }
  return false;
}

std::string Grouped(int64_t number) {
  std::string digits = fmt::format("{}", number);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

/// Layer kinds in order of first use, equal ones merged: what the layers are, not how they are
/// written down.
ModuleSpec CanonicalLayers(ModuleSpec module) {
  std::vector<LayerSpec> kinds;
  for (int& layer : module.layers) {
    const LayerSpec& kind = module.layer_kinds[static_cast<size_t>(layer)];
    const auto found = std::find(kinds.begin(), kinds.end(), kind);
    layer = static_cast<int>(found - kinds.begin());
    if (found == kinds.end()) kinds.push_back(kind);
  }
  module.layer_kinds = std::move(kinds);
  return module;
}

std::string DescribeMlp(const MlpSpec& mlp) {
  const std::string shape = (mlp.gated ? "gated " : "") + ToString(mlp.activation);
  if (!mlp.moe) return fmt::format("MLP {} ({})", mlp.ffn, shape);
  const MoeSpec& moe = *mlp.moe;
  std::string text = fmt::format("{} experts of {} ({}), {} a token", moe.experts, moe.expert_ffn,
                                 shape, moe.top_k);
  if (moe.shared_experts > 0) text += fmt::format(", shared {}", moe.shared_ffn);
  return text;
}

std::string DescribeAttention(const AttentionSpec& a) {
  std::string text = fmt::format("{} heads x {}", a.heads, a.head_dim);
  if (a.latent) {
    text += fmt::format(" (latent, ranks {} and {})", a.latent->q_rank, a.latent->kv_rank);
  } else if (a.kv_heads != a.heads) {
    text += fmt::format(", {} kv heads", a.kv_heads);
  }
  if (a.window > 0) text += fmt::format(", window {}", a.window);
  return text;
}

std::string DescribeModule(const ModuleSpec& module) {
  const ParameterCount count = CountParameters(module);
  std::string text = fmt::format("{} ({}): {} layers, hidden {}", module.name,
                                 ToString(module.kind), module.layer_count(), module.hidden);
  if (module.vocab > 0) {
    text += fmt::format(", vocabulary {}{}", module.vocab,
                        !module.head             ? ""
                        : module.tied_embeddings ? ", tied head"
                                                 : ", untied head");
  }
  text += fmt::format(", {} parameters", Grouped(count.total()));
  if (count.active() != count.total()) text += fmt::format(", {} active", Grouped(count.active()));
  if (count.next_token > 0) {
    text += fmt::format(", {} apart in {} next-token layer(s)", Grouped(count.next_token),
                        module.next_token_layers);
  }
  for (size_t kind = 0; kind < module.layer_kinds.size(); ++kind) {
    const LayerSpec& layer = module.layer_kinds[kind];
    text +=
        fmt::format("\n  {} x {}; {}",
                    std::count(module.layers.begin(), module.layers.end(), static_cast<int>(kind)),
                    DescribeAttention(layer.attention), DescribeMlp(layer.mlp));
  }
  return text + "\n";
}

}  // namespace

std::string ToString(NormKind kind) {
  return NameOf(kind);
}
std::string ToString(Activation activation) {
  return NameOf(activation);
}
std::string ToString(PositionKind kind) {
  return NameOf(kind);
}
std::string ToString(ModuleKind kind) {
  return NameOf(kind);
}
std::string ToString(RouterScore score) {
  return NameOf(score);
}
bool Parse(std::string_view name, NormKind* out) {
  return ValueOf(name, out);
}
bool Parse(std::string_view name, Activation* out) {
  return ValueOf(name, out);
}
bool Parse(std::string_view name, PositionKind* out) {
  return ValueOf(name, out);
}
bool Parse(std::string_view name, ModuleKind* out) {
  return ValueOf(name, out);
}
bool Parse(std::string_view name, RouterScore* out) {
  return ValueOf(name, out);
}

template <typename Enum>
std::string KnownNames() {
  std::string text;
  for (const auto& [value, name] : NamesOf(Enum{})) {
    text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text;
}
template std::string KnownNames<NormKind>();
template std::string KnownNames<Activation>();
template std::string KnownNames<PositionKind>();
template std::string KnownNames<ModuleKind>();
template std::string KnownNames<RouterScore>();

ParameterCount CountParameters(const ModuleSpec& module) {
  const internal::Counts<int64_t> counts = internal::Count<int64_t>(module);
  return {counts.embedding, counts.head,       counts.attention, counts.mlp,
          counts.norms,     counts.next_token, counts.active_mlp};
}

int64_t TotalParameters(const ModelSpec& model) {
  int64_t total = 0;
  for (const ModuleSpec& module : model.modules) total += CountParameters(module).total();
  return total;
}

uint64_t Fingerprint(const ModelSpec& model) {
  ModelSpec canonical;
  canonical.edges = model.edges;
  for (const ModuleSpec& module : model.modules) {
    canonical.modules.push_back(CanonicalLayers(module));
  }
  return Hasher().Add(PrintModelYaml(canonical)).value();
}

std::string DescribeModel(const ModelSpec& model) {
  std::string text = model.family.empty()
                         ? model.name + "\n"
                         : fmt::format("{} (family {})\n", model.name, model.family);
  for (const ModuleSpec& module : model.modules) text += DescribeModule(module);
  for (const std::string& filled : model.defaults_filled) text += "default: " + filled + "\n";
  for (const std::string& note : model.notes) text += "note: " + note + "\n";
  return text;
}

}  // namespace meshwright::planner
