// Streams and events of CPU ranks: queues with a worker thread each, ordered like CUDA streams.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "planner/ir/program.h"
#include "runtime/stream_sink.h"

namespace meshwright::runtime {

/// The streams of one rank. One thread issues (Wait, Launch, Record, Fence); a stream runs its work
/// in the order of issue, each piece once the events that it waits for are complete. An event is a
/// register: a wait binds to the latest record issued before it, in this step or an earlier one;
/// without any it is complete. Nothing is allocated once the queues have their size.
class StreamSet : public StreamSink {
 public:
  using Run = std::function<void(planner::StreamId, const StreamWork&)>;

  /// A worker for each stream s with used[s]; `run` is called on the workers and must not throw.
  StreamSet(const std::vector<bool>& used, int events, Run run);
  /// Cancels what has not started and ends the workers.
  ~StreamSet() override;
  StreamSet(const StreamSet&) = delete;
  StreamSet& operator=(const StreamSet&) = delete;

  void Wait(planner::StreamId stream, planner::EventId event) override;
  void Launch(planner::StreamId stream, const StreamWork& work) override;
  void Record(planner::StreamId stream, planner::EventId event) override;

  /// Marks the end of a step and blocks until at most `ahead` marked steps are unfinished: bounds
  /// how far the issuing thread runs ahead.
  void Fence(int64_t ahead);
  /// Blocks until everything launched is done.
  void Synchronize();

  /// Skips all work that has not started, from any thread.
  void Cancel() { cancelled_ = true; }

 private:
  /// Complete once `count` pieces of the stream's work are done.
  struct Mark {
    planner::StreamId stream = -1;
    int64_t count = 0;
  };
  struct Item {
    static constexpr size_t kMaxWaits = 4;
    StreamWork work;
    bool empty = true;  ///< carries waits only
    uint8_t wait_count = 0;
    std::array<Mark, kMaxWaits> waits;
  };
  struct Stream {
    Item pending;            ///< waits of the next launch; issuing thread only
    int64_t issued = 0;      ///< written by the issuing thread under mutex_
    int64_t begun = 0;       ///< worker only
    std::vector<Item> ring;  ///< item i at i mod size, a power of two; guarded by mutex_
    bool idle = false;       ///< the worker sleeps on an empty queue; guarded by mutex_
    Mark blocked;            ///< what the worker sleeps for; guarded by mutex_
    std::atomic<int64_t> done{0};
    std::condition_variable wake;
    std::thread worker;
  };

  bool Used(planner::StreamId s) const { return streams_[static_cast<size_t>(s)] != nullptr; }
  Stream& At(planner::StreamId s) { return *streams_[static_cast<size_t>(s)]; }
  bool Complete(const Mark& mark) {
    return At(mark.stream).done.load(std::memory_order_acquire) >= mark.count;
  }
  void Push(Stream& stream);
  void Finish(planner::StreamId s);
  bool Next(Stream& stream, Item* item);
  void Serve(planner::StreamId s);
  void Await(const std::vector<Mark>& marks);
  std::vector<Mark> Ends();

  const Run run_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Mark> events_;              ///< latest record of each event; issuing thread only
  std::deque<std::vector<Mark>> fences_;  ///< ends of unfinished steps; issuing thread only
  Mark issuer_blocked_;                   ///< guarded by mutex_
  std::condition_variable issuer_wake_;
  bool closing_ = false;  ///< guarded by mutex_
  std::atomic<bool> cancelled_{false};
};

}  // namespace meshwright::runtime
