// The one allocation that a rank computes in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace meshwright::runtime {

/// `size` zeroed bytes, aligned to 4096, with `guard` bytes (a multiple of 4096) on either side.
class Arena {
 public:
  static constexpr int64_t kAlignment = 4096;

  Arena(int64_t size, int64_t guard) : size_(size), guard_(guard) {
    const int64_t whole = (size + kAlignment - 1) / kAlignment * kAlignment + 2 * guard;
    const auto bytes = static_cast<size_t>(whole > 0 ? whole : kAlignment);
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes)));
    if (memory_ != nullptr) std::fill_n(memory_.get(), bytes, std::byte{0});
  }

  /// nullptr when the machine did not give the memory.
  std::byte* data() const { return memory_ == nullptr ? nullptr : memory_.get() + guard_; }
  int64_t size() const { return size_; }
  int64_t guard() const { return guard_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  int64_t size_;
  int64_t guard_;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace meshwright::runtime
