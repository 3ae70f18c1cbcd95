#include "runtime/mpi_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "runtime/mpi_exchange.h"

namespace meshwright::runtime {
namespace {

using planner::DType;

constexpr int64_t kOneOwnerBytes = int64_t{1} << 16;  // sums up to this go through member 0

std::byte* Mutable(const std::byte* p) {
  return const_cast<std::byte*>(p);
}

void CopyBytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

/// Marks a communicator as busy, or says that it is.
class InFlight {
 public:
  explicit InFlight(std::atomic<bool>& flag) : flag_(flag), mine_(!flag.exchange(true)) {}
  ~InFlight() {
    if (mine_) flag_ = false;
  }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;
  bool mine() const { return mine_; }

 private:
  std::atomic<bool>& flag_;
  const bool mine_;
};

/// The operations, made of messages.
class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(std::unique_ptr<MpiExchange> exchange)
      : exchange_(std::move(exchange)), rank_(exchange_->rank()) {}

  const std::string& name() const override { return exchange_->name(); }
  int size() const override { return static_cast<int>(exchange_->ranks().size()); }
  int rank() const override { return rank_; }

  Status AllReduce(std::byte* buffer, int64_t count, DType dtype) override;
  Status AllGather(const std::byte* in, std::byte* out, int64_t count, DType dtype) override;
  Status ReduceScatter(const std::byte* in, std::byte* out, int64_t count, DType dtype) override;
  Status Broadcast(std::byte* buffer, int64_t count, DType dtype, int root) override;
  Status AllToAll(const std::byte* in, std::byte* out, int64_t count, DType dtype) override;
  Status Shift(const std::byte* in, std::byte* out, int64_t count, DType dtype) override;
  Status Send(const std::byte* buffer, int64_t count, DType dtype, int peer) override;
  Status Recv(std::byte* buffer, int64_t count, DType dtype, int peer) override;
  Status Barrier() override;
  Result<std::unique_ptr<Communicator>> Split(int color, int key, const std::string& name) override;

  void Abort(const Status& reason) override { exchange_->Abort(reason); }
  Status abort_reason() const override { return exchange_->Reason(); }

 private:
  Status Begin(CommOp op, const InFlight& in_flight, int64_t count, int peer);
  Status SumPieces(CommOp op, const std::byte* in, std::byte* out, DType dtype,
                   const std::vector<int64_t>& bounds);
  Status Exchange(const MpiTag& tag, const std::vector<MpiTransfer>& sends,
                  const std::vector<MpiTransfer>& receives) {
    return exchange_->Run(tag, sends, receives, sequence_);
  }
  std::vector<int> Others() const;

  const std::unique_ptr<MpiExchange> exchange_;
  const int rank_;
  int64_t sequence_ = 0;
  std::atomic<bool> busy_{false};
  std::vector<std::byte> received_;  ///< contributions to a sum, one a member
};

/// The other members, from the next one on, so that not everybody begins with member 0.
std::vector<int> MpiCommunicator::Others() const {
  std::vector<int> others;
  for (int i = 1; i < size(); ++i) others.push_back((rank_ + i) % size());
  return others;
}

Status MpiCommunicator::Begin(CommOp op, const InFlight& in_flight, int64_t count, int peer) {
  if (exchange_->aborted()) return exchange_->Reason();
  if (!in_flight.mine()) {
    return RunFailed(fmt::format(
        "communicator {}: rank {} begins {} while another operation is in flight; operations on "
        "one communicator must be ordered by a stream or by events",
        name(), exchange_->ranks()[static_cast<size_t>(rank_)], ToString(op)));
  }
  const bool message = op == CommOp::kSend || op == CommOp::kRecv;
  if (count < 0 || peer < 0 || peer >= size() || (message && peer == rank_)) {
    return InvalidInput(fmt::format(
        "communicator {}: {} of {} elements with member {}: the count must be >= 0, there are "
        "members 0..{}, and messages go to another one",
        name(), ToString(op), count, peer, size() - 1));
  }
  ++sequence_;
  return Status::Ok();
}

/// Sums piece i = elements bounds[i] .. bounds[i+1] of all members on member i, in member order.
/// The caller's piece, if it has one, lands at `out`; `in` is not changed unless `out` lies in it.
Status MpiCommunicator::SumPieces(CommOp op, const std::byte* in, std::byte* out, DType dtype,
                                  const std::vector<int64_t>& bounds) {
  const int64_t size = planner::SizeOf(dtype);
  const auto owners = static_cast<int>(bounds.size()) - 1;
  const auto piece = [&](int i) {
    const auto at = static_cast<size_t>(i);
    return MpiTransfer{i, Mutable(in) + bounds[at] * size, (bounds[at + 1] - bounds[at]) * size};
  };
  std::vector<MpiTransfer> sends;
  std::vector<MpiTransfer> receives;
  const bool owner = rank_ < owners;
  const int64_t bytes = owner ? piece(rank_).bytes : 0;
  received_.resize(std::max(received_.size(), static_cast<size_t>(bytes * this->size())));
  for (int other : Others()) {
    if (other < owners) sends.push_back(piece(other));
    if (owner) receives.push_back({other, received_.data() + other * bytes, bytes});
  }
  MW_RETURN_IF_ERROR(Exchange({op, dtype, 0}, sends, receives));
  if (!owner) return Status::Ok();
  const std::byte* own = piece(rank_).buffer;
  std::byte* sum = rank_ == 0 ? out : received_.data();
  if (rank_ == 0) CopyBytes(out, own, bytes);
  for (int i = 1; i < this->size(); ++i) {
    AddElements(sum, i == rank_ ? own : received_.data() + i * bytes, bytes / size, dtype);
  }
  CopyBytes(out, sum, bytes);
  return Status::Ok();
}

Status MpiCommunicator::AllReduce(std::byte* buffer, int64_t count, DType dtype) {
  const InFlight in_flight(busy_);
  MW_RETURN_IF_ERROR(Begin(CommOp::kAllReduce, in_flight, count, 0));
  MW_RETURN_IF_ERROR(CheckSummable(dtype, name()));
  if (size() == 1) return Status::Ok();
  const int64_t bytes = count * planner::SizeOf(dtype);
  const int owners = bytes <= kOneOwnerBytes ? 1 : size();
  std::vector<int64_t> bounds;
  for (int i = 0; i <= owners; ++i) bounds.push_back(count * i / owners);
  const auto piece = [&](int i) {
    const auto at = static_cast<size_t>(i);
    return MpiTransfer{0, buffer + bounds[at] * planner::SizeOf(dtype),
                       (bounds[at + 1] - bounds[at]) * planner::SizeOf(dtype)};
  };
  std::byte* mine = rank_ < owners ? piece(rank_).buffer : nullptr;
  MW_RETURN_IF_ERROR(SumPieces(CommOp::kAllReduce, buffer, mine, dtype, bounds));
  std::vector<MpiTransfer> sends;
  std::vector<MpiTransfer> receives;
  for (int other : Others()) {
    if (rank_ < owners) {
      sends.push_back(piece(rank_));
      sends.back().peer = other;
    }
    if (other < owners) {
      receives.push_back(piece(other));
      receives.back().peer = other;
    }
  }
  return Exchange({CommOp::kAllReduce, dtype, 1}, sends, receives);
}

Status MpiCommunicator::ReduceScatter(const std::byte* in, std::byte* out, int64_t count,
                                      DType dtype) {
  const InFlight in_flight(busy_);
  MW_RETURN_IF_ERROR(Begin(CommOp::kReduceScatter, in_flight, count, 0));
  MW_RETURN_IF_ERROR(CheckSummable(dtype, name()));
  std::vector<int64_t> bounds;
  for (int i = 0; i <= size(); ++i) bounds.push_back(count * i);
  return SumPieces(CommOp::kReduceScatter, in, out, dtype, bounds);
}

Status MpiCommunicator::AllGather(const std::byte* in, std::byte* out, int64_t count, DType dtype) {
  const InFlight in_flight(busy_);
  MW_RETURN_IF_ERROR(Begin(CommOp::kAllGather, in_flight, count, 0));
  const int64_t bytes = count * planner::SizeOf(dtype);
  CopyBytes(out + rank_ * bytes, in, bytes);
  std::vector<MpiTransfer> sends;
  std::vector<MpiTransfer> receives;
  for (int other : Others()) {
    sends.push_back({other, Mutable(in), bytes});
    receives.push_back({other, out + other * bytes, bytes});
  }
  return Exchange({CommOp::kAllGather, dtype, 0}, sends, receives);
}

Status MpiCommunicator::Broadcast(std::byte* buffer, int64_t count, DType dtype, int root) {
  const InFlight in_flight(busy_);
  MW_RETURN_IF_ERROR(Begin(CommOp::kBroadcast, in_flight, count, root));
  const int64_t bytes = count * planner::SizeOf(dtype);
  if (rank_ != root) return Exchange({CommOp::kBroadcast, dtype, 0}, {}, {{root, buffer, bytes}});
  std::vector<MpiTransfer> sends;
  for (int other : Others()) sends.push_back({other, buffer, bytes});
  return Exchange({CommOp::kBroadcast, dtype, 0}, sends, {});
}

Status MpiCommunicator::AllToAll(const std::byte* in, std::byte* out, int64_t count, DType dtype) {
  const InFlight in_flight(busy_);
  MW_RETURN_IF_ERROR(Begin(CommOp::kAllToAll, in_flight, count, 0));
  const int64_t bytes = count * planner::SizeOf(dtype);
  CopyBytes(out + rank_ * bytes, in + rank_ * bytes, bytes);
  std::vector<MpiTransfer> sends;
  std::vector<MpiTransfer> receives;
  for (int other : Others()) {
    sends.push_back({other, Mutable(in) + other * bytes, bytes});
    receives.push_back({other, out + other * bytes, bytes});
  }
  return Exchange({CommOp::kAllToAll, dtype, 0}, sends, receives);
}

Status MpiCommunicator::Shift(const std::byte* in, std::byte* out, int64_t count, DType dtype) {
  const InFlight in_flight(busy_);
  MW_RETURN_IF_ERROR(Begin(CommOp::kShift, in_flight, count, 0));
  const int64_t bytes = count * planner::SizeOf(dtype);
  return Exchange({CommOp::kShift, dtype, 0}, {{NextMember(rank_, size()), Mutable(in), bytes}},
                  {{MemberBefore(rank_, size()), out, bytes}});
}

Status MpiCommunicator::Send(const std::byte* buffer, int64_t count, DType dtype, int peer) {
  const InFlight in_flight(busy_);
  MW_RETURN_IF_ERROR(Begin(CommOp::kSend, in_flight, count, peer));
  const int64_t bytes = count * planner::SizeOf(dtype);
  return Exchange({CommOp::kSend, dtype, 0}, {{peer, Mutable(buffer), bytes}}, {});
}

Status MpiCommunicator::Recv(std::byte* buffer, int64_t count, DType dtype, int peer) {
  const InFlight in_flight(busy_);
  MW_RETURN_IF_ERROR(Begin(CommOp::kRecv, in_flight, count, peer));
  // The tag says what the sender does.
  return Exchange({CommOp::kSend, dtype, 0}, {}, {{peer, buffer, count * planner::SizeOf(dtype)}});
}

Status MpiCommunicator::Barrier() {
  const InFlight in_flight(busy_);
  MW_RETURN_IF_ERROR(Begin(CommOp::kBarrier, in_flight, 0, 0));
  if (rank_ != 0) {
    MW_RETURN_IF_ERROR(Exchange({CommOp::kBarrier, DType::kI64, 0}, {{0}}, {}));
    return Exchange({CommOp::kBarrier, DType::kI64, 1}, {}, {{0}});
  }
  std::vector<MpiTransfer> others;
  for (int other : Others()) others.push_back({other});
  MW_RETURN_IF_ERROR(Exchange({CommOp::kBarrier, DType::kI64, 0}, {}, others));
  return Exchange({CommOp::kBarrier, DType::kI64, 1}, others, {});
}

Result<std::unique_ptr<Communicator>> MpiCommunicator::Split(int color, int key,
                                                             const std::string& name) {
  MW_RETURN_IF_ERROR(Barrier());  // it has a deadline, the split has none
  MW_ASSIGN_OR_RETURN(auto made, exchange_->Split(color, key, name));
  if (made == nullptr) return std::unique_ptr<Communicator>();
  return std::unique_ptr<Communicator>(std::make_unique<MpiCommunicator>(std::move(made)));
}

}  // namespace

bool MpiSession::Available() {
  return true;
}

bool MpiSession::Launched() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(variable) != nullptr) return true;
  }
  return false;
}

Result<std::unique_ptr<MpiSession>> MpiSession::Start(const CommOptions& options) {
  MW_ASSIGN_OR_RETURN(auto exchange, MpiExchange::Start(options));
  return std::unique_ptr<MpiSession>(
      new MpiSession(std::make_unique<MpiCommunicator>(std::move(exchange))));
}

MpiSession::MpiSession(std::unique_ptr<Communicator> world) : world_(std::move(world)) {}

MpiSession::~MpiSession() {
  world_.reset();
  MpiExchange::Finalize();
}

}  // namespace meshwright::runtime
