// The meeting place of ranks that are threads: members post what they ask for, and whoever
// completes a match moves the data. Internal to the thread communicator.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/communicator.h"

namespace meshwright::runtime {

/// What one member asks for.
struct ThreadRequest {
  CommOp op = CommOp::kBarrier;
  planner::DType dtype = planner::DType::kF32;
  int64_t count = 0;
  int peer = -1;  ///< partner of a message, root of a broadcast
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int color = 0;  ///< of kSplit, as are key and name
  int key = 0;
  const std::string* name = nullptr;

  bool message() const { return op == CommOp::kSend || op == CommOp::kRecv; }
};

class ThreadCore;

/// What the communicators of one world share.
struct ThreadWorld {
  CommOptions options;
  std::atomic<bool> aborted{false};
  std::mutex mutex;
  Status reason;                                 // guarded by mutex
  std::vector<std::weak_ptr<ThreadCore>> cores;  // guarded by mutex

  void Abort(const Status& why);
  Status Reason() {
    const std::lock_guard lock(mutex);
    return reason;
  }
};

/// State of one communicator, shared by its members.
class ThreadCore : public std::enable_shared_from_this<ThreadCore> {
 public:
  ThreadCore(std::shared_ptr<ThreadWorld> world, std::string name, std::vector<int> ranks)
      : world_(std::move(world)), name_(std::move(name)), ranks_(std::move(ranks)) {
    for (size_t i = 0; i < ranks_.size(); ++i) members_.emplace_back();
  }

  const std::string& name() const { return name_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  ThreadWorld& world() { return *world_; }

  Status Run(int rank, const ThreadRequest& request);
  /// Result of the member's last kSplit.
  std::shared_ptr<ThreadCore> TakeSplit(int rank, int* position);
  void Wake() {
    const std::lock_guard lock(mutex_);
    for (Member& m : members_) m.wake.notify_all();
  }

 private:
  enum class State : uint8_t { kIdle, kPosted, kMoving, kDone };
  struct Member {
    State state = State::kIdle;
    ThreadRequest request;
    Status result;
    int64_t sequence = 0;  ///< operations begun
    std::shared_ptr<ThreadCore> split;
    int split_position = -1;
    std::condition_variable wake;
  };

  Member& At(int rank) { return members_[static_cast<size_t>(rank)]; }
  int RankOf(size_t position) const { return ranks_[position]; }
  Status Check(int rank, const ThreadRequest& request) const;
  Status Disagreement(int rank);
  Status NothingMatches();
  Status Stuck(int rank);
  std::vector<int> Partners(int rank);
  void Break(const Status& why);
  void Move(const std::vector<int>& partners);
  void MoveCollective(const ThreadRequest& first);
  void Reduce(int64_t begin, int64_t count, planner::DType dtype,
              const std::vector<std::byte*>& targets);
  void MakeSplits();
  void Await(int rank, std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<ThreadWorld> world_;
  const std::string name_;
  const std::vector<int> ranks_;  ///< world ranks in communicator order
  std::mutex mutex_;
  std::deque<Member> members_;  // guarded by mutex_, but for the requests of kMoving members
  Status broken_;               // guarded by mutex_
};

std::shared_ptr<ThreadCore> MakeThreadCore(const std::shared_ptr<ThreadWorld>& world,
                                           std::string name, std::vector<int> ranks);

}  // namespace meshwright::runtime
