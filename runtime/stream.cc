#include "runtime/stream.h"

#include <algorithm>

#include "topologies/status.h"

namespace meshwright::runtime {

using planner::EventId;
using planner::StreamId;

StreamSet::StreamSet(const std::vector<bool>& used, int events, Run run) : run_(std::move(run)) {
  events_.resize(static_cast<size_t>(events));
  for (bool u : used) {
    streams_.push_back(u ? std::make_unique<Stream>() : nullptr);
    if (u) streams_.back()->ring.resize(64);
  }
  for (size_t s = 0; s < streams_.size(); ++s) {
    if (!used[s]) continue;
    streams_[s]->worker = std::thread([this, s] { Serve(static_cast<StreamId>(s)); });
  }
}

StreamSet::~StreamSet() {
  Cancel();
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    for (auto& stream : streams_) {
      if (stream != nullptr) stream->wake.notify_all();
    }
  }
  for (auto& stream : streams_) {
    if (stream != nullptr) stream->worker.join();
  }
}

void StreamSet::Wait(StreamId stream, EventId event) {
  const Mark mark = events_[static_cast<size_t>(event)];
  // Work of one stream is in order anyway.
  if (mark.stream < 0 || mark.stream == stream || Complete(mark)) return;
  Stream& s = At(stream);
  for (size_t i = 0; i < s.pending.wait_count; ++i) {
    Mark& other = s.pending.waits[i];
    if (other.stream != mark.stream) continue;
    other.count = std::max(other.count, mark.count);
    return;
  }
  if (s.pending.wait_count == Item::kMaxWaits) Push(s);
  s.pending.waits[s.pending.wait_count++] = mark;
}

void StreamSet::Launch(StreamId stream, const StreamWork& work) {
  Stream& s = At(stream);
  s.pending.work = work;
  s.pending.empty = false;
  Push(s);
}

void StreamSet::Record(StreamId stream, EventId event) {
  Stream& s = At(stream);
  if (s.pending.wait_count > 0) Push(s);
  events_[static_cast<size_t>(event)] = {stream, s.issued};
}

/// Appends the pending item and begins a new one.
void StreamSet::Push(Stream& stream) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    const auto held = static_cast<size_t>(stream.issued - stream.done.load());
    if (held + 1 >= stream.ring.size()) {
      std::vector<Item> larger(stream.ring.size() * 2);
      for (int64_t i = stream.done.load(); i < stream.issued; ++i) {
        const auto at = static_cast<size_t>(i);
        larger[at % larger.size()] = stream.ring[at % stream.ring.size()];
      }
      stream.ring = std::move(larger);
    }
    stream.ring[static_cast<size_t>(stream.issued) % stream.ring.size()] = stream.pending;
    ++stream.issued;
    wake = stream.idle;
    stream.idle = false;
  }
  if (wake) stream.wake.notify_one();
  stream.pending = Item();
}

/// Counts the item as done and wakes who slept for it.
void StreamSet::Finish(StreamId s) {
  std::array<std::condition_variable*, 16> wakes;
  size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    const int64_t done = At(s).done.load(std::memory_order_relaxed) + 1;
    At(s).done.store(done, std::memory_order_release);
    const auto wake = [&](Mark& blocked, std::condition_variable& condition) {
      if (blocked.stream != s || blocked.count > done) return;
      blocked.stream = -1;
      if (count < wakes.size()) {
        wakes[count++] = &condition;
      } else {
        condition.notify_one();
      }
    };
    for (auto& other : streams_) {
      if (other != nullptr) wake(other->blocked, other->wake);
    }
    wake(issuer_blocked_, issuer_wake_);
  }
  // Outside of the lock, so that nobody wakes up to find it taken.
  for (size_t i = 0; i < count; ++i) wakes[i]->notify_one();
}

/// Blocks until the next item may start; false when the set closes and the queue is empty.
bool StreamSet::Next(Stream& stream, Item* item) {
  std::unique_lock lock(mutex_);
  while (stream.begun == stream.issued) {
    if (closing_) return false;
    stream.idle = true;
    stream.wake.wait(lock);
  }
  stream.idle = false;
  *item = stream.ring[static_cast<size_t>(stream.begun) % stream.ring.size()];
  ++stream.begun;
  for (size_t i = 0; i < item->wait_count; ++i) {
    while (!Complete(item->waits[i])) {
      stream.blocked = item->waits[i];
      stream.wake.wait(lock);
    }
  }
  stream.blocked.stream = -1;
  return true;
}

void StreamSet::Serve(StreamId s) {
  Stream& stream = At(s);
  Item item;
  while (Next(stream, &item)) {
    if (!item.empty && !cancelled_.load(std::memory_order_relaxed)) run_(s, item.work);
    Finish(s);
  }
}

std::vector<StreamSet::Mark> StreamSet::Ends() {
  std::vector<Mark> ends;
  for (size_t s = 0; s < streams_.size(); ++s) {
    if (streams_[s] == nullptr) continue;
    if (streams_[s]->pending.wait_count > 0) Push(*streams_[s]);
    ends.push_back({static_cast<StreamId>(s), streams_[s]->issued});
  }
  return ends;
}

void StreamSet::Await(const std::vector<Mark>& marks) {
  std::unique_lock lock(mutex_);
  for (const Mark& mark : marks) {
    while (!Complete(mark)) {
      issuer_blocked_ = mark;
      issuer_wake_.wait(lock);
    }
  }
  issuer_blocked_.stream = -1;
}

void StreamSet::Fence(int64_t ahead) {
  fences_.push_back(Ends());
  while (static_cast<int64_t>(fences_.size()) > ahead) {
    Await(fences_.front());
    fences_.pop_front();
  }
}

void StreamSet::Synchronize() {
  Await(Ends());
  fences_.clear();
}

}  // namespace meshwright::runtime
