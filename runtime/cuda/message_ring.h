// Where messages of a pipeline edge lie in the receiver's ring until it takes them. Both ends
// reckon the same places from the sizes alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "topologies/status.h"

namespace meshwright::runtime::cuda {

class MessageRing {
 public:
  struct Place {
    int64_t offset = 0;
    uint32_t number = 0;  ///< of the message, from 1; wraps
    bool waits = false;   ///< the place is free once the message `taken` has been taken
    uint32_t taken = 0;
  };

  /// `bytes`: of the ring; 0: no message goes there.
  explicit MessageRing(int64_t bytes) : bytes_(bytes) {}

  /// Two of the messages must have room, so that one can come while another is taken.
  bool Takes(int64_t bytes) const { return 2 * bytes <= bytes_; }

  /// For the next message, which it takes. What must be waited for is asked in one go for half of
  /// the messages that are under way, since each wait costs a stream 2 us.
  Place Next(int64_t bytes) {
    MW_CHECK(bytes > 0 && Takes(bytes));
    const bool wraps = end_ + bytes > bytes_;
    Place place{wraps ? 0 : end_, ++number_};
    // The oldest lie where the ring goes on; before it starts again, also behind its end.
    const auto in_the_way = [&, end = end_](const Entry& e) {
      const bool behind = wraps && e.begin >= end;
      return behind || (e.begin < place.offset + bytes && e.end > place.offset);
    };
    end_ = place.offset + bytes;
    size_t leave = 0;
    while (leave < under_way_.size() && in_the_way(under_way_[leave])) ++leave;
    if (leave > 0) {
      leave = std::max(leave, under_way_.size() / 2);
      place.taken = under_way_[leave - 1].number;
      place.waits = true;
      under_way_.erase(under_way_.begin(), under_way_.begin() + static_cast<std::ptrdiff_t>(leave));
    }
    under_way_.push_back({place.offset, place.offset + bytes, place.number});
    return place;
  }

 private:
  struct Entry {
    int64_t begin, end;
    uint32_t number;
  };
  const int64_t bytes_;
  int64_t end_ = 0;
  uint32_t number_ = 0;
  std::deque<Entry> under_way_;
};

}  // namespace meshwright::runtime::cuda
