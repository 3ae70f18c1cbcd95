#include "runtime/store_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "runtime/deadline.h"

namespace meshwright::runtime {
namespace {

using planner::DType;

/// What the communicators of one world share.
struct StoreWorld {
  StoreWorld(Store& s, const CommOptions& o) : store(s), options(o) {}

  Store& store;
  const CommOptions options;
  std::mutex mutex;
  Status reason;  // guarded by mutex

  Status Reason() {
    const std::lock_guard lock(mutex);
    return reason;
  }
  Status Remember(const Status& why) {
    const std::lock_guard lock(mutex);
    if (reason.ok()) reason = why;
    return reason;
  }
};

/// Members may differ only in their payload, so the request is compared as text.
struct Request {
  CommOp op;
  int64_t count = 0;
  DType dtype = DType::kF32;
  int root = -1;

  std::string Text() const {
    if (op == CommOp::kBarrier || op == CommOp::kSplit) return ToString(op);
    std::string text = fmt::format("{} of {} {}", ToString(op), count, planner::ToString(dtype));
    if (root >= 0) text += fmt::format(" from member {}", root);
    return text;
  }
};

std::string_view View(const std::byte* data, int64_t bytes) {
  return {reinterpret_cast<const char*>(data), static_cast<size_t>(bytes)};
}

void Copy(std::byte* to, std::string_view from) {
  if (!from.empty()) std::memmove(to, from.data(), from.size());
}

class StoreCommunicator final : public Communicator {
 public:
  StoreCommunicator(std::shared_ptr<StoreWorld> world, std::string name, std::string path,
                    std::vector<int> ranks, int rank)
      : world_(std::move(world)),
        name_(std::move(name)),
        path_(std::move(path)),
        ranks_(std::move(ranks)),
        rank_(rank),
        sent_(ranks_.size(), 0),
        received_(ranks_.size(), 0) {}

  const std::string& name() const override { return name_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  int rank() const override { return rank_; }

  Status AllReduce(std::byte* buffer, int64_t count, DType dtype) override;
  Status AllGather(const std::byte* in, std::byte* out, int64_t count, DType dtype) override;
  Status ReduceScatter(const std::byte* in, std::byte* out, int64_t count, DType dtype) override;
  Status Broadcast(std::byte* buffer, int64_t count, DType dtype, int root) override;
  Status AllToAll(const std::byte* in, std::byte* out, int64_t count, DType dtype) override;
  Status Shift(const std::byte* in, std::byte* out, int64_t count, DType dtype) override;
  Status Send(const std::byte* buffer, int64_t count, DType dtype, int peer) override;
  Status Recv(std::byte* buffer, int64_t count, DType dtype, int peer) override;
  Status Barrier() override { return Exchange({CommOp::kBarrier}, {}).status(); }
  Result<std::unique_ptr<Communicator>> Split(int color, int key, const std::string& name) override;

  void Abort(const Status& reason) override {
    if (!world_->Reason().ok()) return;
    [[maybe_unused]] const Status stands = world_->Remember(PostAbort(world_->store, reason));
  }
  Status abort_reason() const override {
    if (Status known = world_->Reason(); !known.ok()) return known;
    const auto posted = ReadAbort(world_->store);
    if (!posted.ok()) return posted.status();
    return *posted ? world_->Remember(**posted) : Status::Ok();
  }

 private:
  /// One operation at a time, see Communicator.
  class InFlight {
   public:
    explicit InFlight(std::atomic<bool>& busy) : busy_(busy), mine_(!busy.exchange(true)) {}
    ~InFlight() {
      if (mine_) busy_ = false;
    }
    InFlight(const InFlight&) = delete;
    InFlight& operator=(const InFlight&) = delete;
    bool mine() const { return mine_; }

   private:
    std::atomic<bool>& busy_;
    const bool mine_;
  };

  std::string CollectiveKey(int64_t sequence, int member) const {
    return fmt::format("{}/{}/{}", path_, sequence, member);
  }
  int RankOf(int member) const { return ranks_[static_cast<size_t>(member)]; }
  Status Error(const Request& request, const std::string& what) const {
    return RunFailed(fmt::format("communicator {}: {} of rank {}: {}", name_, request.Text(),
                                 RankOf(rank_), what));
  }
  Status Check(const Request& request, const InFlight& in_flight, int peer, bool message) const;
  /// Waits for a key, an abort or the deadline (nullopt).
  Result<std::optional<std::string>> Await(const std::string& key, const Deadline& deadline);
  Status Missing(const Request& request, int64_t sequence);
  /// Gives `payload` to all members and returns theirs, in communicator order.
  Result<std::vector<std::string>> Exchange(const Request& request, std::string_view payload);

  const std::shared_ptr<StoreWorld> world_;
  const std::string name_;
  const std::string path_;  ///< prefix of the keys
  const std::vector<int> ranks_;
  const int rank_;
  std::atomic<bool> busy_{false};
  int64_t sequence_ = 0;  ///< collectives begun
  int64_t splits_ = 0;
  std::vector<int64_t> sent_, received_;  ///< messages by member
};

Status StoreCommunicator::Check(const Request& request, const InFlight& in_flight, int peer,
                                bool message) const {
  MW_RETURN_IF_ERROR(world_->Reason());
  if (!in_flight.mine()) {
    return Error(request,
                 "another operation is in flight; operations on one communicator must be "
                 "ordered by a stream or by events");
  }
  if (request.count < 0 || peer < 0 || peer >= size() || (message && peer == rank_)) {
    return InvalidInput(fmt::format(
        "communicator {}: {} of {} elements with member {}: the count must be >= 0, there are "
        "members 0..{}, and messages go to another one",
        name_, ToString(request.op), request.count, peer, size() - 1));
  }
  return Status::Ok();
}

Result<std::optional<std::string>> StoreCommunicator::Await(const std::string& key,
                                                            const Deadline& deadline) {
  MW_ASSIGN_OR_RETURN(auto found, world_->store.WaitAny({kAbortKey, key}, deadline.left_s()));
  if (!found) return std::optional<std::string>();
  if (found->index == 0) return world_->Remember(DecodeStatus(found->value));
  return std::optional<std::string>(std::move(found->value));
}

Status StoreCommunicator::Missing(const Request& request, int64_t sequence) {
  std::vector<int> missing;
  for (int m = 0; m < size() && missing.size() < 8; ++m) {
    MW_ASSIGN_OR_RETURN(const auto there, world_->store.TryGet(CollectiveKey(sequence, m)));
    if (!there) missing.push_back(RankOf(m));
  }
  return Error(request,
               fmt::format("not done within {} s; not arrived at operation {}: rank {}",
                           world_->options.deadline_s, sequence, fmt::join(missing, ", ")));
}

Result<std::vector<std::string>> StoreCommunicator::Exchange(const Request& request,
                                                             std::string_view payload) {
  const InFlight in_flight(busy_);
  MW_RETURN_IF_ERROR(Check(request, in_flight, std::max(request.root, 0), false));
  const Deadline deadline(world_->options.deadline_s);
  const int64_t sequence = ++sequence_;
  const std::string mine = request.Text();
  std::string value = mine + "\n";
  value += payload;
  MW_RETURN_IF_ERROR(world_->store.Set(CollectiveKey(sequence, rank_), value));
  std::vector<std::string> payloads;
  for (int m = 0; m < size(); ++m) {
    if (m == rank_) {
      payloads.emplace_back(payload);
      continue;
    }
    MW_ASSIGN_OR_RETURN(auto theirs, Await(CollectiveKey(sequence, m), deadline));
    if (!theirs) return Missing(request, sequence);
    const size_t end = theirs->find('\n');
    const std::string text = theirs->substr(0, end);
    if (text != mine || end == std::string::npos) {
      return Error(request,
                   fmt::format("rank {} does {} (both their operation {}); all members must "
                               "ask for the same",
                               RankOf(m), text, sequence));
    }
    payloads.push_back(theirs->substr(end + 1));
  }
  // Whoever has come here has finished the operation before.
  if (sequence > 1) MW_RETURN_IF_ERROR(world_->store.Remove(CollectiveKey(sequence - 1, rank_)));
  return payloads;
}

Status StoreCommunicator::AllReduce(std::byte* buffer, int64_t count, DType dtype) {
  MW_RETURN_IF_ERROR(CheckSummable(dtype, name_));
  const int64_t bytes = std::max<int64_t>(count, 0) * planner::SizeOf(dtype);
  MW_ASSIGN_OR_RETURN(const auto all,
                      Exchange({CommOp::kAllReduce, count, dtype}, View(buffer, bytes)));
  for (size_t m = 0; m < all.size(); ++m) {
    if (static_cast<int64_t>(all[m].size()) != bytes) return RunFailed("a message of wrong size");
    if (m == 0) {
      Copy(buffer, all[m]);
    } else {
      AddElements(buffer, reinterpret_cast<const std::byte*>(all[m].data()), count, dtype);
    }
  }
  return Status::Ok();
}

Status StoreCommunicator::AllGather(const std::byte* in, std::byte* out, int64_t count,
                                    DType dtype) {
  const int64_t bytes = std::max<int64_t>(count, 0) * planner::SizeOf(dtype);
  MW_ASSIGN_OR_RETURN(const auto all,
                      Exchange({CommOp::kAllGather, count, dtype}, View(in, bytes)));
  for (size_t m = 0; m < all.size(); ++m) {
    if (static_cast<int64_t>(all[m].size()) != bytes) return RunFailed("a message of wrong size");
    Copy(out + static_cast<int64_t>(m) * bytes, all[m]);
  }
  return Status::Ok();
}

Status StoreCommunicator::ReduceScatter(const std::byte* in, std::byte* out, int64_t count,
                                        DType dtype) {
  MW_RETURN_IF_ERROR(CheckSummable(dtype, name_));
  const int64_t bytes = std::max<int64_t>(count, 0) * planner::SizeOf(dtype);
  MW_ASSIGN_OR_RETURN(const auto all,
                      Exchange({CommOp::kReduceScatter, count, dtype}, View(in, bytes * size())));
  for (size_t m = 0; m < all.size(); ++m) {
    if (static_cast<int64_t>(all[m].size()) != bytes * size()) {
      return RunFailed("a message of wrong size");
    }
    const char* slice = all[m].data() + rank_ * bytes;
    if (m == 0) {
      Copy(out, {slice, static_cast<size_t>(bytes)});
    } else {
      // `slice` may lie at any address; sums need aligned elements.
      std::vector<double> aligned(static_cast<size_t>((bytes + 7) / 8));
      if (bytes > 0) std::memcpy(aligned.data(), slice, static_cast<size_t>(bytes));
      AddElements(out, reinterpret_cast<const std::byte*>(aligned.data()), count, dtype);
    }
  }
  return Status::Ok();
}

Status StoreCommunicator::Broadcast(std::byte* buffer, int64_t count, DType dtype, int root) {
  const int64_t bytes = std::max<int64_t>(count, 0) * planner::SizeOf(dtype);
  const bool gives = rank_ == root;
  if (root < 0 || root >= size()) {
    return InvalidInput(
        fmt::format("communicator {}: broadcast from member {}: there are members "
                    "0..{}",
                    name_, root, size() - 1));
  }
  MW_ASSIGN_OR_RETURN(const auto all, Exchange({CommOp::kBroadcast, count, dtype, root},
                                               View(buffer, gives ? bytes : 0)));
  const std::string& given = all[static_cast<size_t>(root)];
  if (static_cast<int64_t>(given.size()) != bytes) return RunFailed("a message of wrong size");
  if (!gives) Copy(buffer, given);
  return Status::Ok();
}

Status StoreCommunicator::AllToAll(const std::byte* in, std::byte* out, int64_t count,
                                   DType dtype) {
  const int64_t bytes = std::max<int64_t>(count, 0) * planner::SizeOf(dtype);
  MW_ASSIGN_OR_RETURN(const auto all,
                      Exchange({CommOp::kAllToAll, count, dtype}, View(in, bytes * size())));
  for (size_t m = 0; m < all.size(); ++m) {
    if (static_cast<int64_t>(all[m].size()) != bytes * size()) {
      return RunFailed("a message of wrong size");
    }
    Copy(out + static_cast<int64_t>(m) * bytes,
         std::string_view(all[m]).substr(static_cast<size_t>(rank_ * bytes),
                                         static_cast<size_t>(bytes)));
  }
  return Status::Ok();
}

Status StoreCommunicator::Shift(const std::byte* in, std::byte* out, int64_t count, DType dtype) {
  const int64_t bytes = std::max<int64_t>(count, 0) * planner::SizeOf(dtype);
  MW_ASSIGN_OR_RETURN(const auto all, Exchange({CommOp::kShift, count, dtype}, View(in, bytes)));
  const std::string& theirs = all[static_cast<size_t>(MemberBefore(rank_, size()))];
  if (static_cast<int64_t>(theirs.size()) != bytes) return RunFailed("a message of wrong size");
  Copy(out, theirs);
  return Status::Ok();
}

/// The receiver answers with what it expected; both ends compare.
Status StoreCommunicator::Send(const std::byte* buffer, int64_t count, DType dtype, int peer) {
  const InFlight in_flight(busy_);
  const Request request{CommOp::kSend, count, dtype};
  MW_RETURN_IF_ERROR(Check(request, in_flight, peer, true));
  const Deadline deadline(world_->options.deadline_s);
  const std::string key =
      fmt::format("{}/m/{}>{}/{}", path_, rank_, peer, ++sent_[static_cast<size_t>(peer)]);
  const std::string mine = Request{CommOp::kRecv, count, dtype}.Text();
  std::string value = request.Text() + "\n";
  value += View(buffer, count * planner::SizeOf(dtype));
  MW_RETURN_IF_ERROR(world_->store.Set(key, value));
  MW_ASSIGN_OR_RETURN(const auto answer, Await(key + "/done", deadline));
  if (!answer) {
    return Error(request, fmt::format("not done within {} s; not arrived: rank {}",
                                      world_->options.deadline_s, RankOf(peer)));
  }
  MW_RETURN_IF_ERROR(world_->store.Remove(key + "/done"));
  if (*answer == mine) return Status::Ok();
  return Error(request,
               fmt::format("rank {} does {}; both must ask for the same", RankOf(peer), *answer));
}

Status StoreCommunicator::Recv(std::byte* buffer, int64_t count, DType dtype, int peer) {
  const InFlight in_flight(busy_);
  const Request request{CommOp::kRecv, count, dtype};
  MW_RETURN_IF_ERROR(Check(request, in_flight, peer, true));
  const Deadline deadline(world_->options.deadline_s);
  const std::string key =
      fmt::format("{}/m/{}>{}/{}", path_, peer, rank_, ++received_[static_cast<size_t>(peer)]);
  MW_ASSIGN_OR_RETURN(const auto message, Await(key, deadline));
  if (!message) {
    return Error(request, fmt::format("not done within {} s; not arrived: rank {}",
                                      world_->options.deadline_s, RankOf(peer)));
  }
  MW_RETURN_IF_ERROR(world_->store.Remove(key));
  const size_t end = std::min(message->find('\n'), message->size());
  const std::string theirs = message->substr(0, end);
  const bool agree = theirs == Request{CommOp::kSend, count, dtype}.Text();
  if (agree) Copy(buffer, std::string_view(*message).substr(std::min(end + 1, message->size())));
  MW_RETURN_IF_ERROR(world_->store.Set(key + "/done", request.Text()));
  if (agree) return Status::Ok();
  return Error(request,
               fmt::format("rank {} does {}; both must ask for the same", RankOf(peer), theirs));
}

Result<std::unique_ptr<Communicator>> StoreCommunicator::Split(int color, int key,
                                                               const std::string& name) {
  const std::string mine = fmt::format("{} {}", color, key);
  MW_ASSIGN_OR_RETURN(const auto all, Exchange({CommOp::kSplit}, mine));
  const int64_t split = ++splits_;
  if (color < 0) return std::unique_ptr<Communicator>();
  std::vector<std::pair<int, int>> places;  // key, member
  for (size_t m = 0; m < all.size(); ++m) {
    int their_color = 0;
    int their_key = 0;
    if (std::sscanf(all[m].c_str(), "%d %d", &their_color, &their_key) != 2) {
      return RunFailed(fmt::format("communicator {}: split: '{}' from rank {} makes no sense",
                                   name_, all[m], RankOf(static_cast<int>(m))));
    }
    if (their_color == color) places.emplace_back(their_key, static_cast<int>(m));
  }
  std::sort(places.begin(), places.end());
  std::vector<int> ranks;
  int position = -1;
  for (const auto& [their_key, member] : places) {
    if (member == rank_) position = static_cast<int>(ranks.size());
    ranks.push_back(RankOf(member));
  }
  return std::unique_ptr<Communicator>(std::make_unique<StoreCommunicator>(
      world_, name, fmt::format("{}/s{}.{}", path_, split, color), std::move(ranks), position));
}

}  // namespace

std::unique_ptr<Communicator> MakeStoreWorld(Store& store, const CommOptions& options) {
  std::vector<int> ranks;
  for (int r = 0; r < store.world(); ++r) ranks.push_back(r);
  return std::make_unique<StoreCommunicator>(std::make_shared<StoreWorld>(store, options), "world",
                                             "comm", std::move(ranks), store.rank());
}

}  // namespace meshwright::runtime
