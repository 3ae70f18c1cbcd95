#include "planner/ir/plan_json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace meshwright::planner::plan_json {
namespace {

using Json = nlohmann::json;
constexpr size_t kMostProblems = 20;

const Json& EmptyObject() {
  static const Json empty = Json::object();
  return empty;
}

/// True when `json` is an integer of 64 bits with sign.
bool IsInteger(const Json& json) {
  if (!json.is_number_integer()) return false;
  return !json.is_number_unsigned() || json.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
}

}  // namespace

std::string Describe(const Json& json) {
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    if (text.size() > 40) return fmt::format("a string of {} characters", text.size());
  } else if (json.is_structured()) {
    return fmt::format("an {} of {}", json.is_array() ? "array" : "object", json.size());
  }
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

void Problems::Add(const std::string& path, const std::string& found, const std::string& allowed) {
  if (list_.size() >= kMostProblems) {
    ++more_;
    return;
  }
  list_.push_back(fmt::format("{}: found {}, allowed: {}", path, found, allowed));
}

Status Problems::ToStatus() const {
  if (list_.empty()) return Status::Ok();
  std::string text = source_ + ": ";
  for (size_t i = 0; i < list_.size(); ++i) text += (i > 0 ? "; " : "") + list_[i];
  if (more_ > 0) text += fmt::format("; and {} more", more_);
  return InvalidInput(text + "; write the plan again with the plan command or correct the fields");
}

Object::Object(const Json& json, std::string path, Problems& problems)
    : json_(json.is_object() ? json : EmptyObject()), path_(std::move(path)), problems_(problems) {
  if (!json.is_object())
    problems_.Add(path_.empty() ? "the file" : path_, Describe(json), "an object");
}

std::string Object::PathOf(const char* key) const {
  return path_.empty() ? key : path_ + "." + key;
}

bool Object::Has(const char* key) const {
  return json_.contains(key);
}

void Object::Note(const char* key, const std::string& problem) {
  problems_.Add(PathOf(key), Describe(json_.at(key)), problem);
}

const Json* Object::Get(const char* key, const char* what) {
  asked_.emplace_back(key);
  const auto found = json_.find(key);
  if (found != json_.end()) return &*found;
  problems_.Add(PathOf(key), "nothing", what);
  return nullptr;
}

int64_t Object::Integer(const char* key, int64_t low, int64_t high) {
  const std::string allowed = fmt::format("an integer from {} to {}", low, high);
  const Json* json = Get(key, allowed.c_str());
  if (json == nullptr) return low;
  if (IsInteger(*json)) {
    const auto value = json->get<int64_t>();
    if (value >= low && value <= high) return value;
  }
  Note(key, allowed);
  return low;
}

double Object::Number(const char* key) {
  const Json* json = Get(key, "a number of at least 0");
  if (json == nullptr) return 0.0;
  if (json->is_number()) {
    const auto value = json->get<double>();
    if (std::isfinite(value) && value >= 0.0) return value;
  }
  Note(key, "a number of at least 0");
  return 0.0;
}

bool Object::Flag(const char* key) {
  const Json* json = Get(key, "true or false");
  if (json != nullptr && json->is_boolean()) return json->get<bool>();
  if (json != nullptr) Note(key, "true or false");
  return false;
}

bool Object::FlagOr(const char* key, bool otherwise) {
  if (Has(key)) return Flag(key);
  asked_.push_back(key);
  return otherwise;
}

std::string Object::Text(const char* key, size_t longest) {
  const std::string allowed = fmt::format("a string of at most {} bytes", longest);
  const Json* json = Get(key, allowed.c_str());
  if (json == nullptr) return {};
  if (json->is_string()) {
    const auto& text = json->get_ref<const std::string&>();
    if (text.size() <= longest) return text;
  }
  Note(key, allowed);
  return {};
}

uint64_t Object::Hex(const char* key) {
  const char* allowed = "\"0x\" and 16 hexadecimal digits in lower case";
  const Json* json = Get(key, allowed);
  if (json == nullptr) return 0;
  if (json->is_string()) {
    const auto& text = json->get_ref<const std::string&>();
    uint64_t value = 0;
    if (text.size() == 18 && text.starts_with("0x")) {
      const auto [end, error] = std::from_chars(text.data() + 2, text.data() + 18, value, 16);
      if (error == std::errc() && end == text.data() + 18 &&
          fmt::format("0x{:016x}", value) == text) {
        return value;
      }
    }
  }
  Note(key, allowed);
  return 0;
}

Object Object::Sub(const char* key) {
  const Json* json = Get(key, "an object");
  return {json != nullptr ? *json : EmptyObject(), PathOf(key), problems_};
}

void Object::List(const char* key, int64_t most,
                  const std::function<void(const Json&, const std::string&)>& each) {
  const std::string allowed = fmt::format("an array of at most {}", most);
  const Json* json = Get(key, allowed.c_str());
  if (json == nullptr) return;
  if (!json->is_array() || static_cast<int64_t>(json->size()) > most) {
    Note(key, allowed);
    return;
  }
  int64_t i = 0;
  for (const Json& element : *json) each(element, fmt::format("{}[{}]", PathOf(key), i++));
}

std::vector<int64_t> Object::Integers(const char* key, int64_t most, int64_t low, int64_t high) {
  std::vector<int64_t> values;
  List(key, most, [&](const Json& element, const std::string& path) {
    if (IsInteger(element) && element.get<int64_t>() >= low && element.get<int64_t>() <= high) {
      values.push_back(element.get<int64_t>());
    } else {
      problems_.Add(path, Describe(element), fmt::format("an integer from {} to {}", low, high));
    }
  });
  return values;
}

std::vector<std::string> Object::Texts(const char* key, int64_t most) {
  std::vector<std::string> values;
  List(key, most, [&](const Json& element, const std::string& path) {
    if (element.is_string()) {
      values.push_back(element.get<std::string>());
    } else {
      problems_.Add(path, Describe(element), "a string");
    }
  });
  return values;
}

void Object::Done() {
  for (const auto& [key, value] : json_.items()) {
    if (std::find(asked_.begin(), asked_.end(), key) != asked_.end()) continue;
    std::string known;
    for (const std::string_view a : asked_) known += (known.empty() ? "" : ", ") + std::string(a);
    problems_.Add(path_.empty() ? "the file" : path_, "the unknown key " + Describe(Json(key)),
                  "the keys " + known);
  }
}

}  // namespace meshwright::planner::plan_json
