// Stable 64-bit hashing (FNV-1a) for fingerprints: the same on every machine and compiler.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace meshwright::planner {

class Hasher {
 public:
  Hasher& Add(std::string_view text) {
    Add(static_cast<int64_t>(text.size()));
    for (char c : text) Byte(static_cast<uint8_t>(c));
    return *this;
  }
  Hasher& Add(int64_t value) {
    const auto bits = static_cast<uint64_t>(value);
    for (int i = 0; i < 8; ++i) Byte(static_cast<uint8_t>(bits >> (8 * i)));
    return *this;
  }
  Hasher& Add(double value) {
    int64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return Add(bits);
  }
  uint64_t value() const { return state_; }

 private:
  void Byte(uint8_t b) {
    state_ ^= b;
    state_ *= 0x100000001b3ULL;
  }
  uint64_t state_ = 0xcbf29ce484222325ULL;
};

}  // namespace meshwright::planner
