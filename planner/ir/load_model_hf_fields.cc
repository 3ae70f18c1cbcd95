#include "planner/ir/load_model_hf_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace meshwright::planner {
namespace {

using Json = nlohmann::json;

struct ActivationName {
  const char* name;
  Activation activation;
};
// Names of transformers' ACT2FN that are one of ours up to rounding.
constexpr ActivationName kActivations[] = {
    {"gelu", Activation::kGelu},           {"gelu_python", Activation::kGelu},
    {"gelu_new", Activation::kGeluTanh},   {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"gelu_fast", Activation::kGeluTanh},  {"silu", Activation::kSilu},
    {"swish", Activation::kSilu},          {"relu", Activation::kRelu},
    {"quick_gelu", Activation::kQuickGelu}};

std::string KnownActivations() {
  std::string text;
  for (const ActivationName& known : kActivations) {
    text += (text.empty() ? "" : ", ") + std::string(known.name);
  }
  return text;
}

}  // namespace

std::string FoundJson(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_string()) return Quoted(value.get_ref<const std::string&>());
  return value.dump();
}

JsonKeys FindJsonKeys(std::string_view text) {
  constexpr size_t kLongestKey = 64;
  JsonKeys keys;
  size_t line = 1;
  int depth = 0;      // open brackets
  std::string outer;  // the depth-1 key whose value we are in
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c != '"') continue;
    const size_t start = ++i;
    while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
    size_t next = i + 1;
    while (next < text.size() &&
           (text[next] == ' ' || text[next] == '\t' || text[next] == '\r' || text[next] == '\n')) {
      ++next;
    }
    const bool is_key = next < text.size() && text[next] == ':';
    if (!is_key || depth > 2 || i < start || i - start > kLongestKey) continue;
    const std::string key(text.substr(start, i - start));
    if (depth == 1) outer = key;
    const std::string path = depth == 1 ? key : outer + "." + key;
    if (!keys.lines.emplace(path, line).second) keys.twice.emplace(path, line);
  }
  return keys;
}

HfFields::HfFields(const Json& object, std::string prefix, const JsonKeys& keys, Problems* problems,
                   std::vector<std::string>* filled)
    : object_(object),
      prefix_(std::move(prefix)),
      keys_(keys),
      problems_(problems),
      filled_(filled) {}

void HfFields::Problem(const std::string& key, const std::string& found, const std::string& allowed,
                       const std::string& fix) {
  const auto line = keys_.lines.find(prefix_ + key);
  problems_->Add(line == keys_.lines.end() ? 0 : line->second, prefix_ + key, found, allowed, fix);
}

void HfFields::ListDefault(const std::string& key, const std::string& value,
                           const std::string& why) {
  filled_->push_back(fmt::format("{}{} = {} (absent: {})", prefix_, key, value, why));
}

const Json* HfFields::Find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool HfFields::IsNull(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && found->is_null();
}

const Json* HfFields::FindAny(Keys keys, std::string* key) {
  const Json* first = nullptr;
  *key = *keys.begin();
  for (const char* candidate : keys) {
    const auto found = object_.find(candidate);
    if (found == object_.end()) continue;
    if (first == nullptr) {
      first = &*found;
      *key = candidate;
    } else if (*first != *found && !HasProblem(candidate)) {
      Problem(candidate,
              fmt::format("{} beside {} = {}", FoundJson(*found), *key, FoundJson(*first)),
              "one value: both names mean the same field", "remove one of the two");
    }
  }
  return first;
}

int64_t HfFields::Whole(Keys keys, int64_t low, int64_t high, const Absent<int64_t>& absent) {
  std::string key;
  const Json* value = FindAny(keys, &key);
  const std::string allowed = fmt::format("a whole number from {} to {}", low, high);
  if (value == nullptr) {
    if (!absent.value) {
      Problem(key, "nothing", allowed, "state the field");
      return 0;
    }
    ListDefault(key, fmt::format("{}", *absent.value), absent.why);
    return *absent.value;
  }
  // Unsigned numbers beyond int64 and fractions fall through to the problem.
  const bool fits =
      value->is_number_integer() &&
      (!value->is_number_unsigned() || value->get<uint64_t>() <= static_cast<uint64_t>(high)) &&
      value->get<int64_t>() >= low && value->get<int64_t>() <= high;
  if (fits) return value->get<int64_t>();
  Problem(key, FoundJson(*value), allowed,
          value->is_string() ? "write the number without quotes" : "correct the number");
  return 0;
}

int64_t HfFields::WholeOrNull(Keys keys, int64_t low, int64_t high, const Absent<int64_t>& absent) {
  std::string key;
  const Json* value = FindAny(keys, &key);
  if (value == nullptr || !value->is_null()) return Whole(keys, low, high, absent);
  if (absent.value) ListDefault(key, fmt::format("{}", *absent.value), absent.why);
  return absent.value.value_or(0);
}

double HfFields::Real(Keys keys, double low, double high, const Absent<double>& absent) {
  std::string key;
  const Json* value = FindAny(keys, &key);
  const std::string allowed = fmt::format("a number from {} to {}", low, high);
  if (value == nullptr) {
    if (!absent.value) {
      Problem(key, "nothing", allowed, "state the field");
      return 0;
    }
    ListDefault(key, fmt::format("{}", *absent.value), absent.why);
    return *absent.value;
  }
  if (value->is_number()) {
    const double number = value->get<double>();
    if (number >= low && number <= high) return number;
  }
  Problem(key, FoundJson(*value), allowed,
          value->is_string() ? "write the number without quotes" : "correct the number");
  return 0;
}

bool HfFields::Flag(Keys keys, const Absent<bool>& absent) {
  std::string key;
  const Json* value = FindAny(keys, &key);
  if (value != nullptr && value->is_boolean()) return value->get<bool>();
  if (value != nullptr) {
    Problem(key, FoundJson(*value), "true or false", "correct the value");
  } else if (!absent.value) {
    Problem(key, "nothing", "true or false", "state the field");
  } else {
    ListDefault(key, *absent.value ? "true" : "false", absent.why);
  }
  return absent.value.value_or(false);
}

std::string HfFields::Text(Keys keys, const Absent<std::string>& absent) {
  std::string key;
  const Json* value = FindAny(keys, &key);
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  if (value != nullptr) {
    Problem(key, FoundJson(*value), "text", "write a name in quotes");
  } else if (!absent.value) {
    Problem(key, "nothing", "text", "state the field");
  } else {
    ListDefault(key, *absent.value, absent.why);
  }
  return absent.value.value_or("");
}

Activation HfFields::ReadActivation(Keys keys, const std::string& fallback,
                                    const std::string& why) {
  std::string key;
  const Json* value = FindAny(keys, &key);
  const std::string name = Text(keys, {fallback, why});
  for (const ActivationName& known : kActivations) {
    if (name == known.name) return known.activation;
  }
  if (value != nullptr && !HasProblem(key)) {
    Problem(key, FoundJson(*value), KnownActivations(),
            "no other activation can be planned: correct the name");
  }
  return Activation::kGelu;
}

std::vector<int64_t> HfFields::WholeList(const char* key, int64_t low, int64_t high) {
  const Json* value = Find(key);
  std::vector<int64_t> numbers;
  if (value == nullptr) return numbers;
  const std::string allowed = fmt::format("a list of whole numbers from {} to {}", low, high);
  if (!value->is_array()) {
    Problem(key, FoundJson(*value), allowed, "write a list");
    return numbers;
  }
  for (const Json& item : *value) {
    const bool fits = item.is_number_integer() && item >= Json(low) && item <= Json(high);
    if (!fits) {
      Problem(key, FoundJson(item), allowed, "correct the number");
      return {};
    }
    numbers.push_back(item.get<int64_t>());
  }
  return numbers;
}

std::vector<std::string> HfFields::TextList(const char* key) {
  const Json* value = Find(key);
  std::vector<std::string> texts;
  if (value == nullptr) return texts;
  if (!value->is_array()) {
    Problem(key, FoundJson(*value), "a list of names", "write a list");
    return texts;
  }
  for (const Json& item : *value) {
    if (!item.is_string()) {
      Problem(key, FoundJson(item), "a list of names", "write names in quotes");
      return {};
    }
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

}  // namespace meshwright::planner
