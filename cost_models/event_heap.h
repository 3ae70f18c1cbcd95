// A binary heap of (time, id) with a changeable time per id: the simulator's calendar.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace meshwright::cost::internal {

class EventHeap {
 public:
  /// Ids are 0 .. `ids` - 1.
  explicit EventHeap(size_t ids) : place_(ids, -1) {}

  bool empty() const { return heap_.empty(); }
  int64_t top_time() const { return heap_.front().time; }
  int32_t top_id() const { return heap_.front().id; }

  /// Adds the id or moves it to another time.
  void Set(int32_t id, int64_t time) {
    int32_t place = place_[static_cast<size_t>(id)];
    if (place < 0) {
      place = static_cast<int32_t>(heap_.size());
      heap_.push_back({time, id});
      SiftUp(static_cast<size_t>(place), {time, id});
      return;
    }
    const Entry entry{time, id};
    if (entry < heap_[static_cast<size_t>(place)]) {
      SiftUp(static_cast<size_t>(place), entry);
    } else {
      SiftDown(static_cast<size_t>(place), entry);
    }
  }

  /// No effect when the id is not there.
  void Remove(int32_t id) {
    const int32_t place = place_[static_cast<size_t>(id)];
    if (place < 0) return;
    place_[static_cast<size_t>(id)] = -1;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (last.id == id) return;
    const auto hole = static_cast<size_t>(place);
    if (hole > 0 && last < heap_[(hole - 1) / 2]) {
      SiftUp(hole, last);
    } else {
      SiftDown(hole, last);
    }
  }

  void Pop() { Remove(top_id()); }

 private:
  struct Entry {
    int64_t time = 0;
    int32_t id = 0;
    friend bool operator<(const Entry& a, const Entry& b) {
      return a.time != b.time ? a.time < b.time : a.id < b.id;
    }
  };

  void Put(size_t place, Entry entry) {
    heap_[place] = entry;
    place_[static_cast<size_t>(entry.id)] = static_cast<int32_t>(place);
  }

  void SiftUp(size_t place, Entry entry) {
    while (place > 0 && entry < heap_[(place - 1) / 2]) {
      Put(place, heap_[(place - 1) / 2]);
      place = (place - 1) / 2;
    }
    Put(place, entry);
  }

  void SiftDown(size_t place, Entry entry) {
    for (size_t child = 2 * place + 1; child < heap_.size(); child = 2 * place + 1) {
      if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
      if (!(heap_[child] < entry)) break;
      Put(place, heap_[child]);
      place = child;
    }
    Put(place, entry);
  }

  std::vector<Entry> heap_;
  std::vector<int32_t> place_;  ///< of each id in heap_; -1: absent
};

}  // namespace meshwright::cost::internal
