// The values of a store in memory, bounded. Internal to the TCP store. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "topologies/status.h"

namespace meshwright::runtime {

class StoreValues {
 public:
  /// Bytes of all keys and values together.
  static constexpr size_t kMaxBytes = size_t{512} << 20;

  /// nullptr when the key does not exist; valid until the next change.
  const std::string* Find(const std::string& key) const;
  /// Errors of these: a key or value out of bounds, a full store, a counter that is no number or
  /// leaves the range of int64.
  Status Set(const std::string& key, std::string_view value);
  Result<int64_t> Add(const std::string& key, int64_t delta);
  void Remove(const std::string& key);
  std::map<std::string, std::string> List(std::string_view prefix) const;

 private:
  std::map<std::string, std::string> values_;
  size_t bytes_ = 0;
};

/// `text` plus `delta` where `text` is a counter as a store keeps it; empty is 0.
Result<int64_t> AddToCounter(const std::string& key, std::string_view text, int64_t delta);

}  // namespace meshwright::runtime
