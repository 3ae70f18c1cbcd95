// Reading fields of plan.json: strict types, ranges and keys; problems are collected, not thrown.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "topologies/status.h"

namespace meshwright::planner::plan_json {

/// Bounds of what a file may hold, so that no input exhausts memory or overflows 64 bits.
inline constexpr size_t kMostBytes = size_t{256} << 20;
inline constexpr int kDeepest = 16;
inline constexpr int64_t kMostRanks = int64_t{1} << 20;
inline constexpr int64_t kMostOfAnAxis = int64_t{1} << 17;
inline constexpr int64_t kMostSamples = int64_t{1} << 24;
inline constexpr int64_t kMostElements = int64_t{1} << 50;
inline constexpr int64_t kMostLines = 10'000;
inline constexpr size_t kLongestText = size_t{64} << 20;

/// What is wrong with a file, at most a page of it.
class Problems {
 public:
  explicit Problems(std::string source) : source_(std::move(source)) {}
  void Add(const std::string& path, const std::string& found, const std::string& allowed);
  bool empty() const { return list_.empty(); }
  Status ToStatus() const;

 private:
  std::string source_;
  std::vector<std::string> list_;
  int64_t more_ = 0;
};

/// One object of the file. Every getter notes a problem and returns an empty value when the key is
/// missing or holds something else; `Done` notes keys that nobody asked for.
class Object {
 public:
  Object(const nlohmann::json& json, std::string path, Problems& problems);

  int64_t Integer(const char* key, int64_t low, int64_t high);
  double Number(const char* key);  ///< finite and not negative
  bool Flag(const char* key);
  bool FlagOr(const char* key, bool otherwise);  ///< a key that may be absent
  std::string Text(const char* key, size_t longest = kLongestText);
  uint64_t Hex(const char* key);  ///< "0x" and 16 digits
  /// Text that `parse` accepts ("allowed: ..." comes from its error).
  template <typename T, typename Parse>
  T Choice(const char* key, const Parse& parse) {
    const std::string text = Text(key, 64);
    const auto value = parse(text);
    if (value.ok()) return *value;
    if (Has(key)) Note(key, value.status().message());
    return T{};
  }
  Object Sub(const char* key);
  /// Calls `each(element, path)` for the elements of an array of at most `most`.
  void List(const char* key, int64_t most,
            const std::function<void(const nlohmann::json&, const std::string&)>& each);
  std::vector<int64_t> Integers(const char* key, int64_t most, int64_t low, int64_t high);
  std::vector<std::string> Texts(const char* key, int64_t most);
  void Done();
  Problems& problems() { return problems_; }

 private:
  bool Has(const char* key) const;
  const nlohmann::json* Get(const char* key, const char* what);
  std::string PathOf(const char* key) const;
  void Note(const char* key, const std::string& problem);

  const nlohmann::json& json_;
  std::string path_;
  Problems& problems_;
  std::vector<std::string_view> asked_;
};

/// "a string of 12 characters", "-3", "an array": what was found, short.
std::string Describe(const nlohmann::json& json);

}  // namespace meshwright::planner::plan_json
