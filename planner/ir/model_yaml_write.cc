#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>

#include "planner/ir/model_yaml.h"
#include "planner/ir/model_yaml_fields.h"

namespace meshwright::planner {
namespace {

/// Words that YAML readers take for something else than a string.
bool IsReserved(std::string word) {
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  static constexpr std::string_view kReserved[] = {"true", "false", "null", "yes", "no",
                                                   "on",   "off",   "y",    "n",   "nan"};
  return std::find(std::begin(kReserved), std::end(kReserved), word) != std::end(kReserved);
}

std::string YamlString(const std::string& text) {
  const bool plain = !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
                     std::all_of(text.begin(), text.end(),
                                 [](unsigned char c) {
                                   return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
                                 }) &&
                     !IsReserved(text);
  if (plain) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string YamlValue(const std::string& value) {
  return YamlString(value);
}
std::string YamlValue(bool value) {
  return value ? "true" : "false";
}
std::string YamlValue(int value) {
  return fmt::format("{}", value);
}
std::string YamlValue(int64_t value) {
  return fmt::format("{}", value);
}
std::string YamlValue(double value) {
  return fmt::format("{}", value);
}
template <typename Enum>
std::string YamlValue(Enum value) {
  return ToString(value);
}

/// Visitor of model_yaml_fields.h that collects "key: value" pairs.
class Writer {
 public:
  template <typename T>
  void Need(const char* key, const T& field) {
    entries_.push_back(fmt::format("{}: {}", key, YamlValue(field)));
  }
  template <typename T>
  void Fill(const char* key, const T& field, const T&, const char*) {
    Need(key, field);
  }
  template <typename T>
  void Off(const char* key, const T& field, const T& value) {
    if (!(field == value)) Need(key, field);
  }
  template <typename T, typename Visit>
  void Sub(const char* key, const std::optional<T>& field, Visit visit) {
    if (!field) return;
    Writer sub;
    visit(sub, *field);
    trailing_.push_back(fmt::format("{}: {}", key, sub.Flow()));
  }

  std::string Flow() const {
    std::vector<std::string> all = entries_;
    all.insert(all.end(), trailing_.begin(), trailing_.end());
    return fmt::format("{{{}}}", fmt::join(all, ", "));
  }
  /// One entry a line; the first with `first` before it, the others with `rest`.
  std::string Block(const std::string& first, const std::string& rest) const {
    std::string text;
    for (const std::string& entry : entries_) text += (text.empty() ? first : rest) + entry + "\n";
    return text;
  }

 private:
  std::vector<std::string> entries_;
  std::vector<std::string> trailing_;  // groups, shown after the plain fields
};

/// Shortest p > 0 such that layers repeat with period p and p divides their number.
size_t Period(const std::vector<int>& layers) {
  for (size_t p = 1; p <= layers.size() / 2; ++p) {
    if (layers.size() % p == 0 &&
        std::equal(layers.begin() + static_cast<std::ptrdiff_t>(p), layers.end(), layers.begin())) {
      return p;
    }
  }
  return layers.size();
}

std::string PrintLayers(const ModuleSpec& module) {
  const std::vector<int>& layers = module.layers;
  if (layers.empty()) return "    layers: 0\n";
  if (module.layer_kinds.size() == 1) return fmt::format("    layers: {}\n", layers.size());
  std::string text = "    layers:\n";
  constexpr size_t kLongestPattern = 16;
  const size_t period = Period(layers);
  if (period > 1 && period <= kLongestPattern && period < layers.size()) {
    const auto end = layers.begin() + static_cast<std::ptrdiff_t>(period);
    return text + fmt::format("      - {{kinds: [{}], count: {}}}\n",
                              fmt::join(layers.begin(), end, ", "), layers.size() / period);
  }
  for (auto run = layers.begin(); run != layers.end();) {
    const auto end = std::find_if(run, layers.end(), [&](int kind) { return kind != *run; });
    text += fmt::format("      - {{kinds: [{}], count: {}}}\n", *run, end - run);
    run = end;
  }
  return text;
}

std::string PrintModule(const ModuleSpec& module) {
  Writer fields;
  internal::VisitModule(fields, module);
  std::string text = fields.Block("  - ", "    ");
  text += module.layer_kinds.empty() ? "    layer_kinds: []\n" : "    layer_kinds:\n";
  for (const LayerSpec& layer : module.layer_kinds) {
    Writer attention;
    internal::VisitAttention(attention, module, layer.attention);
    Writer mlp;
    internal::VisitMlp(mlp, layer.mlp);
    text += fmt::format("      - attention: {}\n        mlp: {}\n", attention.Flow(), mlp.Flow());
    if (layer.post_norms) text += "        post_norms: true\n";
    if (layer.parallel_residual) text += "        parallel_residual: true\n";
  }
  return text + PrintLayers(module);
}

std::string PrintTexts(const char* key, const std::vector<std::string>& texts) {
  if (texts.empty()) return "";
  std::string out = fmt::format("{}:\n", key);
  for (const std::string& text : texts) out += "  - " + YamlString(text) + "\n";
  return out;
}

}  // namespace

std::string PrintModelYaml(const ModelSpec& model) {
  std::string text = fmt::format("meshwright_model: {}\n", kModelYamlVersion);
  text += fmt::format("name: {}\n", YamlString(model.name));
  if (!model.family.empty()) text += fmt::format("family: {}\n", YamlString(model.family));
  text += "modules:\n";
  for (const ModuleSpec& module : model.modules) text += PrintModule(module);
  if (!model.edges.empty()) text += "edges:\n";
  for (const ModuleEdge& edge : model.edges) {
    Writer fields;
    internal::VisitEdge(fields, edge);
    text += "  - " + fields.Flow() + "\n";
  }
  text += PrintTexts("defaults_filled", model.defaults_filled);
  return text + PrintTexts("notes", model.notes);
}

}  // namespace meshwright::planner
