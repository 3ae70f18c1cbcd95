// Reads the fields of a Hugging Face configuration, checking each and remembering every default it
// had to fill in. Internal to planner/ir.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/ir/model_problems.h"
#include "planner/ir/model_spec.h"

namespace meshwright::planner {

/// Keys of the outer two levels ("hidden_size", "text_config.hidden_size") and their lines.
struct JsonKeys {
  std::map<std::string, size_t> lines;
  std::map<std::string, size_t> twice;  ///< stated again in one object, and where
};
/// `text` must be valid JSON.
JsonKeys FindJsonKeys(std::string_view text);

/// Names that mean the same field; the first is the usual one.
using Keys = std::initializer_list<const char*>;

/// What an absent field becomes, and why, as defaults_filled prints it.
template <typename T>
struct Absent {
  std::optional<T> value;  ///< none: the field must be there
  std::string why;
};

class HfFields {
 public:
  /// Reads `object`, whose path in the file is `prefix` ("" or "text_config."). The references must
  /// outlive this.
  HfFields(const nlohmann::json& object, std::string prefix, const JsonKeys& keys,
           Problems* problems, std::vector<std::string>* filled);

  /// A number of low..high. After a problem the result is 0, which no caller allows as a size.
  int64_t Whole(Keys keys, int64_t low, int64_t high, const Absent<int64_t>& absent);
  /// As Whole; JSON null counts as absent.
  int64_t WholeOrNull(Keys keys, int64_t low, int64_t high, const Absent<int64_t>& absent);
  double Real(Keys keys, double low, double high, const Absent<double>& absent);
  bool Flag(Keys keys, const Absent<bool>& absent);
  std::string Text(Keys keys, const Absent<std::string>& absent);
  /// An activation by its `transformers` name ("gelu_new", "silu", ...).
  Activation ReadActivation(Keys keys, const std::string& fallback, const std::string& why);
  /// Whole numbers of low..high; absent or null: empty, and not listed.
  std::vector<int64_t> WholeList(const char* key, int64_t low, int64_t high);
  std::vector<std::string> TextList(const char* key);

  /// The value of a key, null when absent or JSON null; for what the readers above do not cover.
  const nlohmann::json* Find(const char* key) const;

  /// The key is there, and its value is JSON null.
  bool IsNull(const char* key) const;

  void Problem(const std::string& key, const std::string& found, const std::string& allowed,
               const std::string& fix);
  bool HasProblem(const std::string& key) const { return problems_->Has(prefix_ + key); }
  void ListDefault(const std::string& key, const std::string& value, const std::string& why);

 private:
  /// First of `keys` that is there; two of them with unlike values are a problem.
  const nlohmann::json* FindAny(Keys keys, std::string* key);

  const nlohmann::json& object_;
  std::string prefix_;
  const JsonKeys& keys_;
  Problems* problems_;
  std::vector<std::string>* filled_;
};

/// `value` as an error shows it: its text, shortened, or "a list", "an object".
std::string FoundJson(const nlohmann::json& value);

}  // namespace meshwright::planner
