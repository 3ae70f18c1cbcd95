#include "runtime/thread_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace meshwright::runtime {
namespace {

bool Agree(const ThreadRequest& a, const ThreadRequest& b) {
  return a.op == b.op && a.dtype == b.dtype && a.count == b.count && a.peer == b.peer;
}

std::string Describe(const ThreadRequest& r) {
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

}  // namespace

void ThreadWorld::Abort(const Status& why) {
  std::vector<std::weak_ptr<ThreadCore>> all;
  {
    const std::lock_guard lock(mutex);
    if (!reason.ok()) return;
    reason = why.ok() ? RunFailed("aborted") : why;
    aborted = true;
    all = cores;
  }
  for (const std::weak_ptr<ThreadCore>& weak : all) {
    if (const std::shared_ptr<ThreadCore> core = weak.lock()) core->Wake();
  }
}

std::shared_ptr<ThreadCore> MakeThreadCore(const std::shared_ptr<ThreadWorld>& world,
                                           std::string name, std::vector<int> ranks) {
  auto core = std::make_shared<ThreadCore>(world, std::move(name), std::move(ranks));
  const std::lock_guard lock(world->mutex);
  world->cores.push_back(core);
  return core;
}

Status ThreadCore::Check(int rank, const ThreadRequest& r) const {
  if (r.count < 0) {
    return InvalidInput(
        fmt::format("communicator {}: {}: the count must be >= 0", name_, Describe(r)));
  }
  if (r.op == CommOp::kAllReduce || r.op == CommOp::kReduceScatter) {
    MW_RETURN_IF_ERROR(CheckSummable(r.dtype, name_));
  }
  const bool needs_peer = r.message() || r.op == CommOp::kBroadcast;
  if (needs_peer && (r.peer < 0 || r.peer >= size() || (r.message() && r.peer == rank))) {
    return InvalidInput(
        fmt::format("communicator {}: {} by member {}: there are members 0..{}, and "
                    "messages go to another one",
                    name_, Describe(r), rank, size() - 1));
  }
  return Status::Ok();
}

/// Compares the new request of `rank` with those of the members that wait: collectives must be
/// equal, and a message must be what its partner expects.
Status ThreadCore::Disagreement(int rank) {
  const ThreadRequest& mine = At(rank).request;
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& other = members_[i];
    if (static_cast<int>(i) == rank || other.state != State::kPosted) continue;
    const ThreadRequest& r = other.request;
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
std::vector<int> ThreadCore::Partners(int rank) {
  const ThreadRequest& mine = At(rank).request;
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
Status ThreadCore::NothingMatches() {
  std::string text;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].state != State::kPosted) return Status::Ok();
    text += fmt::format("{}rank {} does {}", i == 0 ? "" : ", ", RankOf(i),
                        Describe(members_[i].request));
  }
  return RunFailed(fmt::format("communicator {}: no operation meets its partner: {}", name_, text));
}

Status ThreadCore::Stuck(int rank) {
  std::string arrived;
  std::string missing;
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& m = members_[i];
    const ThreadRequest& mine = At(rank).request;
    const bool concerned =
        static_cast<int>(i) == rank || !mine.message() || mine.peer == static_cast<int>(i);
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
void ThreadCore::Break(const Status& why) {
  broken_ = why;
  for (Member& m : members_) {
    if (m.state != State::kPosted) continue;
    m.state = State::kDone;
    m.result = why;
    m.wake.notify_all();
  }
}

void ThreadCore::Await(int rank, std::unique_lock<std::mutex>& lock) {
  Member& me = At(rank);
  const auto deadline = std::chrono::steady_clock::now() +
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

Status ThreadCore::Run(int rank, const ThreadRequest& request) {
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

std::shared_ptr<ThreadCore> ThreadCore::TakeSplit(int rank, int* position) {
  const std::lock_guard lock(mutex_);
  *position = At(rank).split_position;
  return std::move(At(rank).split);
}

}  // namespace meshwright::runtime
