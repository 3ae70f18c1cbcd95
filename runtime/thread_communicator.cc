#include "runtime/thread_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <tuple>

namespace meshwright::runtime {
namespace {

using planner::DType;

/// What one member asks for.
struct Request {
  CommOp op = CommOp::kBarrier;
  DType dtype = DType::kF32;
  int64_t count = 0;
  int peer = -1;  ///< partner of a message, root of a broadcast
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int color = 0;  ///< of kSplit, as are key and name
  int key = 0;
  const std::string* name = nullptr;

  bool message() const { return op == CommOp::kSend || op == CommOp::kRecv; }
};

bool Agree(const Request& a, const Request& b) {
  return a.op == b.op && a.dtype == b.dtype && a.count == b.count && a.peer == b.peer;
}

std::string Describe(const Request& r) {
  switch (r.op) {
    case CommOp::kBarrier:
    case CommOp::kSplit:
      return ToString(r.op);
    case CommOp::kBroadcast:
      return fmt::format("broadcast of {} {} from member {}", r.count, planner::ToString(r.dtype),
                         r.peer);
    case CommOp::kSend:
    case CommOp::kRecv:
      return fmt::format("{} of {} {} {} member {}", ToString(r.op), r.count,
                         planner::ToString(r.dtype), r.op == CommOp::kSend ? "to" : "from", r.peer);
    default:
      return fmt::format("{} of {} {}", ToString(r.op), r.count, planner::ToString(r.dtype));
  }
}

class Core;

/// What the communicators of one world share.
struct World {
  CommOptions options;
  std::atomic<bool> aborted{false};
  std::mutex mutex;
  Status reason;                           // guarded by mutex
  std::vector<std::weak_ptr<Core>> cores;  // guarded by mutex

  void Abort(const Status& why);
  Status Reason() {
    const std::lock_guard lock(mutex);
    return reason;
  }
};

std::shared_ptr<Core> MakeCore(const std::shared_ptr<World>& world, std::string name,
                               std::vector<int> ranks);

/// State of one communicator, shared by its members.
class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(std::shared_ptr<World> world, std::string name, std::vector<int> ranks)
      : world_(std::move(world)), name_(std::move(name)), ranks_(std::move(ranks)) {
    for (size_t i = 0; i < ranks_.size(); ++i) members_.emplace_back();
  }

  const std::string& name() const { return name_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  World& world() { return *world_; }

  Status Run(int rank, const Request& request);
  /// Result of the member's last kSplit.
  std::shared_ptr<Core> TakeSplit(int rank, int* position);
  void Wake() {
    const std::lock_guard lock(mutex_);
    for (Member& m : members_) m.wake.notify_all();
  }

 private:
  enum class State : uint8_t { kIdle, kPosted, kMoving, kDone };
  struct Member {
    State state = State::kIdle;
    Request request;
    Status result;
    int64_t sequence = 0;  ///< operations begun
    std::shared_ptr<Core> split;
    int split_position = -1;
    std::condition_variable wake;
  };

  Member& At(int rank) { return members_[static_cast<size_t>(rank)]; }
  int RankOf(size_t position) const { return ranks_[position]; }
  Status Check(int rank, const Request& request) const;
  Status Disagreement(int rank);
  Status NothingMatches();
  Status Stuck(int rank);
  std::vector<int> Partners(int rank);
  void Break(const Status& why);
  void Move(const std::vector<int>& partners);
  void MoveCollective(const Request& first);
  void Reduce(int64_t begin, int64_t count, DType dtype, const std::vector<std::byte*>& targets);
  void MakeSplits();
  void Await(int rank, std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<World> world_;
  const std::string name_;
  const std::vector<int> ranks_;  ///< world ranks in communicator order
  std::mutex mutex_;
  std::deque<Member> members_;  // guarded by mutex_, but for the requests of kMoving members
  Status broken_;               // guarded by mutex_
};

void World::Abort(const Status& why) {
  std::vector<std::weak_ptr<Core>> all;
  {
    const std::lock_guard lock(mutex);
    if (!reason.ok()) return;
    reason = why.ok() ? RunFailed("aborted") : why;
    aborted = true;
    all = cores;
  }
  for (const std::weak_ptr<Core>& weak : all) {
    if (const std::shared_ptr<Core> core = weak.lock()) core->Wake();
  }
}

std::shared_ptr<Core> MakeCore(const std::shared_ptr<World>& world, std::string name,
                               std::vector<int> ranks) {
  auto core = std::make_shared<Core>(world, std::move(name), std::move(ranks));
  const std::lock_guard lock(world->mutex);
  world->cores.push_back(core);
  return core;
}

Status Core::Check(int rank, const Request& r) const {
  if (r.count < 0) {
    return InvalidInput(fmt::format("communicator {}: {}: the count must be >= 0", name_, Describe(r)));
  }
  if (r.op == CommOp::kAllReduce || r.op == CommOp::kReduceScatter) {
    MW_RETURN_IF_ERROR(CheckSummable(r.dtype, name_));
  }
  const bool needs_peer = r.message() || r.op == CommOp::kBroadcast;
  if (needs_peer && (r.peer < 0 || r.peer >= size() || (r.message() && r.peer == rank))) {
    return InvalidInput(fmt::format("communicator {}: {} by member {}: there are members 0..{}, and "
                                    "messages go to another one",
                                    name_, Describe(r), rank, size() - 1));
  }
  return Status::Ok();
}

/// Compares the new request of `rank` with those of the members that wait: collectives must be
/// equal, and a message must be what its partner expects.
Status Core::Disagreement(int rank) {
  const Request& mine = At(rank).request;
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& other = members_[i];
    if (static_cast<int>(i) == rank || other.state != State::kPosted) continue;
    const Request& r = other.request;
    bool agree = true;
    if (!mine.message() && !r.message()) {
      agree = Agree(mine, r);
    } else if (mine.message() && r.message() && mine.op != r.op &&
               mine.peer == static_cast<int>(i) && r.peer == rank) {
      agree = mine.dtype == r.dtype && mine.count == r.count;
    }
    if (agree) continue;
    return RunFailed(fmt::format(
        "communicator {}: rank {} does {} (its operation {}), rank {} does {} (its operation {}); "
        "all members must ask for the same",
        name_, RankOf(i), Describe(r), other.sequence, RankOf(static_cast<size_t>(rank)),
        Describe(mine), At(rank).sequence));
  }
  return Status::Ok();
}

/// Members that can go with `rank` now, in communicator order; empty while some are missing.
std::vector<int> Core::Partners(int rank) {
  const Request& mine = At(rank).request;
  if (mine.message()) {
    const Member& other = At(mine.peer);
    if (other.state == State::kPosted && other.request.message() && other.request.op != mine.op &&
        other.request.peer == rank) {
      return {std::min(rank, mine.peer), std::max(rank, mine.peer)};
    }
    return {};
  }
  std::vector<int> all;
  all.reserve(members_.size());
  for (const Member& m : members_) {
    if (m.state != State::kPosted || m.request.message()) return {};
    all.push_back(static_cast<int>(all.size()));
  }
  return all;
}

/// Every member waits and none has a partner: it would stay so for ever.
Status Core::NothingMatches() {
  std::string text;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].state != State::kPosted) return Status::Ok();
    text += fmt::format("{}rank {} does {}", i == 0 ? "" : ", ", RankOf(i),
                        Describe(members_[i].request));
  }
  return RunFailed(
      fmt::format("communicator {}: no operation meets its partner: {}", name_, text));
}

Status Core::Stuck(int rank) {
  std::string arrived;
  std::string missing;
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& m = members_[i];
    const Request& mine = At(rank).request;
    const bool concerned = static_cast<int>(i) == rank || !mine.message() ||
                           mine.peer == static_cast<int>(i);
    if (!concerned) continue;
    const bool here = m.state == State::kPosted;
    std::string& list = here ? arrived : missing;
    if (!list.empty()) list += ", ";
    list += here ? fmt::format("rank {} ({}, its operation {})", RankOf(i), Describe(m.request),
                               m.sequence)
                 : fmt::format("rank {} (after its operation {})", RankOf(i), m.sequence);
  }
  return RunFailed(fmt::format(
      "communicator {}: {} of rank {} not done within {} s; arrived: {}; not arrived: {}", name_,
      ToString(At(rank).request.op), RankOf(static_cast<size_t>(rank)), world_->options.deadline_s,
      arrived, missing.empty() ? "none" : missing));
}

/// Ends the operation of every waiting member with `why`, and all later ones.
void Core::Break(const Status& why) {
  broken_ = why;
  for (Member& m : members_) {
    if (m.state != State::kPosted) continue;
    m.state = State::kDone;
    m.result = why;
    m.wake.notify_all();
  }
}

void Core::Await(int rank, std::unique_lock<std::mutex>& lock) {
  Member& me = At(rank);
  const auto deadline =
      std::chrono::steady_clock::now() +
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(
          std::chrono::duration<double>(world_->options.deadline_s));
  while (me.state != State::kDone) {
    if (me.state == State::kMoving) {  // a partner uses our buffers: it must finish first
      me.wake.wait(lock);
      continue;
    }
    if (world_->aborted) {
      me.state = State::kDone;
      me.result = world_->Reason();
    } else if (me.wake.wait_until(lock, deadline) == std::cv_status::timeout &&
               me.state == State::kPosted && !world_->aborted) {
      Break(Stuck(rank));
    }
  }
}

Status Core::Run(int rank, const Request& request) {
  MW_RETURN_IF_ERROR(Check(rank, request));
  std::unique_lock lock(mutex_);
  if (world_->aborted) return world_->Reason();
  if (!broken_.ok()) return broken_;
  Member& me = At(rank);
  if (me.state != State::kIdle) {
    return RunFailed(fmt::format(
        "communicator {}: rank {} begins {} while its {} is in flight; operations on one "
        "communicator must be ordered by a stream or by events",
        name_, RankOf(static_cast<size_t>(rank)), Describe(request), Describe(me.request)));
  }
  me.request = request;
  me.state = State::kPosted;
  me.result = Status::Ok();
  ++me.sequence;
  Status problem = Disagreement(rank);
  const std::vector<int> partners = problem.ok() ? Partners(rank) : std::vector<int>();
  if (problem.ok() && partners.empty()) problem = NothingMatches();
  if (!problem.ok()) {
    Break(problem);
  } else if (!partners.empty()) {
    for (int p : partners) At(p).state = State::kMoving;
    lock.unlock();
    Move(partners);
    lock.lock();
    for (int p : partners) {
      At(p).state = State::kDone;
      if (p != rank) At(p).wake.notify_all();
    }
  } else {
    Await(rank, lock);
  }
  me.state = State::kIdle;
  return me.result;
}

std::shared_ptr<Core> Core::TakeSplit(int rank, int* position) {
  const std::lock_guard lock(mutex_);
  *position = At(rank).split_position;
  return std::move(At(rank).split);
}

void CopyBytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void Core::Move(const std::vector<int>& partners) {
  const Request& first = At(partners.front()).request;
  if (!first.message()) return MoveCollective(first);
  const Request& second = At(partners.back()).request;
  const Request& send = first.op == CommOp::kSend ? first : second;
  const Request& recv = first.op == CommOp::kSend ? second : first;
  CopyBytes(recv.out, send.in, send.count * planner::SizeOf(send.dtype));
}

/// Sum over the members' `in` from element `begin` on, put to every target.
void Core::Reduce(int64_t begin, int64_t count, DType dtype,
                  const std::vector<std::byte*>& targets) {
  constexpr int64_t kChunkBytes = 8192;
  alignas(64) std::array<std::byte, kChunkBytes> sum;
  const int64_t size = planner::SizeOf(dtype);
  const int64_t chunk = kChunkBytes / size;
  for (int64_t done = 0; done < count; done += chunk) {
    const int64_t n = std::min(chunk, count - done);
    const int64_t at = (begin + done) * size;
    std::memcpy(sum.data(), members_[0].request.in + at, static_cast<size_t>(n * size));
    for (size_t i = 1; i < members_.size(); ++i) {
      AddElements(sum.data(), members_[i].request.in + at, n, dtype);
    }
    for (std::byte* target : targets) {
      std::memcpy(target + done * size, sum.data(), static_cast<size_t>(n * size));
    }
  }
}

void Core::MoveCollective(const Request& first) {
  const int n = size();
  const int64_t bytes = first.count * planner::SizeOf(first.dtype);
  switch (first.op) {
    case CommOp::kAllReduce: {
      std::vector<std::byte*> targets;
      for (const Member& m : members_) targets.push_back(m.request.out);
      return Reduce(0, first.count, first.dtype, targets);
    }
    case CommOp::kReduceScatter:
      for (int i = 0; i < n; ++i) Reduce(i * first.count, first.count, first.dtype, {At(i).request.out});
      return;
    case CommOp::kAllGather:
      for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) CopyBytes(At(j).request.out + i * bytes, At(i).request.in, bytes);
      }
      return;
    case CommOp::kBroadcast:
      for (int j = 0; j < n; ++j) CopyBytes(At(j).request.out, At(first.peer).request.out, bytes);
      return;
    case CommOp::kAllToAll:
      for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) {
          CopyBytes(At(j).request.out + i * bytes, At(i).request.in + j * bytes, bytes);
        }
      }
      return;
    case CommOp::kSplit:
      return MakeSplits();
    case CommOp::kBarrier:
    case CommOp::kSend:
    case CommOp::kRecv:
      return;
  }
}

void Core::MakeSplits() {
  struct Place {
    int color, key, member;
    bool operator<(const Place& o) const {
      return std::tie(color, key, member) < std::tie(o.color, o.key, o.member);
    }
  };
  std::vector<Place> places;
  for (int i = 0; i < size(); ++i) {
    Member& m = At(i);
    m.split = nullptr;
    if (m.request.color >= 0) places.push_back({m.request.color, m.request.key, i});
  }
  std::sort(places.begin(), places.end());
  for (size_t begin = 0; begin < places.size();) {
    size_t end = begin;
    std::vector<int> ranks;
    for (; end < places.size() && places[end].color == places[begin].color; ++end) {
      ranks.push_back(RankOf(static_cast<size_t>(places[end].member)));
    }
    const Request& request = At(places[begin].member).request;
    const std::shared_ptr<Core> core = MakeCore(world_, *request.name, std::move(ranks));
    for (size_t i = begin; i < end; ++i) {
      At(places[i].member).split = core;
      At(places[i].member).split_position = static_cast<int>(i - begin);
    }
    begin = end;
  }
}

/// One member's end of a Core.
class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Core> core, int rank) : core_(std::move(core)), rank_(rank) {}

  const std::string& name() const override { return core_->name(); }
  int size() const override { return core_->size(); }
  int rank() const override { return rank_; }

  Status AllReduce(std::byte* buffer, int64_t count, DType dtype) override {
    return core_->Run(rank_, {CommOp::kAllReduce, dtype, count, -1, buffer, buffer});
  }
  Status AllGather(const std::byte* in, std::byte* out, int64_t count, DType dtype) override {
    return core_->Run(rank_, {CommOp::kAllGather, dtype, count, -1, in, out});
  }
  Status ReduceScatter(const std::byte* in, std::byte* out, int64_t count, DType dtype) override {
    return core_->Run(rank_, {CommOp::kReduceScatter, dtype, count, -1, in, out});
  }
  Status Broadcast(std::byte* buffer, int64_t count, DType dtype, int root) override {
    return core_->Run(rank_, {CommOp::kBroadcast, dtype, count, root, nullptr, buffer});
  }
  Status AllToAll(const std::byte* in, std::byte* out, int64_t count, DType dtype) override {
    return core_->Run(rank_, {CommOp::kAllToAll, dtype, count, -1, in, out});
  }
  Status Send(const std::byte* buffer, int64_t count, DType dtype, int peer) override {
    return core_->Run(rank_, {CommOp::kSend, dtype, count, peer, buffer, nullptr});
  }
  Status Recv(std::byte* buffer, int64_t count, DType dtype, int peer) override {
    return core_->Run(rank_, {CommOp::kRecv, dtype, count, peer, nullptr, buffer});
  }
  Status Barrier() override { return core_->Run(rank_, {CommOp::kBarrier}); }

  Result<std::unique_ptr<Communicator>> Split(int color, int key, const std::string& name) override {
    Request request{CommOp::kSplit};
    request.color = color;
    request.key = key;
    request.name = &name;
    MW_RETURN_IF_ERROR(core_->Run(rank_, request));
    int position = -1;
    std::shared_ptr<Core> core = core_->TakeSplit(rank_, &position);
    if (core == nullptr) return std::unique_ptr<Communicator>();
    return std::unique_ptr<Communicator>(
        std::make_unique<ThreadCommunicator>(std::move(core), position));
  }

  void Abort(const Status& reason) override { core_->world().Abort(reason); }
  Status abort_reason() const override { return core_->world().Reason(); }

 private:
  const std::shared_ptr<Core> core_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeThreadWorld(int ranks, const CommOptions& options) {
  auto world = std::make_shared<World>();
  world->options = options;
  std::vector<int> all;
  for (int i = 0; i < ranks; ++i) all.push_back(i);
  const std::shared_ptr<Core> core = MakeCore(world, "world", std::move(all));
  std::vector<std::unique_ptr<Communicator>> out;
  for (int i = 0; i < ranks; ++i) out.push_back(std::make_unique<ThreadCommunicator>(core, i));
  return out;
}

}  // namespace meshwright::runtime
