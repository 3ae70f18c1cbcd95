#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "planner/ir/load_model.h"
#include "planner/validate/row_case.h"

namespace meshwright::planner::validate {
namespace {

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool Contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// Shipped models by what tables call them: their parts must all occur in the name.
struct Known {
  std::vector<std::string_view> parts;
  const char* model;
};
const std::vector<Known>& KnownModels() {
  static const std::vector<Known> known = {
      {{"deepseek", "v3"}, "deepseek-v3"},
      {{"mixtral", "8x7b"}, "mixtral-8x7b"},
      {{"qwen3", "30b"}, "qwen3-30b-a3b"},
      {{"qwen3", "235b"}, "qwen3-235b-a22b"},
      {{"llama3", "8b"}, "llama-3-8b"},
      {{"llama3", "70b"}, "llama-3-70b"},
      {{"llama3", "405b"}, "llama-3.1-405b"},
      {{"llama-3", "8b"}, "llama-3-8b"},
      {{"llama-3", "70b"}, "llama-3-70b"},
      {{"llama-3", "405b"}, "llama-3.1-405b"},
      {{"llama2", "70b"}, "llama-2-70b"},
      {{"llama2", "7b"}, "llama-2-7b"},
      {{"gpt3", "175b"}, "gpt3-175b"},
      {{"gpt-3", "175b"}, "gpt3-175b"},
      {{"gpt-2", "124m"}, "gpt2"},
      {{"llama-2", "70b"}, "llama-2-70b"},
      {{"llama-2", "7b"}, "llama-2-7b"},
  };
  return known;
}

/// The shipped model that the row names, or nothing.
std::optional<ModuleSpec> Shipped(const std::string& name) {
  const std::string lower = Lower(name);
  const std::vector<std::string> shipped = ShippedModels();
  if (std::find(shipped.begin(), shipped.end(), lower) != shipped.end()) {
    const Result<ModelSpec> model = LoadModel(lower);
    if (model.ok()) return model->modules.front();
  }
  for (const Known& known : KnownModels()) {
    const bool all = std::all_of(known.parts.begin(), known.parts.end(),
                                 [&](std::string_view part) { return Contains(lower, part); });
    if (!all) continue;
    const Result<ModelSpec> model = LoadModel(known.model);
    if (model.ok()) return model->modules.front();
  }
  return std::nullopt;
}

/// Keeps the first kinds in order, repeats or drops the last one.
void SetLayers(ModuleSpec* module, int64_t layers) {
  const int last = module->layers.empty() ? 0 : module->layers.back();
  module->layers.resize(static_cast<size_t>(layers), last);
}

/// A divisor of `hidden` that tp divides, nearest to heads of 128 elements.
int64_t LikelyHeads(int64_t hidden, int64_t tp) {
  int64_t best = 0;
  for (int64_t heads = tp; heads <= std::min<int64_t>(hidden, 4096); heads += tp) {
    const auto distance = [&](int64_t n) { return std::abs(n * 128 - hidden); };
    if (hidden % heads == 0 && (best == 0 || distance(heads) < distance(best))) best = heads;
  }
  return best > 0 ? best : std::max<int64_t>(hidden / 128, 1);
}

bool LooksLikeLlama(const MeasuredRow& row) {
  const std::string name = Lower(row.Text("model"));
  for (const char* family : {"llama", "mistral", "mixtral", "qwen", "deepseek", "gemma", "yi-",
                             "baichuan", "internlm", "moe"}) {
    if (Contains(name, family)) return true;
  }
  return !row.Text("kv_heads").empty() && row.Text("kv_heads") != row.Text("heads");
}

/// What families tell apart where a table does not say.
struct Family {
  bool llama = false;
  bool mpt = false;
  bool gpt() const { return !llama && !mpt; }
};

/// The layer that the row's fields describe.
Result<LayerSpec> LayerOfRow(const MeasuredRow& row, int64_t hidden, const Family& family,
                             std::vector<std::string>* assumptions) {
  MW_ASSIGN_OR_RETURN(const std::optional<int64_t> heads, row.Count("heads"));
  MW_ASSIGN_OR_RETURN(const std::optional<int64_t> kv_heads, row.Count("kv_heads"));
  MW_ASSIGN_OR_RETURN(const std::optional<int64_t> head_dim, row.Count("head_dim"));
  MW_ASSIGN_OR_RETURN(const std::optional<int64_t> ffn, row.Count("ffn_hidden"));
  MW_ASSIGN_OR_RETURN(const std::optional<int64_t> experts, row.Count("moe_experts"));
  MW_ASSIGN_OR_RETURN(const std::optional<int64_t> top_k, row.Count("moe_topk"));
  LayerSpec layer;
  AttentionSpec& a = layer.attention;
  MW_ASSIGN_OR_RETURN(const std::optional<int64_t> tp, row.Count("tp"));
  a.heads = heads ? *heads : LikelyHeads(hidden, tp.value_or(1));
  if (!heads) assumptions->push_back(fmt::format("heads = {} (about hidden / 128)", a.heads));
  a.kv_heads = kv_heads.value_or(a.heads);
  a.head_dim = head_dim.value_or(std::max<int64_t>(hidden / a.heads, 1));
  a.qkv_bias = family.gpt();
  a.output_bias = family.gpt();
  layer.mlp.gated = family.llama;
  layer.mlp.bias = family.gpt();
  layer.mlp.activation = family.llama ? Activation::kSilu : Activation::kGelu;
  layer.mlp.ffn = ffn.value_or(4 * hidden);
  if (!ffn) assumptions->push_back(fmt::format("ffn_hidden = {} (4 x hidden)", layer.mlp.ffn));
  if (experts && *experts > 1) {
    MoeSpec moe;
    moe.experts = *experts;
    moe.top_k = top_k.value_or(2);
    if (!top_k) assumptions->push_back("moe_topk = 2");
    moe.expert_ffn = layer.mlp.ffn;
    layer.mlp.moe = moe;
  }
  return layer;
}

}  // namespace

Result<ModuleSpec> ModuleOfRow(const MeasuredRow& row, std::vector<std::string>* assumptions) {
  MW_ASSIGN_OR_RETURN(const std::optional<int64_t> layers, row.Count("layers"));
  MW_ASSIGN_OR_RETURN(const std::optional<int64_t> hidden, row.Count("hidden"));
  std::optional<ModuleSpec> shipped = Shipped(row.Text("model"));
  if (shipped && (!hidden || *hidden == shipped->hidden)) {
    if (layers && *layers != shipped->layer_count()) {
      if (*layers > 100000) return Unsupported("layers: more than 100,000");
      SetLayers(&*shipped, *layers);
      assumptions->push_back(fmt::format("layers cut to {} of the named model", *layers));
    }
    return *shipped;
  }
  if (!layers) return Unsupported("the field 'layers' is blank");
  if (!hidden) return Unsupported("the field 'hidden' is blank");
  if (*layers > 100000) return Unsupported("layers: more than 100,000");
  const Family family{LooksLikeLlama(row), Contains(Lower(row.Text("model")), "mpt")};
  MW_ASSIGN_OR_RETURN(const LayerSpec layer, LayerOfRow(row, *hidden, family, assumptions));
  ModuleSpec module;
  module.name = "language";
  module.hidden = *hidden;
  module.layer_kinds = {layer};
  module.layers.assign(static_cast<size_t>(*layers), 0);
  module.norm = family.llama ? NormKind::kRmsNorm : NormKind::kLayerNorm;
  module.positions = family.llama ? PositionKind::kRotary
                     : family.mpt ? PositionKind::kNone
                                  : PositionKind::kLearned;
  module.tied_embeddings = !family.llama;
  assumptions->push_back(family.llama ? "Llama layers: RMS norm, gated MLP, rotary, untied head"
                         : family.mpt
                             ? "MPT layers: LayerNorm, GELU, ALiBi, no biases, tied head"
                             : "GPT layers: LayerNorm, GELU, learned positions, biases, tied head");
  const Result<std::optional<int64_t>> vocab = row.Count("vocab");
  if (vocab.ok() && *vocab) {
    module.vocab = **vocab;
  } else {
    // As the reference tables say for GPT rows that leave it blank.
    module.vocab = Contains(row.Text("vocab"), "250k") ? 250880 : family.llama ? 32000 : 51200;
    assumptions->push_back(fmt::format("vocab = {}", module.vocab));
  }
  MW_ASSIGN_OR_RETURN(const std::optional<int64_t> sequence, row.Count("seq"));
  module.max_positions = sequence.value_or(1);
  ModelSpec checked;
  checked.name = "row";
  checked.modules = {module};
  const Status status = CheckModel(checked, "row " + row.id);
  if (!status.ok()) return Unsupported(status.message());
  return module;
}

}  // namespace meshwright::planner::validate
