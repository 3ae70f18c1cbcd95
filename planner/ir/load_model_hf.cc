#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "planner/ir/load_model.h"
#include "planner/ir/load_model_hf_families.h"
#include "planner/ir/load_model_hf_fields.h"
#include "planner/ir/model_check.h"
#include "topologies/yaml_guard.h"

namespace meshwright::planner {
namespace {

using Json = nlohmann::json;

/// A vision-language model_type and the type of its language part.
struct VisionFamily {
  std::string_view model_type;
  std::string_view text_type;  ///< when text_config names none, or there is no text_config
};
constexpr VisionFamily kVisionFamilies[] = {{"llava", "llama"},
                                            {"llava_next", "llama"},
                                            {"qwen2_5_vl", "qwen2_5_vl_text"},
                                            {"qwen2_vl", "qwen2_vl_text"}};

const VisionFamily* FindVisionFamily(std::string_view model_type) {
  const auto* found =
      std::find_if(std::begin(kVisionFamilies), std::end(kVisionFamilies),
                   [&](const VisionFamily& family) { return family.model_type == model_type; });
  return found == std::end(kVisionFamilies) ? nullptr : found;
}

/// "models/llama-3-8b.json" to "llama-3-8b", "x/gpt2/config.json" to "gpt2".
std::string NameOf(std::string_view source) {
  const auto last_part = [](std::string_view path) {
    const size_t slash = path.find_last_of('/');
    return slash == std::string_view::npos ? path : path.substr(slash + 1);
  };
  std::string_view name = last_part(source);
  if (name == "config.json" && name.size() + 1 < source.size()) {
    name = last_part(source.substr(0, source.size() - name.size() - 1));
  }
  const size_t dot = name.find_last_of('.');
  if (dot != std::string_view::npos && dot > 0 && name.substr(dot) == ".json") {
    name = name.substr(0, dot);
  }
  return name.empty() ? "model" : std::string(name.substr(0, 200));
}

Status NotJson(std::string_view text, const std::string& source, const Json::exception& error,
               size_t byte) {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(byte, text.size()));
  // The library's prefix "[json.exception...] parse error at line 1, column 2: " says less.
  std::string reason = error.what();
  const size_t colon = reason.find(": ");
  if (colon != std::string::npos) reason = reason.substr(colon + 2);
  if (reason.size() > 200) reason = reason.substr(0, 200) + "...";
  for (char& c : reason) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7E) c = '?';
  }
  return InvalidInput(fmt::format("{}: line {}: not valid JSON: {}; correct the syntax", source,
                                  1 + std::count(text.begin(), end, '\n'), reason));
}

Result<Json> ParseJson(std::string_view text, const std::string& source) {
  MW_RETURN_IF_ERROR(CheckJsonBounds(text, source));
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& error) {
    return NotJson(text, source, error, error.byte);
  } catch (const Json::exception& error) {
    // A number beyond the range of double, whose place the library does not tell.
    return InvalidInput(
        fmt::format("{}: not valid JSON: {}; correct the value", source, error.what()));
  }
}

/// Reads what the spec has no place for, so that nothing is left out in silence.
void AddNotes(const HfFields& fields, std::vector<std::string>* notes) {
  if (const Json* scaling = fields.Find("rope_scaling"); scaling != nullptr) {
    std::string type = "unnamed";
    for (const char* key : {"rope_type", "type"}) {
      if (scaling->is_object() && scaling->contains(key) && (*scaling)[key].is_string()) {
        type = Quoted((*scaling)[key].get<std::string>());
        break;
      }
    }
    if (type != "\"default\"") {
      notes->push_back("rope_scaling (type " + type +
                       ") is not held: it changes rotary angles, no shape and no cost");
    }
  }
  if (fields.Find("quantization_config") != nullptr) {
    notes->push_back(
        "quantization_config is not held: parameters are counted in elements, whatever their type");
  }
}

void RefuseEncoderDecoder(HfFields* fields) {
  const Json* value = fields->Find("is_encoder_decoder");
  if (value != nullptr && *value != Json(false)) {
    fields->Problem("is_encoder_decoder", FoundJson(*value), "false",
                    "encoder-decoder models cannot be planned");
  }
}

/// Where the language model of a configuration is, and what family it belongs to.
struct TextPart {
  const Json* object = nullptr;
  std::string prefix;
  std::string model_type;  ///< names the reader
  std::string family;      ///< what the source calls the model
};

Status UnknownFamily(Problems* problems, HfFields* fields, const Json* found) {
  fields->Problem("model_type", found == nullptr ? "nothing" : FoundJson(*found),
                  fmt::format("{}", fmt::join(KnownHfFamilies(), ", ")),
                  "state one of them, or write the model in Meshwright's own YAML "
                  "(planner/ir/README.md describes it)");
  return problems->ToStatus();
}

Result<TextPart> FindTextPart(const Json& root, const JsonKeys& keys, Problems* problems,
                              std::vector<std::string>* notes) {
  std::vector<std::string> unused;
  HfFields fields(root, "", keys, problems, &unused);
  const Json* type = fields.Find("model_type");
  if (type == nullptr || !type->is_string()) return UnknownFamily(problems, &fields, type);
  const std::string outer = type->get<std::string>();
  const VisionFamily* vision = FindVisionFamily(outer);
  if (vision == nullptr) {
    if (FindHfFamily(outer) == nullptr) return UnknownFamily(problems, &fields, type);
    return TextPart{&root, "", outer, outer};
  }
  notes->push_back(fmt::format(
      "only the language part of this {} model is read: vision tower and projector are left out",
      outer));
  const Json* text = fields.Find("text_config");
  const std::string own(vision->text_type);
  // "llama" is a family of its own; "qwen2_vl_text" is only what qwen2_vl calls its inner part.
  const std::string family = own == "llama" ? own : outer;
  if (text == nullptr) {
    return TextPart{&root, "", own, family};
  }
  if (!text->is_object()) {
    fields.Problem("text_config", FoundJson(*text), "an object", "correct the value");
    return problems->ToStatus();
  }
  HfFields inner(*text, "text_config.", keys, problems, &unused);
  const Json* inner_type = inner.Find("model_type");
  if (inner_type == nullptr) return TextPart{text, "text_config.", own, family};
  const bool known =
      inner_type->is_string() && (FindHfFamily(inner_type->get<std::string>()) != nullptr ||
                                  inner_type->get<std::string>() == vision->model_type);
  if (!known) return UnknownFamily(problems, &inner, inner_type);
  const std::string name = inner_type->get<std::string>();
  if (name == own || name == vision->model_type) return TextPart{text, "text_config.", own, family};
  return TextPart{text, "text_config.", name, name};
}

Result<ModelSpec> ReadConfig(const Json& root, std::string_view text, const std::string& source) {
  Problems problems(source);
  const JsonKeys keys = FindJsonKeys(text);
  for (const auto& [key, line] : keys.twice) {
    problems.Add(line, key, "the field twice", "once", "remove one of the two");
  }
  ModelSpec model;
  MW_ASSIGN_OR_RETURN(const TextPart part, FindTextPart(root, keys, &problems, &model.notes));
  const HfFamily* family = FindHfFamily(part.model_type);
  MW_CHECK(family != nullptr);
  model.name = NameOf(source);
  model.family = part.family;
  ModuleSpec module;
  module.name = "language";
  HfFields fields(*part.object, part.prefix, keys, &problems, &model.defaults_filled);
  RefuseEncoderDecoder(&fields);
  family->read(&fields, family->defaults, &module);
  AddNotes(fields, &model.notes);
  model.modules.push_back(std::move(module));
  if (problems.empty()) CheckModelInto(model, {}, &problems);
  if (!problems.empty()) return problems.ToStatus();
  return model;
}

}  // namespace

std::vector<std::string> KnownHfFamilies() {
  std::vector<std::string> names;
  for (const HfFamily& family : HfFamilies()) names.emplace_back(family.model_type);
  for (const VisionFamily& family : kVisionFamilies) names.emplace_back(family.model_type);
  std::sort(names.begin(), names.end());
  return names;
}

Result<ModelSpec> ParseHfConfig(std::string_view json, std::string_view source) {
  const std::string name(source);
  MW_ASSIGN_OR_RETURN(const Json root, ParseJson(json, name));
  if (!root.is_object()) {
    return InvalidInput(fmt::format(
        "{}: found {}; allowed: a JSON object, as in a config.json; is this the right file?", name,
        FoundJson(root)));
  }
  try {
    return ReadConfig(root, json, name);
  } catch (const std::exception& error) {
    return InvalidInput(fmt::format("{}: cannot be read: {}", name, error.what()));
  }
}

}  // namespace meshwright::planner
