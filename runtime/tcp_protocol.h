// What client and server of the TCP store say to each other. Internal to the TCP store.
//
// A connection opens with kMagic and a frame (world, rank, kind, run id), which the server answers
// with kMagic and a frame (answer, text). Then one request frame at a time, each with one answer. A
// frame is its length in 4 bytes and so many bytes. Numbers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/store.h"

namespace meshwright::runtime::tcp {

inline constexpr std::string_view kMagic = "MWSTORE1";
inline constexpr size_t kMaxHelloBytes = 1024;
inline constexpr size_t kMaxFrameBytes = kMaxStoreValueBytes + 4096;

/// A connection that asks, or the one whose end means that its rank is gone.
enum class ConnectionKind : uint8_t { kRequests, kPresence };
enum class Request : uint8_t { kSet, kSetOnce, kAdd, kRemove, kList, kWaitAny, kGoodbye };
enum class Answer : uint8_t {
  kDone,
  kNothing,  ///< of kWaitAny: the time has passed
  kRefused,  ///< and the text says why
};

/// Appends numbers and strings.
class Writer {
 public:
  Writer& Byte(uint8_t v) {
    bytes_.push_back(static_cast<char>(v));
    return *this;
  }
  Writer& Number(uint64_t v, int bytes) {
    for (int i = 0; i < bytes; ++i) Byte(static_cast<uint8_t>(v >> (8 * i)));
    return *this;
  }
  Writer& Text(std::string_view v) {
    Number(v.size(), 4);
    bytes_.append(v);
    return *this;
  }
  size_t size() const { return bytes_.size(); }
  /// The frame of what was written.
  std::string Frame() const {
    Writer length;
    length.Number(bytes_.size(), 4);
    return length.bytes_ + bytes_;
  }

 private:
  std::string bytes_;
};

/// Reads what a Writer wrote. Past the end, or after an error, it gives zeros and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  uint8_t Byte() {
    if (!ok_ || bytes_.empty()) {
      ok_ = false;
      return 0;
    }
    const auto byte = static_cast<uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return byte;
  }
  uint64_t Number(int bytes) {
    uint64_t v = 0;
    for (int i = 0; i < bytes; ++i) v |= uint64_t{Byte()} << (8 * i);
    return v;
  }
  std::string_view Text() { return Take(static_cast<size_t>(Number(4))); }

  bool ok() const { return ok_; }
  /// Everything was read and nothing was missing.
  bool complete() const { return ok_ && bytes_.empty(); }

 private:
  std::string_view Take(size_t count) {
    if (!ok_ || count > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace meshwright::runtime::tcp
