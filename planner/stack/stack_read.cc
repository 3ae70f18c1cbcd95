#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "cost_models/device_profile.h"
#include "planner/stack/stack_fields.h"
#include "planner/stack/stack_spec.h"
#include "topologies/yaml_guard.h"

namespace meshwright::planner::stack {
namespace {

constexpr size_t kShownBytes = 60;

std::string Shown(const std::string& text) {
  std::string shown;
  for (const char c : text.substr(0, kShownBytes)) {
    shown += static_cast<unsigned char>(c) < 32 || c == 127 ? '?' : c;
  }
  return text.size() > kShownBytes ? shown + "..." : shown;
}

/// One mapping of the file; keys that nobody asked for are errors.
class Section {
 public:
  Section(std::string file, std::string path, const YAML::Node& node)
      : file_(std::move(file)), path_(std::move(path)), node_(node) {}

  Status Error(const YAML::Node& at, const std::string& field, const std::string& what) const {
    const YAML::Mark mark = at.Mark();
    const std::string line = mark.is_null() ? "" : fmt::format(" line {}:", mark.line + 1);
    return InvalidInput(fmt::format("{}:{} {}{}: {}", file_, line, path_, field, what));
  }

  Status CheckMap() const {
    if (node_.IsMap()) return Status::Ok();
    return Error(node_, "", "found no mapping; allowed: 'key: value' lines");
  }

  Result<YAML::Node> Find(const char* key) {
    known_.insert(key);
    YAML::Node child = node_[key];
    if (!child.IsDefined() || child.IsNull()) {
      return Error(node_, key, "is missing; add it (cost_models/stacks/megatron.yaml is complete)");
    }
    return child;
  }

  Result<std::string> Word(const char* key) {
    MW_ASSIGN_OR_RETURN(const YAML::Node child, Find(key));
    if (!child.IsScalar()) return Error(child, key, "found a list or mapping; allowed: one value");
    return child.Scalar();
  }

  Status Number(const char* key, double low, double high, double* value) {
    MW_ASSIGN_OR_RETURN(const std::string word, Word(key));
    double number = 0;
    if (!YAML::convert<double>::decode(node_[key], number) || !std::isfinite(number) ||
        number < low || number > high) {
      return Error(
          node_[key], key,
          fmt::format("found '{}'; allowed: a number from {} to {}", Shown(word), low, high));
    }
    *value = number;
    return Status::Ok();
  }

  Status Flag(const char* key, bool* value) {
    MW_ASSIGN_OR_RETURN(const std::string word, Word(key));
    if (word != "true" && word != "false") {
      return Error(node_[key], key, fmt::format("found '{}'; allowed: true, false", Shown(word)));
    }
    *value = word == "true";
    return Status::Ok();
  }

  template <typename Enum, size_t N>
  Status Choices(const char* key, const std::array<Enum, N>& values, std::vector<Enum>* out) {
    MW_ASSIGN_OR_RETURN(const YAML::Node list, Find(key));
    if (!list.IsSequence()) return Error(list, key, "found no list; allowed: [a, b, ...]");
    std::string allowed;
    for (const Enum value : values)
      allowed += (allowed.empty() ? "" : ", ") + std::string(ToString(value));
    for (const auto& item : list) {
      const std::string word = item.IsScalar() ? item.Scalar() : "";
      const std::optional<Enum> value = internal::ValueOf(values, word);
      if (!value) {
        return Error(item, key, fmt::format("found '{}'; allowed: {}", Shown(word), allowed));
      }
      out->push_back(*value);
    }
    if (out->empty())
      return Error(list, key, "found an empty list; name at least one of " + allowed);
    return Status::Ok();
  }

  Result<Section> Sub(const char* key) {
    MW_ASSIGN_OR_RETURN(const YAML::Node child, Find(key));
    Section section(file_, path_ + key + ".", child);
    MW_RETURN_IF_ERROR(section.CheckMap());
    return section;
  }

  Status Done() const {
    for (const auto& entry : node_) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "?";
      if (known_.contains(key)) continue;
      std::string allowed;
      for (const std::string& name : known_) allowed += (allowed.empty() ? "" : ", ") + name;
      return Error(entry.first, "",
                   fmt::format("found the unknown field '{}'; allowed: {}", Shown(key), allowed));
    }
    return Status::Ok();
  }

  const YAML::Node& node() const { return node_; }

 private:
  std::string file_, path_;
  YAML::Node node_;
  std::set<std::string> known_;
};

template <typename Values, typename Fields>
Status ReadNumbers(Section& parent, const char* key, const Fields& fields, Values* values) {
  MW_ASSIGN_OR_RETURN(Section section, parent.Sub(key));
  for (const auto& field : fields) {
    MW_RETURN_IF_ERROR(section.Number(field.name, field.low, field.high, &(values->*field.member)));
  }
  return section.Done();
}

Status ReadOffers(Section& root, StackSpec* stack) {
  MW_ASSIGN_OR_RETURN(Section offers, root.Sub("offers"));
  MW_RETURN_IF_ERROR(offers.Choices("sharding", internal::kShardingLevels, &stack->sharding));
  MW_RETURN_IF_ERROR(offers.Choices("schedules", internal::kSchedules, &stack->schedules));
  MW_RETURN_IF_ERROR(offers.Choices("formats", internal::kFormats, &stack->formats));
  MW_RETURN_IF_ERROR(offers.Choices("modes", internal::kModes, &stack->modes));
  MW_RETURN_IF_ERROR(offers.Flag("uneven_layers", &stack->uneven_layers));
  double stages = 1;
  MW_RETURN_IF_ERROR(offers.Number("max_virtual_stages", 1, 1024, &stages));
  stack->max_virtual_stages = static_cast<int64_t>(stages);
  return offers.Done();
}

Status ReadSources(Section& root, StackSpec* stack) {
  MW_ASSIGN_OR_RETURN(Section sources, root.Sub("sources"));
  for (const char* section : {"lowering", "factors", "state", "allocator", "residuals"}) {
    MW_ASSIGN_OR_RETURN(stack->sources[section], sources.Word(section));
  }
  return sources.Done();
}

Status ReadStack(Section& root, StackSpec* stack) {
  MW_RETURN_IF_ERROR(root.CheckMap());
  MW_ASSIGN_OR_RETURN(const std::string version, root.Word("meshwright_stack"));
  if (version != "1") {
    return root.Error(root.node(), "meshwright_stack",
                      fmt::format("found version '{}'; allowed: 1", Shown(version)));
  }
  MW_ASSIGN_OR_RETURN(stack->name, root.Word("name"));
  MW_ASSIGN_OR_RETURN(stack->description, root.Word("description"));
  MW_RETURN_IF_ERROR(root.Flag("executable", &stack->executable));
  MW_RETURN_IF_ERROR(ReadSources(root, stack));
  MW_RETURN_IF_ERROR(ReadOffers(root, stack));
  MW_ASSIGN_OR_RETURN(Section lowering, root.Sub("lowering"));
  for (const internal::FlagField& field : internal::FlagFields()) {
    MW_RETURN_IF_ERROR(lowering.Flag(field.name, &(stack->lowering.*field.member)));
  }
  MW_RETURN_IF_ERROR(lowering.Done());
  MW_RETURN_IF_ERROR(ReadNumbers(root, "factors", FactorFields(), &stack->factors));
  MW_RETURN_IF_ERROR(ReadNumbers(root, "state", StateFields(), &stack->state));
  MW_RETURN_IF_ERROR(ReadNumbers(root, "allocator", AllocatorFields(), &stack->allocator));
  MW_ASSIGN_OR_RETURN(Section residuals, root.Sub("residuals"));
  double rows = 0;
  MW_RETURN_IF_ERROR(residuals.Number("rows", 0, 1e9, &rows));
  stack->residuals.rows = static_cast<int64_t>(rows);
  MW_RETURN_IF_ERROR(residuals.Number("log_bias", -5, 5, &stack->residuals.log_bias));
  MW_RETURN_IF_ERROR(residuals.Number("log_deviation", 0, 5, &stack->residuals.log_deviation));
  MW_RETURN_IF_ERROR(residuals.Done());
  return root.Done();
}

std::string StackDir() {
  const std::filesystem::path profiles = cost::ProfileDir();
  return (profiles.parent_path() / "stacks").string();
}

}  // namespace

Result<StackSpec> ParseStack(std::string_view text, std::string_view source_name) {
  const std::string file(source_name);
  MW_RETURN_IF_ERROR(CheckYamlBounds(text, file));
  try {
    Section root(file, "", YAML::Load(std::string(text)));
    StackSpec stack;
    MW_RETURN_IF_ERROR(ReadStack(root, &stack));
    return stack;
  } catch (const YAML::Exception& error) {
    return InvalidInput(
        fmt::format("{}: line {}: not YAML: {}", file, error.mark.line + 1, Shown(error.msg)));
  }
}

std::vector<std::string> ShippedStackNames() {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(StackDir(), error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".yaml") names.push_back(it->path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<StackSpec> LoadStack(const std::string& name_or_path) {
  const bool is_path =
      name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".yaml");
  const std::string path = is_path ? name_or_path : StackDir() + "/" + name_or_path + ".yaml";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return NotFound(fmt::format("--stack: found no stack '{}'; allowed: {}, or the path of a file",
                                Shown(name_or_path), fmt::join(ShippedStackNames(), ", ")));
  }
  const auto size = std::filesystem::file_size(path, error);
  if (error || size > kMaxTextBytes) {
    return InvalidInput(
        fmt::format("{}: found a file that is unreadable or larger than {} bytes; "
                    "is this a stack?",
                    path, kMaxTextBytes));
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return ParseStack(text.str(), path);
}

std::string ToYaml(const StackSpec& stack) {
  std::string out = "meshwright_stack: 1\n";
  const auto quoted = [](const std::string& text) {
    std::string result = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') result += '\\';
      result += c;
    }
    return result + "\"";
  };
  out += fmt::format("name: {}\ndescription: {}\nexecutable: {}\nsources:\n", stack.name,
                     quoted(stack.description), stack.executable);
  for (const auto& [section, text] : stack.sources) {
    out += fmt::format("  {}: {}\n", section, quoted(text));
  }
  const auto names = [](const auto& values) {
    std::string list;
    for (const auto value : values)
      list += (list.empty() ? "" : ", ") + std::string(ToString(value));
    return list;
  };
  out += fmt::format(
      "offers:\n  sharding: [{}]\n  schedules: [{}]\n  formats: [{}]\n  modes: [{}]\n"
      "  uneven_layers: {}\n  max_virtual_stages: {}\nlowering:\n",
      names(stack.sharding), names(stack.schedules), names(stack.formats), names(stack.modes),
      stack.uneven_layers, stack.max_virtual_stages);
  for (const internal::FlagField& field : internal::FlagFields()) {
    out += fmt::format("  {}: {}\n", field.name, stack.lowering.*field.member);
  }
  const auto numbers = [&](const char* key, const auto& fields, const auto& values) {
    out += fmt::format("{}:\n", key);
    for (const auto& field : fields)
      out += fmt::format("  {}: {:.6g}\n", field.name, values.*field.member);
  };
  numbers("factors", FactorFields(), stack.factors);
  numbers("state", StateFields(), stack.state);
  numbers("allocator", AllocatorFields(), stack.allocator);
  out += fmt::format("residuals:\n  rows: {}\n  log_bias: {:.6g}\n  log_deviation: {:.6g}\n",
                     stack.residuals.rows, stack.residuals.log_bias, stack.residuals.log_deviation);
  return out;
}

}  // namespace meshwright::planner::stack
