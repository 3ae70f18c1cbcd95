// Happens-before of one rank: vector clocks over its streams, block by block.
//
// Inside a block the order of ops depends on the block alone, so it is worked out once
// (BlockOrder). What an op knows of ops outside comes from few sources: the streams it is on, the
// events that the instance waits for, events recorded before the block. Ops with the same sources
// share a clock.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "planner/ir/program.h"

namespace meshwright::planner::verify {

/// Order of the ops of one block.
struct BlockOrder {
  /// Where knowledge of outside ops enters.
  struct Source {
    enum class Kind : uint8_t { kStream, kInstanceWaits, kEvents };
    Kind kind = Kind::kStream;
    StreamId stream = 0;
    std::vector<EventId> events;
  };

  std::vector<StreamId> streams;        ///< used by the block
  std::vector<int32_t> ops_on_stream;   ///< number of ops on each of them
  std::vector<int32_t> last_on_stream;  ///< last op on each of them
  std::vector<int32_t> slot;            ///< op -> index into `streams`
  std::vector<int32_t> position;        ///< op -> 1-based place among the block's ops of its stream
  std::vector<Source> sources;
  std::vector<std::vector<int32_t>> views;  ///< distinct sets of sources, ascending
  std::vector<int32_t> view;                ///< op -> index into `views`
  std::vector<int32_t>
      known;  ///< op x streams: ops of the block done when the op ends, with itself
  std::vector<std::pair<EventId, int32_t>> records;  ///< event -> last op that signals it

  /// Op `a` (earlier in issue order) is done before op `b` starts.
  bool Before(int32_t a, int32_t b) const {
    return Known(b, slot[static_cast<size_t>(a)]) >= position[static_cast<size_t>(a)];
  }
  int32_t Known(int32_t op, int32_t stream_slot) const {
    return known[static_cast<size_t>(op) * streams.size() + static_cast<size_t>(stream_slot)];
  }
};
BlockOrder OrderOf(const Block& block);

/// Walks the instances of a rank in issue order and keeps the clocks of streams and events.
/// A clock holds, per stream, how many of its ops (since the first step) are known to be done.
class ClockWalk {
 public:
  ClockWalk(const RankProgram& program, const std::vector<BlockOrder>& orders);

  /// Clocks of all views of the instance's block.
  void Enter(const Instance& instance);
  /// Advances streams, records events.
  void Leave(const Instance& instance);

  const BlockOrder& order() const { return *order_; }
  /// Clock of outside ops for a view of the entered block: `width()` numbers.
  const int32_t* View(int32_t view) const {
    return views_.data() + static_cast<size_t>(view) * width_;
  }
  /// Ops on the stream before the entered instance.
  int32_t Count(StreamId stream) const { return counts_[static_cast<size_t>(stream)]; }
  /// Writes what op `op` of the entered block knows, itself included: `width()` numbers.
  void ClockOf(int32_t op, int32_t* clock) const;
  size_t width() const { return width_; }

 private:
  int32_t* Register(EventId e) { return registers_.data() + static_cast<size_t>(e) * width_; }
  int32_t* Stream(StreamId s) { return streams_.data() + static_cast<size_t>(s) * width_; }

  const std::vector<BlockOrder>& orders_;
  const BlockOrder* order_ = nullptr;
  size_t width_ = 0;
  std::vector<int32_t> counts_;     ///< per stream
  std::vector<int32_t> streams_;    ///< clock of the last op of each stream
  std::vector<int32_t> registers_;  ///< clock of the latest record of each event
  std::vector<int32_t> sources_;
  std::vector<int32_t> views_;
  std::vector<int32_t> scratch_;
};

}  // namespace meshwright::planner::verify
