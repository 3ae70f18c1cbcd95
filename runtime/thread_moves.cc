// How a ThreadCore moves data once its members have met.
#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

#include "runtime/thread_core.h"

namespace meshwright::runtime {
namespace {

void CopyBytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

void ThreadCore::Move(const std::vector<int>& partners) {
  const ThreadRequest& first = At(partners.front()).request;
  if (!first.message()) return MoveCollective(first);
  const ThreadRequest& second = At(partners.back()).request;
  const ThreadRequest& send = first.op == CommOp::kSend ? first : second;
  const ThreadRequest& recv = first.op == CommOp::kSend ? second : first;
  CopyBytes(recv.out, send.in, send.count * planner::SizeOf(send.dtype));
}

/// Sum over the members' `in` from element `begin` on, put to every target.
void ThreadCore::Reduce(int64_t begin, int64_t count, planner::DType dtype,
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

void ThreadCore::MoveCollective(const ThreadRequest& first) {
  const int n = size();
  const int64_t bytes = first.count * planner::SizeOf(first.dtype);
  switch (first.op) {
    case CommOp::kAllReduce: {
      std::vector<std::byte*> targets;
      for (const Member& m : members_) targets.push_back(m.request.out);
      return Reduce(0, first.count, first.dtype, targets);
    }
    case CommOp::kReduceScatter:
      for (int i = 0; i < n; ++i)
        Reduce(i * first.count, first.count, first.dtype, {At(i).request.out});
      return;
    case CommOp::kAllGather:
      for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j)
          CopyBytes(At(j).request.out + i * bytes, At(i).request.in, bytes);
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
    case CommOp::kShift:
      for (int i = 0; i < size(); ++i) {
        CopyBytes(At(NextMember(i, size())).request.out, At(i).request.in, bytes);
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

void ThreadCore::MakeSplits() {
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
    const ThreadRequest& request = At(places[begin].member).request;
    const std::shared_ptr<ThreadCore> core =
        MakeThreadCore(world_, *request.name, std::move(ranks));
    for (size_t i = begin; i < end; ++i) {
      At(places[i].member).split = core;
      At(places[i].member).split_position = static_cast<int>(i - begin);
    }
    begin = end;
  }
}

}  // namespace meshwright::runtime
