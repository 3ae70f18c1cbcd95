#include "runtime/cuda/peer_channel.h"

#include <cuda.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "runtime/cuda/cuda_device.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::DType;
using planner::OpKind;
using planner::PeerCarrier;

// Places of the counters, in bytes.
constexpr int64_t kMeetAt = 0;    // of copies: the next rank's memory is free
constexpr int64_t kPartAt = 128;  // of copies: data of the rank before has come
constexpr int64_t kBlocksMeetAt = 256, kBlocksPartAt = 384;  // of kernels
// Messages that lie in the ring; that the partner has taken from its own.
constexpr int64_t kPostedAt = 512, kTakenAt = 640;
constexpr int64_t kArrivedAt = 768;  // blocks of a kernel; of the own device alone
static_assert(kBlocksMeetAt + kMostPeerBlocks * sizeof(uint32_t) <= kBlocksPartAt);
static_assert(kBlocksPartAt + kMostPeerBlocks * sizeof(uint32_t) <= kPostedAt);
static_assert(kArrivedAt + sizeof(uint32_t) <= PeerChannel::kCounterBytes);

uint32_t* CounterAt(std::byte* mailbox, int64_t offset) {
  return reinterpret_cast<uint32_t*>(mailbox + offset);
}

/// The driver's operations on memory in stream order, for which the runtime library has no calls.
struct StreamMemoryOps {
  using Function = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
  Function write = nullptr;
  Function wait = nullptr;
};

Result<StreamMemoryOps> FindStreamMemoryOps() {
  StreamMemoryOps ops;
  constexpr unsigned kVersion = 12000;
  const auto find = [](const char* name, StreamMemoryOps::Function* to) -> Status {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found{};
    MW_CUDA_CALL(
        cudaGetDriverEntryPointByVersion(name, &address, kVersion, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess || address == nullptr) {
      return RunFailed(std::string("the driver has no ") + name +
                       "; pass --peer-copies off or install a driver of CUDA 12 or later");
    }
    *to = reinterpret_cast<StreamMemoryOps::Function>(address);
    return Status::Ok();
  };
  MW_RETURN_IF_ERROR(find("cuStreamWriteValue32", &ops.write));
  MW_RETURN_IF_ERROR(find("cuStreamWaitValue32", &ops.wait));
  return ops;
}

/// Of the driver: the same for all, looked for once.
const Result<StreamMemoryOps>& DriverStreamMemoryOps() {
  static const Result<StreamMemoryOps> ops = FindStreamMemoryOps();
  return ops;
}

Status DriverStatus(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return Status::Ok();
  return RunFailed(std::string(call) + ": CUDA driver error " +
                   std::to_string(static_cast<int>(result)));
}

Status CopyOnDevice(std::byte* to, const std::byte* from, int64_t bytes, cudaStream_t stream) {
  MW_CUDA_CALL(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream));
  return Status::Ok();
}

}  // namespace

Status CheckStreamMemoryOps() {
  return DriverStreamMemoryOps().ok() ? Status::Ok() : DriverStreamMemoryOps().status();
}

void PeerChannel::Follow(std::vector<PeerOp> ops, const PeerRoutes& routes) {
  ops_ = std::move(ops);
  routes_ = routes;
  next_ = 0;
}

Result<PeerOp> PeerChannel::Next(OpKind kind, int64_t bytes) {
  if (next_ >= ops_.size()) next_ = 0;  // the next step
  if (ops_.empty() || ops_[next_].kind != kind || ops_[next_].bytes != bytes) {
    const bool known = !ops_.empty();
    return RunFailed(fmt::format(
        "peer copies: operation {} of a step is {} of {} bytes, expected {} of {} bytes; pass "
        "--peer-copies off",
        next_, planner::ToString(kind), bytes, known ? planner::ToString(ops_[next_].kind) : "none",
        known ? ops_[next_].bytes : 0));
  }
  return ops_[next_++];
}

Status PeerChannel::Publish(uint32_t value, std::byte* mailbox, int64_t counter,
                            cudaStream_t stream) const {
  MW_ASSIGN_OR_RETURN(const StreamMemoryOps ops, DriverStreamMemoryOps());
  const auto at = reinterpret_cast<CUdeviceptr>(mailbox + counter);
  return DriverStatus(ops.write(stream, at, value, CU_STREAM_WRITE_VALUE_DEFAULT),
                      "cuStreamWriteValue32");
}

Status PeerChannel::Await(uint32_t value, int64_t counter, cudaStream_t stream) const {
  MW_ASSIGN_OR_RETURN(const StreamMemoryOps ops, DriverStreamMemoryOps());
  const auto at = reinterpret_cast<CUdeviceptr>(ends_.own_mailbox + counter);
  return DriverStatus(ops.wait(stream, at, value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
}

/// Each rank's memory is free for what the one before sends.
Status PeerChannel::Meet(cudaStream_t stream) {
  ++met_;
  MW_RETURN_IF_ERROR(Publish(met_, ends_.before_mailbox, kMeetAt, stream));
  return Await(met_, kMeetAt, stream);
}

/// What the ranks sent has come.
Status PeerChannel::Part(cudaStream_t stream) {
  ++parted_;
  MW_RETURN_IF_ERROR(Publish(parted_, ends_.their_mailbox, kPartAt, stream));
  return Await(parted_, kPartAt, stream);
}

PeerTurn PeerChannel::NextTurn() {
  return {CounterAt(ends_.own_mailbox, kBlocksMeetAt),
          CounterAt(ends_.own_mailbox, kBlocksPartAt),
          CounterAt(ends_.before_mailbox, kBlocksMeetAt),
          CounterAt(ends_.their_mailbox, kBlocksPartAt),
          ++turn_,
          planner::PeerKernelCtas(routes_.group)};
}

/// Two in turns: who writes into one has met the partner since that read it.
Landings PeerChannel::NextLandings() {
  const int64_t at = kCounterBytes + slot_++ % 2 * (kMostSmallSumBytes / 2);
  return {ends_.own_mailbox + at, ends_.their_mailbox + at};
}

Status PeerChannel::Push(const std::byte* from, std::byte* their_out, std::byte* out, int64_t bytes,
                         PeerCarrier carrier, cudaStream_t stream) {
  if (carrier == PeerCarrier::kKernels) {
    return PeerPush(from, their_out, out, bytes, NextTurn(), stream);
  }
  MW_RETURN_IF_ERROR(Meet(stream));
  MW_RETURN_IF_ERROR(CopyOnDevice(their_out, from, bytes, stream));
  MW_RETURN_IF_ERROR(Part(stream));
  return out == nullptr ? Status::Ok() : CopyOnDevice(out, from, bytes, stream);
}

/// Each rank sums a half of the buffer, for both.
Status PeerChannel::AllReduce(std::byte* buffer, int64_t count, DType dtype, cudaStream_t stream) {
  const int64_t bytes = count * planner::SizeOf(dtype);
  MW_ASSIGN_OR_RETURN(const PeerOp op, Next(OpKind::kAllReduce, bytes));
  const int64_t half = ends_.position * bytes / 2;
  std::byte* const own = buffer + half;
  std::byte* const theirs = ends_.their_arena + op.theirs + half;
  return PeerSum(own, theirs, own, theirs, count / 2, dtype, NextTurn(), stream);
}

/// Each rank's own slice first; what has come goes on until all have it.
Status PeerChannel::AllGather(const std::byte* in, std::byte* out, int64_t bytes, DType dtype,
                              cudaStream_t stream) {
  MW_ASSIGN_OR_RETURN(const PeerOp op, Next(OpKind::kAllGather, ends_.ranks * bytes));
  std::byte* const theirs = ends_.their_arena + op.theirs;
  const auto slice = [&](int hops) {
    return (ends_.position + ends_.ranks - hops) % ends_.ranks * bytes;
  };
  std::byte* const own_out = in == out + slice(0) ? nullptr : out + slice(0);
  MW_RETURN_IF_ERROR(
      Push(in, theirs + slice(0), own_out, bytes, routes_.Of(op.kind, op.bytes, dtype), stream));
  for (int hop = 1; hop + 1 < ends_.ranks; ++hop) {
    MW_RETURN_IF_ERROR(CopyOnDevice(theirs + slice(hop), out + slice(hop), bytes, stream));
    MW_RETURN_IF_ERROR(Part(stream));
  }
  return Status::Ok();
}

Status PeerChannel::ReduceScatter(const std::byte* in, std::byte* out, int64_t count, DType dtype,
                                  cudaStream_t stream) {
  const int64_t bytes = count * planner::SizeOf(dtype);
  MW_ASSIGN_OR_RETURN(const PeerOp op, Next(OpKind::kReduceScatter, 2 * bytes));
  if (2 * bytes <= kMostSmallSumBytes && ends_.own_ring_bytes == 0) {
    return PeerSmallSum(in + ends_.position * bytes, in + (1 - ends_.position) * bytes, out,
                        NextLandings(), count, dtype, NextTurn(), stream);
  }
  const int64_t own = ends_.position * bytes;
  return PeerSum(in + own, ends_.their_arena + op.theirs + own, out, nullptr, count, dtype,
                 NextTurn(), stream);
}

Status PeerChannel::Shift(const std::byte* in, int64_t bytes, DType dtype, cudaStream_t stream) {
  MW_ASSIGN_OR_RETURN(const PeerOp op, Next(OpKind::kShift, bytes));
  return Push(in, ends_.their_arena + op.theirs, nullptr, bytes,
              routes_.Of(op.kind, op.bytes, dtype), stream);
}

bool PeerChannel::Buffered(const PeerOp& op, DType dtype) const {
  return ring_.Takes(op.bytes) && routes_.Of(op.kind, op.bytes, dtype) == PeerCarrier::kKernels;
}

Status PeerChannel::Send(const std::byte* buffer, int64_t bytes, DType dtype, cudaStream_t stream) {
  MW_ASSIGN_OR_RETURN(const PeerOp op, Next(OpKind::kSend, bytes));
  if (Buffered(op, dtype)) {
    const MessageRing::Place place = ring_.Next(bytes);
    if (place.waits) MW_RETURN_IF_ERROR(Await(place.taken, kTakenAt, stream));
    return CopyAndTell(buffer, ends_.their_mailbox + kCounterBytes + place.offset, bytes,
                       {CounterAt(ends_.their_mailbox, kPostedAt), place.number,
                        CounterAt(ends_.own_mailbox, kArrivedAt)},
                       planner::PeerKernelCtas(routes_.group), stream);
  }
  MW_RETURN_IF_ERROR(Await(++met_, kMeetAt, stream));
  MW_RETURN_IF_ERROR(CopyOnDevice(ends_.their_arena + op.theirs, buffer, bytes, stream));
  return Publish(++parted_, ends_.their_mailbox, kPartAt, stream);
}

Status PeerChannel::Recv(std::byte* buffer, int64_t bytes, DType dtype, cudaStream_t stream) {
  MW_ASSIGN_OR_RETURN(const PeerOp op, Next(OpKind::kRecv, bytes));
  if (Buffered(op, dtype)) {
    const MessageRing::Place place = ring_.Next(bytes);
    MW_RETURN_IF_ERROR(Await(place.number, kPostedAt, stream));
    return CopyAndTell(ends_.own_mailbox + kCounterBytes + place.offset, buffer, bytes,
                       {CounterAt(ends_.their_mailbox, kTakenAt), place.number,
                        CounterAt(ends_.own_mailbox, kArrivedAt)},
                       planner::PeerKernelCtas(routes_.group), stream);
  }
  MW_RETURN_IF_ERROR(Publish(++met_, ends_.before_mailbox, kMeetAt, stream));
  return Await(++parted_, kPartAt, stream);
}

}  // namespace meshwright::runtime::cuda
