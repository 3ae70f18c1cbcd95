#include "runtime/store_values.h"

#include <fmt/format.h>

#include <charconv>

#include "runtime/store.h"

namespace meshwright::runtime {
namespace {

constexpr size_t kEntryBytes = 128;  // what a key costs beside its bytes, about

}  // namespace

const std::string* StoreValues::Find(const std::string& key) const {
  const auto at = values_.find(key);
  return at == values_.end() ? nullptr : &at->second;
}

Status StoreValues::Set(const std::string& key, std::string_view value) {
  MW_RETURN_IF_ERROR(CheckStoreValue(key, value));
  const std::string* old = Find(key);
  const size_t before = old == nullptr ? 0 : kEntryBytes + key.size() + old->size();
  const size_t after = bytes_ - before + kEntryBytes + key.size() + value.size();
  if (after > kMaxBytes) {
    return RunFailed(fmt::format("store key '{}': the store would hold {} bytes; at most {}", key,
                                 after, kMaxBytes));
  }
  values_[key] = value;
  bytes_ = after;
  return Status::Ok();
}

Result<int64_t> StoreValues::Add(const std::string& key, int64_t delta) {
  const std::string* old = Find(key);
  MW_ASSIGN_OR_RETURN(const int64_t sum, AddToCounter(key, old == nullptr ? "" : *old, delta));
  MW_RETURN_IF_ERROR(Set(key, std::to_string(sum)));
  return sum;
}

void StoreValues::Remove(const std::string& key) {
  const auto at = values_.find(key);
  if (at == values_.end()) return;
  bytes_ -= kEntryBytes + key.size() + at->second.size();
  values_.erase(at);
}

std::map<std::string, std::string> StoreValues::List(std::string_view prefix) const {
  std::map<std::string, std::string> out;
  for (auto at = values_.lower_bound(std::string(prefix));
       at != values_.end() && std::string_view(at->first).substr(0, prefix.size()) == prefix;
       ++at) {
    out.insert(*at);
  }
  return out;
}

Result<int64_t> AddToCounter(const std::string& key, std::string_view text, int64_t delta) {
  int64_t value = 0;
  if (!text.empty()) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      return RunFailed(fmt::format("store key '{}': not a counter", key));
    }
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(value, delta, &sum)) {
    return RunFailed(fmt::format("store key '{}': {} + {} is out of range", key, value, delta));
  }
  return sum;
}

}  // namespace meshwright::runtime
