#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <type_traits>

#include "planner/ir/model_check.h"
#include "planner/ir/model_limits.h"
#include "planner/ir/model_problems.h"
#include "planner/ir/model_yaml.h"
#include "planner/ir/model_yaml_fields.h"
#include "topologies/yaml_guard.h"

namespace meshwright::planner {
namespace {

struct Context {
  explicit Context(std::string source) : problems(std::move(source)) {}
  Problems problems;
  FieldLines lines;
  std::vector<std::string> filled;
};

size_t LineOf(const YAML::Node& node) {
  const YAML::Mark mark = node.Mark();
  return mark.line < 0 ? 0 : static_cast<size_t>(mark.line) + 1;
}

std::string Found(const YAML::Node& node) {
  if (!node.IsDefined() || node.IsNull()) return "nothing";
  if (node.IsScalar()) return Quoted(node.Scalar());
  return node.IsMap() ? "a mapping" : "a list";
}

/// Unquoted and without an explicit tag: what may be a number or true/false.
bool IsPlain(const YAML::Node& node) {
  return node.IsScalar() && node.Tag() == "?";
}
bool IsText(const YAML::Node& node) {
  return node.IsScalar() && (node.Tag() == "?" || node.Tag() == "!");
}

template <typename Number>
std::optional<Number> ReadNumber(const YAML::Node& node) {
  if (!IsPlain(node)) return std::nullopt;
  const std::string& text = node.Scalar();
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(number)) return std::nullopt;
  }
  return number;
}

/// What a field of type T may hold, in words, and how a node becomes one.
template <typename T>
std::string Allowed() {
  if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_integral_v<T>) {
    return "a whole number";
  } else if constexpr (std::is_floating_point_v<T>) {
    return "a finite number";
  } else if constexpr (std::is_enum_v<T>) {
    return KnownNames<T>();
  } else {
    return "text";
  }
}

template <typename T>
std::optional<T> ReadValue(const YAML::Node& node) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!IsPlain(node) || (node.Scalar() != "true" && node.Scalar() != "false")) return {};
    return node.Scalar() == "true";
  } else if constexpr (std::is_arithmetic_v<T>) {
    return ReadNumber<T>(node);
  } else if constexpr (std::is_enum_v<T>) {
    T value{};
    if (!IsText(node) || !Parse(node.Scalar(), &value)) return {};
    return value;
  } else {
    if (!IsText(node)) return {};
    return node.Scalar();
  }
}

template <typename T>
std::string Shown(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return ToString(value);
  } else {
    return fmt::format("{}", value);
  }
}

/// One mapping of the text, and the visitor of model_yaml_fields.h that reads it.
class Reader {
 public:
  Reader(const YAML::Node& node, std::string path, Context* context)
      : path_(std::move(path)), context_(*context), line_(LineOf(node)) {
    if (!node.IsMap()) {
      context_.problems.Add(line_, path_.empty() ? "(document)" : path_, Found(node),
                            "a mapping of fields", "write `field: value` lines");
      broken_ = true;
      return;
    }
    for (const auto& entry : node) AddKey(entry.first, entry.second);
  }

  template <typename T>
  void Need(const char* key, T& field) {
    if (broken_ || Read(key, field)) return;
    context_.problems.Add(line_, Path(key), "nothing", Allowed<T>(), "state the field");
  }
  template <typename T>
  void Fill(const char* key, T& field, const T& value, const char* why) {
    if (broken_ || Read(key, field)) return;
    field = value;
    context_.filled.push_back(fmt::format("{} = {} ({})", Path(key), Shown(value), why));
  }
  template <typename T>
  void Off(const char* key, T& field, const T& value) {
    if (!broken_ && !Read(key, field)) field = value;
  }
  template <typename T, typename Visit>
  void Sub(const char* key, std::optional<T>& field, Visit visit) {
    const auto node = Take(key);
    if (!node) return;
    field.emplace();
    Reader sub(*node, Path(key), &context_);
    visit(sub, *field);
    sub.Finish();
  }

  /// The node of `key`, which then counts as known; none when absent.
  std::optional<YAML::Node> Take(const std::string& key) {
    known_.push_back(key);
    const auto entry = entries_.find(key);
    if (entry == entries_.end()) return std::nullopt;
    return entry->second;
  }
  /// As Take; absent or no list: a problem.
  std::optional<YAML::Node> TakeList(const std::string& key, bool required) {
    auto node = Take(key);
    if (broken_ || (!node && !required)) return std::nullopt;
    if (!node || !node->IsSequence()) {
      context_.problems.Add(node ? LineOf(*node) : line_, Path(key),
                            node ? Found(*node) : "nothing", "a list", "write a list");
      return std::nullopt;
    }
    return node;
  }

  /// Complains about keys that nobody asked for.
  void Finish() {
    for (const auto& [key, node] : entries_) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      context_.problems.Add(LineOf(node) > 0 ? LineOf(node) : line_, Path(Quoted(key)),
                            "a field that is not known here",
                            fmt::format("{}", fmt::join(known_, ", ")),
                            "correct the spelling, or remove it");
    }
  }

  std::string Path(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  bool broken() const { return broken_; }

 private:
  void AddKey(const YAML::Node& key, const YAML::Node& value) {
    if (!IsText(key)) {
      context_.problems.Add(line_, Path("(key)"), Found(key), "plain field names",
                            "correct the field name");
      return;
    }
    if (!entries_.emplace(key.Scalar(), value).second) {
      context_.problems.Add(LineOf(key), Path(Quoted(key.Scalar())), "the field twice", "once",
                            "remove one of the two");
    }
    context_.lines[Path(key.Scalar())] = LineOf(key);
  }

  /// False when absent. A value of the wrong kind is a problem, and leaves `field` as it is.
  template <typename T>
  bool Read(const char* key, T& field) {
    const auto node = Take(key);
    if (!node) return false;
    const std::optional<T> value = ReadValue<T>(*node);
    if (value) {
      field = *value;
    } else {
      const size_t line = LineOf(*node);
      context_.problems.Add(line > 0 ? line : line_, Path(key), Found(*node), Allowed<T>(),
                            "correct the value");
    }
    return true;
  }

  std::string path_;
  Context& context_;
  size_t line_ = 0;
  bool broken_ = false;
  std::map<std::string, YAML::Node> entries_;
  std::vector<std::string> known_;
};

LayerSpec ReadLayerKind(const YAML::Node& node, const std::string& path, const ModuleSpec& module,
                        Context* context) {
  LayerSpec layer;
  Reader fields(node, path, context);
  const auto part = [&](const char* key, auto visit) {
    const auto sub = fields.Take(key);
    if (!sub) {
      if (!fields.broken()) {
        context->problems.Add(LineOf(node), fields.Path(key), "nothing", "a mapping of fields",
                              "state the part");
      }
      return;
    }
    Reader reader(*sub, fields.Path(key), context);
    visit(reader);
    reader.Finish();
  };
  part("attention",
       [&](Reader& reader) { internal::VisitAttention(reader, module, layer.attention); });
  part("mlp", [&](Reader& reader) { internal::VisitMlp(reader, layer.mlp); });
  fields.Off("post_norms", layer.post_norms, false);
  fields.Off("parallel_residual", layer.parallel_residual, false);
  fields.Finish();
  return layer;
}

/// One entry {kinds: [0, 1], count: 21} of `layers`, appended `count` times.
void ReadLayerRun(const YAML::Node& node, const std::string& path, Context* context,
                  std::vector<int>* layers) {
  Reader fields(node, path, context);
  const auto list = fields.TakeList("kinds", true);
  int64_t count = 0;
  fields.Need("count", count);
  fields.Finish();
  if (!list) return;
  std::vector<int> kinds;
  for (const auto& item : *list) {
    const std::optional<int> kind = ReadNumber<int>(item);
    if (!kind) {
      context->problems.Add(LineOf(item), path + ".kinds", Found(item), "whole numbers",
                            "number the layer kinds from 0");
      return;
    }
    kinds.push_back(*kind);
  }
  const auto length = static_cast<int64_t>(kinds.size());
  const int64_t room = limits::kLayers - static_cast<int64_t>(layers->size());
  if (count < 1 || length < 1 || count > room / length) {
    if (!context->problems.Has(path)) {
      context->problems.Add(LineOf(node), path, fmt::format("{} x {} layers", count, length),
                            fmt::format("at least one, at most {} in all", limits::kLayers),
                            "correct count and kinds");
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) layers->insert(layers->end(), kinds.begin(), kinds.end());
}

void ReadLayers(Reader* fields, Context* context, ModuleSpec* module) {
  const auto node = fields->Take("layers");
  if (fields->broken()) return;
  const std::string path = fields->Path("layers");
  if (node && node->IsSequence()) {
    size_t i = 0;
    for (const auto& item : *node) {
      ReadLayerRun(item, fmt::format("{}[{}]", path, i++), context, &module->layers);
    }
    return;
  }
  const int64_t count = node ? ReadNumber<int64_t>(*node).value_or(-1) : -1;
  const bool one_kind = module->layer_kinds.size() == 1 || count == 0;
  if (count < 0 || count > limits::kLayers || !one_kind) {
    context->problems.Add(
        node ? LineOf(*node) : 0, path, node ? Found(*node) : "nothing",
        fmt::format(
            "a number up to {} (with one layer kind), or a list of {{kinds: [0], count: n}}",
            limits::kLayers),
        "state how many layers of which kind there are");
    return;
  }
  module->layers.assign(static_cast<size_t>(count), 0);
}

ModuleSpec ReadModule(const YAML::Node& node, const std::string& path, Context* context) {
  ModuleSpec module;
  Reader fields(node, path, context);
  internal::VisitModule(fields, module);
  if (const auto kinds = fields.TakeList("layer_kinds", true)) {
    size_t i = 0;
    for (const auto& kind : *kinds) {
      module.layer_kinds.push_back(
          ReadLayerKind(kind, fmt::format("{}.layer_kinds[{}]", path, i++), module, context));
    }
  }
  ReadLayers(&fields, context, &module);
  fields.Finish();
  return module;
}

std::vector<std::string> ReadTexts(Reader* fields, const char* key, Context* context) {
  std::vector<std::string> texts;
  const auto list = fields->TakeList(key, false);
  if (!list) return texts;
  for (const auto& item : *list) {
    if (const auto text = ReadValue<std::string>(item)) {
      texts.push_back(*text);
    } else {
      context->problems.Add(LineOf(item), fmt::format("{}[{}]", key, texts.size()), Found(item),
                            "text", "write a sentence in quotes");
    }
  }
  return texts;
}

Result<ModelSpec> ReadModel(const YAML::Node& root, const std::string& source) {
  Context context(source);
  ModelSpec model;
  Reader fields(root, "", &context);
  if (fields.broken()) return context.problems.ToStatus();
  int64_t version = 0;
  fields.Need("meshwright_model", version);
  if (context.problems.empty() && version != kModelYamlVersion) {
    context.problems.Add(context.lines["meshwright_model"], "meshwright_model",
                         fmt::format("version {}", version), fmt::format("{}", kModelYamlVersion),
                         "this build reads that version only: convert the file");
  }
  // Fields of another version, or of another kind of file, would only make noise.
  if (!context.problems.empty()) return context.problems.ToStatus();
  fields.Need("name", model.name);
  fields.Off("family", model.family, std::string());
  if (const auto modules = fields.TakeList("modules", true)) {
    for (const auto& node : *modules) {
      // One more than allowed is enough for the check to refuse, and bounds the memory.
      if (model.modules.size() > limits::kModules) break;
      const std::string path = fmt::format("modules[{}]", model.modules.size());
      model.modules.push_back(ReadModule(node, path, &context));
    }
  }
  if (const auto edges = fields.TakeList("edges", false)) {
    for (const auto& node : *edges) {
      Reader edge(node, fmt::format("edges[{}]", model.edges.size()), &context);
      model.edges.emplace_back();
      internal::VisitEdge(edge, model.edges.back());
      edge.Finish();
    }
  }
  model.defaults_filled = ReadTexts(&fields, "defaults_filled", &context);
  model.notes = ReadTexts(&fields, "notes", &context);
  fields.Finish();
  CheckModelInto(model, context.lines, &context.problems);
  if (!context.problems.empty()) return context.problems.ToStatus();
  model.defaults_filled.insert(model.defaults_filled.end(), context.filled.begin(),
                               context.filled.end());
  return model;
}

}  // namespace

Result<ModelSpec> ParseModelYaml(std::string_view text, std::string_view source) {
  const std::string name(source);
  MW_RETURN_IF_ERROR(CheckYamlBounds(text, source));
  try {
    return ReadModel(YAML::Load(std::string(text)), name);
  } catch (const YAML::Exception& error) {
    return InvalidInput(fmt::format("{}: line {}: not valid YAML: {}; correct the syntax", name,
                                    error.mark.line + 1, error.msg));
  } catch (const std::exception& error) {
    return InvalidInput(fmt::format("{}: cannot be read as YAML: {}", name, error.what()));
  }
}

}  // namespace meshwright::planner
