#include "planner/ir/model_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "planner/ir/model_count.h"
#include "planner/ir/model_limits.h"

namespace meshwright::planner {
namespace {

constexpr const char* kFixNumber = "correct the number";

class Checker {
 public:
  Checker(const ModelSpec& model, const FieldLines& lines, Problems* problems)
      : model_(model), lines_(lines), problems_(*problems) {}

  void Run() {
    Name("name", model_.name, true);
    Name("family", model_.family, false);
    Texts("defaults_filled", model_.defaults_filled);
    Texts("notes", model_.notes);
    if (model_.modules.empty() || model_.modules.size() > limits::kModules) {
      Add("modules", fmt::format("{} modules", model_.modules.size()),
          fmt::format("1 to {}", limits::kModules), "list the modules, one for a text model");
      return;
    }
    std::set<std::string> names;
    for (size_t m = 0; m < model_.modules.size(); ++m) {
      const ModuleSpec& module = model_.modules[m];
      const std::string path = fmt::format("modules[{}]", m);
      if (!names.insert(module.name).second) {
        Add(path + ".name", Quoted(module.name), "a name that no other module has", "rename one");
      }
      Module(path, module);
    }
    Edges();
    if (problems_.empty()) Size();
  }

 private:
  void Add(const std::string& field, const std::string& found, const std::string& allowed,
           const std::string& fix) {
    if (problems_.Has(field)) return;
    const auto line = lines_.find(field);
    problems_.Add(line == lines_.end() ? 0 : line->second, field, found, allowed, fix);
  }

  void Whole(const std::string& field, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) {
      Add(field, fmt::format("{}", value), fmt::format("a whole number from {} to {}", low, high),
          kFixNumber);
    }
  }

  void Real(const std::string& field, double value, double low, double high) {
    // Written so that NaN fails too.
    if (!(value >= low && value <= high)) {
      Add(field, fmt::format("{}", value), fmt::format("a number from {} to {}", low, high),
          kFixNumber);
    }
  }

  void Name(const std::string& field, const std::string& text, bool required) {
    const bool printable = std::none_of(text.begin(), text.end(), [](char c) {
      return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    });
    if (!printable || text.size() > limits::kNameBytes || (required && text.empty())) {
      Add(field, Quoted(text),
          fmt::format("{} to {} bytes without control characters", required ? 1 : 0,
                      limits::kNameBytes),
          "choose another name");
    }
  }

  void Texts(const std::string& field, const std::vector<std::string>& texts) {
    for (size_t i = 0; i < texts.size(); ++i) {
      const bool printable = std::none_of(texts[i].begin(), texts[i].end(), [](char c) {
        return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
      });
      if (!printable) {
        Add(fmt::format("{}[{}]", field, i), Quoted(texts[i]), "text without control characters",
            "remove them");
      }
    }
  }

  void Module(const std::string& path, const ModuleSpec& module) {
    Name(path + ".name", module.name, true);
    Whole(path + ".hidden", module.hidden, 1, limits::kHidden);
    Real(path + ".norm_eps", module.norm_eps, 0, 1);
    Real(path + ".init_std", module.init_std, 0, 1000);
    Real(path + ".embedding_scale", module.embedding_scale, 1e-6, 1e6);
    Real(path + ".logit_softcap", module.logit_softcap, 0, 1e6);
    Whole(path + ".vocab", module.vocab, 0, limits::kVocab);
    Whole(path + ".next_token_layers", module.next_token_layers, 0, limits::kNextTokenLayers);
    const bool learned = module.positions == PositionKind::kLearned;
    Whole(path + ".max_positions", module.max_positions, learned ? 1 : 0, limits::kPositions);
    Head(path, module);
    Layers(path, module);
    for (size_t kind = 0; kind < module.layer_kinds.size(); ++kind) {
      Layer(path, fmt::format("{}.layer_kinds[{}]", path, kind), module, module.layer_kinds[kind]);
    }
  }

  void Head(const std::string& path, const ModuleSpec& module) {
    if (module.head && module.vocab == 0) {
      Add(path + ".vocab", "0 with a head", fmt::format("1 to {}", limits::kVocab),
          "state the vocabulary, or set head: false");
    }
    if (module.tied_embeddings && !module.head) {
      Add(path + ".tied_embeddings", "true without a head", "false when head is false",
          "set head: true, or tied_embeddings: false");
    }
    if (module.head_bias && !module.head) {
      Add(path + ".head_bias", "true without a head", "false when head is false",
          "set head: true, or head_bias: false");
    }
  }

  void Layers(const std::string& path, const ModuleSpec& module) {
    if (module.layers.empty() && problems_.HasElement(path + ".layers")) return;
    const int64_t least = module.kind == ModuleKind::kProjector ? 0 : 1;
    Whole(path + ".layers", module.layer_count(), least, limits::kLayers);
    const auto kinds = static_cast<int64_t>(module.layer_kinds.size());
    std::vector<bool> used(module.layer_kinds.size(), false);
    for (const int kind : module.layers) {
      if (kind < 0 || kind >= kinds) {
        Add(path + ".layers", fmt::format("layer kind {}", kind),
            kinds > 0 ? fmt::format("0 to {}", kinds - 1) : "none: layer_kinds is empty",
            "name a layer kind of the module");
        return;
      }
      used[static_cast<size_t>(kind)] = true;
    }
    for (size_t kind = 0; kind < used.size(); ++kind) {
      if (used[kind] || problems_.Has(path + ".layers")) continue;
      Add(fmt::format("{}.layer_kinds[{}]", path, kind), "a layer kind that no layer has",
          "kinds that layers have", "remove it, or name it in layers");
    }
  }

  void Layer(const std::string& module_path, const std::string& path, const ModuleSpec& module,
             const LayerSpec& layer) {
    HeadDim(module_path, path + ".attention", module, layer.attention);
    Attention(path + ".attention", module, layer.attention);
    const MlpSpec& mlp = layer.mlp;
    if (mlp.moe) {
      if (mlp.ffn != 0) {
        Add(path + ".mlp.ffn", fmt::format("{} beside moe", mlp.ffn), "0 or absent with moe",
            "state the width of an expert in moe.expert_ffn");
      }
      Moe(path + ".mlp.moe", *mlp.moe);
    } else {
      Whole(path + ".mlp.ffn", mlp.ffn, 1, limits::kFfn);
    }
    if (layer.post_norms && layer.parallel_residual) {
      Add(path + ".parallel_residual", "true with post_norms", "one of the two", "drop one");
    }
  }

  void HeadDim(const std::string& module_path, const std::string& path, const ModuleSpec& module,
               const AttentionSpec& a) {
    const bool absent = a.head_dim == 0 && lines_.count(path + ".head_dim") == 0;
    // Derived from fields that are wrong themselves: those say it.
    if (absent && (problems_.Has(module_path + ".hidden") || problems_.Has(path + ".heads")))
      return;
    if (absent && a.heads > 0 && module.hidden % a.heads != 0) {
      Add(path + ".heads", fmt::format("{} for hidden = {}", a.heads, module.hidden),
          fmt::format("a divisor of {}, or a head_dim beside it", module.hidden),
          "correct the number, or state head_dim");
    } else if (!absent || a.heads > 0) {
      Whole(path + ".head_dim", a.head_dim, 1, limits::kHeadDim);
    }
  }

  void Attention(const std::string& path, const ModuleSpec& module, const AttentionSpec& a) {
    Whole(path + ".heads", a.heads, 1, limits::kHeads);
    Whole(path + ".kv_heads", a.kv_heads, 1, limits::kHeads);
    Whole(path + ".window", a.window, 0, limits::kPositions);
    Whole(path + ".rotary_dim", a.rotary_dim, 0, std::max<int64_t>(a.head_dim, 0));
    Real(path + ".rope_theta", a.rope_theta, 1e-3, 1e15);
    Real(path + ".score_scale", a.score_scale, 0, 1e6);
    Real(path + ".score_softcap", a.score_softcap, 0, 1e6);
    if (a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads != 0) {
      Add(path + ".kv_heads", fmt::format("{} for {} heads", a.kv_heads, a.heads),
          fmt::format("a divisor of {}", a.heads), "every kv head serves equally many heads");
    }
    const int64_t rotated = a.latent           ? a.latent->rope_dim
                            : a.rotary_dim > 0 ? a.rotary_dim
                                               : a.head_dim;
    if (module.positions == PositionKind::kRotary && rotated > 0 && rotated % 2 != 0) {
      const char* field = a.latent           ? ".latent.rope_dim"
                          : a.rotary_dim > 0 ? ".rotary_dim"
                                             : ".head_dim";
      Add(path + field, fmt::format("{}", rotated), "an even number with rotary positions",
          "rotation works on pairs: choose an even number");
    }
    if (a.latent) Latent(path, a);
  }

  void Latent(const std::string& path, const AttentionSpec& a) {
    const LatentAttentionSpec& l = *a.latent;
    Whole(path + ".latent.q_rank", l.q_rank, 0, limits::kRank);
    Whole(path + ".latent.kv_rank", l.kv_rank, 1, limits::kRank);
    Whole(path + ".latent.nope_dim", l.nope_dim, 1, limits::kHeadDim);
    Whole(path + ".latent.rope_dim", l.rope_dim, 1, limits::kHeadDim);
    Whole(path + ".latent.value_dim", l.value_dim, 1, limits::kHeadDim);
    const bool sane = l.nope_dim > 0 && l.nope_dim <= limits::kHeadDim && l.rope_dim > 0 &&
                      l.rope_dim <= limits::kHeadDim;
    if (sane && a.head_dim != l.nope_dim + l.rope_dim) {
      Add(path + ".head_dim", fmt::format("{}", a.head_dim),
          fmt::format("nope_dim + rope_dim = {}", l.nope_dim + l.rope_dim),
          "leave head_dim out with latent attention");
    }
    if (a.kv_heads != a.heads) {
      Add(path + ".kv_heads", fmt::format("{} for {} heads", a.kv_heads, a.heads),
          "as many as heads with latent attention", "leave kv_heads out");
    }
    if (a.qk_norm) {
      Add(path + ".qk_norm", "true with latent", "false", "the latent ranks have norms already");
    }
    if (a.rotary_dim != 0) {
      Add(path + ".rotary_dim", fmt::format("{} with latent", a.rotary_dim), "0 or absent",
          "latent.rope_dim states the rotated part");
    }
  }

  void Moe(const std::string& path, const MoeSpec& moe) {
    Whole(path + ".experts", moe.experts, 1, limits::kExperts);
    Whole(path + ".top_k", moe.top_k, 1, std::clamp<int64_t>(moe.experts, 1, limits::kExperts));
    Whole(path + ".expert_ffn", moe.expert_ffn, 1, limits::kFfn);
    Whole(path + ".shared_experts", moe.shared_experts, 0, limits::kExperts);
    const bool shared = moe.shared_experts > 0;
    Whole(path + ".shared_ffn", moe.shared_ffn, shared ? 1 : 0, shared ? limits::kFfn : 0);
    if (moe.shared_gate && !shared) {
      Add(path + ".shared_gate", "true without shared experts", "false", "set it to false");
    }
    Real(path + ".routed_scale", moe.routed_scale, 1e-6, 1e6);
    Whole(path + ".groups", moe.groups, 1, std::clamp<int64_t>(moe.experts, 1, limits::kExperts));
    Whole(path + ".top_groups", moe.top_groups, 1, std::max<int64_t>(moe.groups, 1));
    if (moe.groups > 0 && moe.experts > 0 && moe.experts % moe.groups != 0) {
      Add(path + ".groups", fmt::format("{} for {} experts", moe.groups, moe.experts),
          fmt::format("a divisor of {}", moe.experts), "groups hold equally many experts");
    } else if (moe.groups > 0 && moe.top_groups > 0 && moe.experts > 0 && moe.top_k > 0 &&
               moe.top_k > moe.experts / moe.groups * moe.top_groups) {
      Add(path + ".top_k", fmt::format("{}", moe.top_k),
          fmt::format("at most {}, the experts of {} groups",
                      moe.experts / moe.groups * moe.top_groups, moe.top_groups),
          "lower top_k, or raise top_groups");
    }
  }

  void Edges() {
    const auto modules = static_cast<int>(model_.modules.size());
    std::set<std::pair<int, int>> seen;
    for (size_t e = 0; e < model_.edges.size(); ++e) {
      const ModuleEdge& edge = model_.edges[e];
      const std::string path = fmt::format("edges[{}]", e);
      const bool known = edge.from >= 0 && edge.from < modules && edge.to >= 0 && edge.to < modules;
      if (!known || edge.from == edge.to) {
        Add(path, fmt::format("{} to {}", edge.from, edge.to),
            fmt::format("two different modules of 0 to {}", modules - 1), "correct the edge");
      } else if (!seen.emplace(edge.from, edge.to).second) {
        Add(path, fmt::format("{} to {} again", edge.from, edge.to), "an edge once", "remove it");
      }
    }
    if (HasCycle(modules, seen)) {
      Add("edges", "a cycle", "edges without a cycle", "remove one edge of the cycle");
    }
  }

  /// Takes away modules that nothing left feeds until none is left or all that are left are fed.
  static bool HasCycle(int modules, std::set<std::pair<int, int>> edges) {
    for (int round = 0; round < modules && !edges.empty(); ++round) {
      std::set<int> fed;
      for (const auto& [from, to] : edges) fed.insert(to);
      for (auto edge = edges.begin(); edge != edges.end();) {
        edge = fed.count(edge->first) == 0 ? edges.erase(edge) : std::next(edge);
      }
    }
    return !edges.empty();
  }

  void Size() {
    double total = 0;
    for (const ModuleSpec& module : model_.modules) {
      const internal::Counts<double> c = internal::Count<double>(module);
      total += c.embedding + c.head + c.attention + c.mlp + c.norms + c.next_token;
    }
    if (!(total <= limits::kParameters)) {
      Add("modules", fmt::format("{:.3g} parameters together", total),
          fmt::format("at most {:g}", limits::kParameters), "check hidden, layers, experts, vocab");
    }
  }

  const ModelSpec& model_;
  const FieldLines& lines_;
  Problems& problems_;
};

}  // namespace

void CheckModelInto(const ModelSpec& model, const FieldLines& lines, Problems* problems) {
  Checker(model, lines, problems).Run();
}

Status CheckModel(const ModelSpec& model, const std::string& source) {
  Problems problems(source);
  CheckModelInto(model, {}, &problems);
  return problems.ToStatus();
}

}  // namespace meshwright::planner
