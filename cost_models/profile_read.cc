#include <fmt/core.h>
#include <yaml-cpp/yaml.h>

#include <cmath>
#include <map>
#include <set>

#include "cost_models/device_profile.h"
#include "cost_models/profile_fields.h"
#include "cost_models/profile_units.h"
#include "topologies/yaml_guard.h"

namespace meshwright::cost {
namespace {

using internal::Range;
using internal::Unit;
using topologies::Source;

constexpr size_t kMaxWord = 80;    // bytes of names and numbers
constexpr size_t kMaxText = 2000;  // bytes of descriptions and sources
constexpr std::string_view kFormat = "meshwright-device-profile";
constexpr int64_t kVersion = 1;

// Printable and short, for messages.
std::string Shown(const std::string& text) {
  std::string shown;
  for (const char c : text.substr(0, kMaxWord)) {
    shown += static_cast<unsigned char>(c) < 32 || c == 127 ? '?' : c;
  }
  return text.size() > kMaxWord ? shown + "..." : shown;
}

struct Context {
  std::string file;
  std::map<std::string, Source> sources;

  Status Error(const YAML::Node& node, const std::string& field, const std::string& what) const {
    const YAML::Mark mark = node.Mark();
    const std::string line = mark.is_null() ? "" : fmt::format(" line {}:", mark.line + 1);
    return InvalidInput(fmt::format("{}:{} {}: {}", file, line, field, what));
  }
};

// One mapping of the file. Fields are asked for by key; `Done` refuses keys that nobody asked for.
class Reader {
 public:
  Reader(const Context& context, const YAML::Node& node, std::string path)
      : context_(context), node_(node), path_(std::move(path)) {}

  Status Check() const {
    if (node_.IsMap()) return Status::Ok();
    return Error(node_, "found no mapping; allowed: 'key: value' lines");
  }

  Status Done() const {
    std::set<std::string> seen;
    for (const auto& entry : node_) {
      if (!entry.first.IsScalar()) return Error(entry.first, "found a key that is not a word");
      const std::string& key = entry.first.Scalar();
      if (!known_.contains(key)) {
        std::string allowed;
        for (const std::string& name : known_) allowed += (allowed.empty() ? "" : ", ") + name;
        return Error(entry.first,
                     fmt::format("found the unknown field '{}'; allowed: {}", Shown(key), allowed));
      }
      if (!seen.insert(key).second) {
        return Error(entry.first, fmt::format("found '{}' twice; remove one", Shown(key)));
      }
    }
    return Status::Ok();
  }

  bool Absent(const char* key, bool) {
    known_.insert(key);
    return !node_[key];
  }

  Status Text(const char* key, std::string& text) {
    std::string word;
    MW_RETURN_IF_ERROR(Scalar(key, kMaxText, &word));
    text = word;
    return Status::Ok();
  }

  template <typename T, typename Parse>
  Status Choice(const char* key, T& value, Parse parse) {
    std::string word;
    MW_RETURN_IF_ERROR(Scalar(key, kMaxWord, &word));
    const std::optional<T> parsed = parse(word);
    if (!parsed) {
      return Error(node_[key], key,
                   fmt::format("found '{}', which is none of the known values", Shown(word)));
    }
    value = *parsed;
    return Status::Ok();
  }

  Status Flag(const char* key, bool& value) {
    std::string word;
    MW_RETURN_IF_ERROR(Scalar(key, kMaxWord, &word));
    if (word != "true" && word != "false") {
      return Error(node_[key], key, fmt::format("found '{}'; allowed: true, false", Shown(word)));
    }
    value = word == "true";
    return Status::Ok();
  }

  Status Integer(const char* key, int64_t& value, int64_t low, int64_t high) {
    double number = 0;
    MW_RETURN_IF_ERROR(Number(key, &number));
    if (!(number >= static_cast<double>(low) && number <= static_cast<double>(high)) ||
        number != std::floor(number)) {
      return Error(
          node_[key], key,
          fmt::format("found {}; allowed: a whole number from {} to {}", number, low, high));
    }
    value = static_cast<int64_t>(number);
    return Status::Ok();
  }

  template <typename T>
  Status Value(const char* key, Sourced<T>& field, Range range) {
    double si = 0;
    MW_RETURN_IF_ERROR(Triple(key, internal::UnitsOf(T{}), range, &si, &field.source));
    if constexpr (std::is_same_v<T, int64_t>) {
      MW_RETURN_IF_ERROR(Whole(key, si));
      field.value = static_cast<int64_t>(si);
    } else if constexpr (std::is_same_v<T, Bytes>) {
      MW_RETURN_IF_ERROR(Whole(key, si));
      field.value = Bytes(static_cast<int64_t>(si));
    } else {
      field.value = T(si);
    }
    return Status::Ok();
  }

  Status Value(const char* key, Sourced<double>& field, Range range, const char* unit) {
    const Unit units[] = {{unit, 1.0}};
    return Triple(key, units, range, &field.value, &field.source);
  }

  template <typename T, typename F>
  Status Section(const char* key, T& value, F visit) {
    known_.insert(key);
    const YAML::Node node = node_[key];
    if (!node) return Missing(key);
    return Inside(node, path_ + key + ".", value, visit);
  }

  template <typename T, typename F>
  Status Optional(const char* key, std::optional<T>& value, F visit) {
    known_.insert(key);
    const YAML::Node node = node_[key];
    if (!node) return Status::Ok();
    value.emplace();
    return Inside(node, path_ + key + ".", *value, visit);
  }

  template <typename T, typename F>
  Status List(const char* key, std::vector<T>& items, F visit) {
    known_.insert(key);
    const YAML::Node node = node_[key];
    if (!node) return Missing(key);
    if (!node.IsSequence() || node.size() > internal::kMaxListItems) {
      return Error(node, key,
                   fmt::format("found no list or one that is too long; allowed: up to {} "
                               "items, each '- key: value ...'",
                               internal::kMaxListItems));
    }
    size_t i = 0;
    for (const YAML::Node& child : node) {
      items.emplace_back();
      MW_RETURN_IF_ERROR(
          Inside(child, fmt::format("{}{}[{}].", path_, key, i++), items.back(), visit));
    }
    return Status::Ok();
  }

  Status Number(const char* key, double* number) {
    std::string word;
    MW_RETURN_IF_ERROR(Scalar(key, kMaxWord, &word));
    char* end = nullptr;
    *number = std::strtod(word.c_str(), &end);
    if (end == word.c_str() || *end != '\0' || !std::isfinite(*number)) {
      return Error(node_[key], key, fmt::format("found '{}'; allowed: a number", Shown(word)));
    }
    return Status::Ok();
  }

  Status Scalar(const char* key, size_t most, std::string* word) {
    known_.insert(key);
    const YAML::Node node = node_[key];
    if (!node) return Missing(key);
    if (!node.IsScalar() || node.Scalar().size() > most) {
      return Error(node, key,
                   fmt::format("found no plain value or one longer than {} bytes", most));
    }
    *word = node.Scalar();
    return Status::Ok();
  }

  YAML::Node Child(const char* key) {
    known_.insert(key);
    return node_[key];
  }

 private:
  template <typename T, typename F>
  Status Inside(const YAML::Node& node, const std::string& path, T& value, F visit) {
    Reader inner(context_, node, path);
    MW_RETURN_IF_ERROR(inner.Check());
    MW_RETURN_IF_ERROR(visit(inner, value));
    return inner.Done();
  }

  // {value: 80, unit: GiB, source: smi}
  Status Triple(const char* key, std::span<const Unit> units, Range range, double* si,
                Source* source) {
    known_.insert(key);
    const YAML::Node node = node_[key];
    if (!node) return Missing(key);
    Reader inner(context_, node, path_ + key + ".");
    MW_RETURN_IF_ERROR(inner.Check());
    double number = 0;
    std::string unit;
    std::string name;
    MW_RETURN_IF_ERROR(inner.Number("value", &number));
    MW_RETURN_IF_ERROR(inner.Scalar("unit", kMaxWord, &unit));
    MW_RETURN_IF_ERROR(inner.Scalar("source", kMaxWord, &name));
    MW_RETURN_IF_ERROR(inner.Done());
    const std::optional<double> factor = internal::FactorOf(units, unit);
    if (!factor) {
      return Error(
          node, key,
          fmt::format("found the unit '{}'; allowed: {}", Shown(unit), internal::Names(units)));
    }
    *si = number * *factor;
    if (!(*si >= range.low && *si <= range.high)) {
      return Error(node, key,
                   fmt::format("found {} {}; allowed: {} to {} {}", number, Shown(unit),
                               range.low / *factor, range.high / *factor, unit));
    }
    const auto found = context_.sources.find(name);
    if (found == context_.sources.end()) {
      return Error(node, key,
                   fmt::format("found the source '{}', which is not listed under "
                               "'sources'; add it there",
                               Shown(name)));
    }
    *source = found->second;
    return Status::Ok();
  }

  Status Whole(const char* key, double number) const {
    if (number == std::floor(number)) return Status::Ok();
    return Error(node_[key], key, fmt::format("found {}; allowed: a whole number", number));
  }

  Status Missing(const char* key) const {
    return Error(node_, key, "found nothing; this field is needed");
  }
  Status Error(const YAML::Node& node, const char* key, const std::string& what) const {
    return context_.Error(node, path_ + key, what);
  }
  Status Error(const YAML::Node& node, const std::string& what) const {
    return context_.Error(node, path_.empty() ? "profile" : path_.substr(0, path_.size() - 1),
                          what);
  }

  const Context& context_;
  const YAML::Node node_;  // const: looking up a missing key must not add it
  std::string path_;       // of this mapping, ends in '.' unless empty
  std::set<std::string> known_;
};

Status ReadSources(Reader* top, Context* context) {
  const YAML::Node node = top->Child("sources");
  if (!node || !node.IsMap() || node.size() > internal::kMaxListItems) {
    return context->Error(node ? node : YAML::Node(), "sources",
                          "found no mapping; allowed: 'name: {origin: measured, text: ...}' lines");
  }
  for (const auto& entry : node) {
    if (!entry.first.IsScalar() || entry.first.Scalar().size() > kMaxWord) {
      return context->Error(entry.first, "sources", "found a name that is no short word");
    }
    const std::string& name = entry.first.Scalar();
    Reader reader(*context, entry.second, "sources." + Shown(name) + ".");
    Source source;
    MW_RETURN_IF_ERROR(reader.Check());
    MW_RETURN_IF_ERROR(reader.Choice("origin", source.origin, topologies::ParseOrigin));
    MW_RETURN_IF_ERROR(reader.Text("text", source.text));
    MW_RETURN_IF_ERROR(reader.Done());
    if (!context->sources.emplace(name, source).second) {
      return context->Error(entry.first, "sources", "found a name twice; remove one");
    }
  }
  return Status::Ok();
}

Result<DeviceProfile> Read(const YAML::Node& root, Context* context) {
  Reader top(*context, root, "");
  MW_RETURN_IF_ERROR(top.Check());
  std::string format;
  MW_RETURN_IF_ERROR(top.Text("format", format));
  int64_t version = 0;
  MW_RETURN_IF_ERROR(top.Integer("version", version, 0, 1 << 30));
  if (format != kFormat || version != kVersion) {
    return context->Error(root, "format",
                          fmt::format("found '{}' version {}; allowed: '{}' version {}",
                                      Shown(format), version, kFormat, kVersion));
  }
  MW_RETURN_IF_ERROR(ReadSources(&top, context));
  DeviceProfile profile;
  MW_RETURN_IF_ERROR(internal::VisitProfile(top, profile));
  MW_RETURN_IF_ERROR(top.Done());
  MW_RETURN_IF_ERROR(Validate(profile).WithContext(context->file));
  return profile;
}

}  // namespace

Result<DeviceProfile> ParseDeviceProfile(std::string_view text, std::string_view source_name) {
  Context context;
  context.file = std::string(source_name);
  MW_RETURN_IF_ERROR(CheckYamlBounds(text, source_name));
  try {
    return Read(YAML::Load(std::string(text)), &context);
  } catch (const YAML::Exception& error) {
    return InvalidInput(fmt::format("{}: line {}: not YAML: {}", source_name,
                                    error.mark.is_null() ? 1 : error.mark.line + 1, error.msg));
  }
}

}  // namespace meshwright::cost
