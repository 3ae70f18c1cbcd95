#include "runtime/cuda/nccl_communicator.h"

#include <fmt/format.h>

#include <thread>
#include <utility>

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/peer_channel.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::DType;

constexpr double kPatienceS = 2.0;  ///< for another thread to leave NCCL before an abort

ncclDataType_t ToNccl(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return ncclBfloat16;
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kI32:
      return ncclInt32;
    case DType::kI64:
      return ncclInt64;
  }
  return ncclNumTypes;
}

const char* ToText(planner::CommunicatorKind kind) {
  using planner::CommunicatorKind;
  switch (kind) {
    case CommunicatorKind::kTensor:
      return "tensor";
    case CommunicatorKind::kData:
      return "data";
    case CommunicatorKind::kWorld:
      return "world";
    case CommunicatorKind::kKeyValueCopies:
      return "key-value copies";
    case CommunicatorKind::kTied:
      return "tied";
    case CommunicatorKind::kEdge:
      return "edge";
  }
  return "?";
}

}  // namespace

Status NcclStatus(ncclResult_t result, const char* call, const std::string& what,
                  ncclComm_t communicator) {
  if (result == ncclSuccess) return Status::Ok();
  const char* last = ncclGetLastError(communicator);
  return RunFailed(fmt::format("{}: {}: {} ({}){}{}; run with NCCL_DEBUG=WARN to see more", what,
                               call, ncclGetErrorString(result), static_cast<int>(result),
                               last == nullptr || *last == '\0' ? "" : ", last error of NCCL: ",
                               last == nullptr ? "" : last));
}

std::string NcclCommunicator::Describe() const {
  return fmt::format("communicator '{}' ({}), member {} of {}, after its operation {}", name(),
                     ToText(kind()), rank(), size(), sequence());
}

ncclConfig_t NcclCommunicator::Config(bool blocking) const {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  if (facts_.ctas > 0) config.minCTAs = config.maxCTAs = facts_.ctas;
  config.commName = facts_.name.c_str();
  return config;
}

Status NcclCommunicator::Check(const Call& call) const {
  const bool message = call.op == CommOp::kSend || call.op == CommOp::kRecv;
  if (call.count >= 0 && call.peer >= 0 && call.peer < size() &&
      !(message && call.peer == rank())) {
    return Status::Ok();
  }
  return InvalidInput(fmt::format(
      "communicator '{}': {} of {} elements with member {} by member {}: the count must be >= 0, "
      "there are members 0..{}, and messages go to another one",
      name(), ToString(call.op), call.count, call.peer, rank(), size() - 1));
}

/// Runs `enqueue(communicator)` as the next operation.
template <typename Enqueue>
Status NcclCommunicator::Put(const Call& call, cudaStream_t stream, const Enqueue& enqueue) {
  MW_RETURN_IF_ERROR(Check(call));
  if (call.count == 0) return Status::Ok();
  const std::lock_guard lock(mutex_);
  FlightRecord record;
  record.group = facts_.group;
  record.op = call.op;
  record.bytes = call.bytes;
  record.dtype = call.dtype;
  record.sequence = sequence_ + 1;
  const auto what = [&] {
    return fmt::format("communicator '{}' ({}), operation {} ({} of {} {})", name(), ToText(kind()),
                       record.sequence, ToString(call.op), call.count,
                       planner::ToString(call.dtype));
  };
  if (aborted_ || communicator_ == nullptr) {
    return RunFailed(what() + ": the communicator was aborted");
  }
  DeviceCommunicatorObserver* observer = counting_ ? facts_.observer : nullptr;
  if (counting_) sequence_ = record.sequence;
  if (observer != nullptr) observer->Before(record, stream);
  const ncclResult_t result = enqueue(communicator_);
  if (result != ncclSuccess) return NcclStatus(result, call.function, what(), communicator_);
  if (observer != nullptr) observer->After(record, stream);
  return Status::Ok();
}

bool NcclCommunicator::ByPeer(planner::OpKind kind, const Call& call) const {
  return channel_ != nullptr &&
         channel_->Takes(kind, call.bytes, call.dtype);  // the same on all ranks
}

/// As Put, with operations of the peer channel, which have a status of their own.
template <typename Enqueue>
Status NcclCommunicator::PutPeer(const Call& call, cudaStream_t stream, const Enqueue& enqueue) {
  Status status;
  const Status put = Put(call, stream, [&](ncclComm_t) {
    status = enqueue();
    return status.ok() ? ncclSuccess : ncclUnhandledCudaError;
  });
  return status.ok() ? put : status.WithContext("communicator '" + name() + "'");
}

Status NcclCommunicator::Copy(const std::byte* from, std::byte* to, int64_t bytes,
                              cudaStream_t stream) const {
  if (from == to || bytes == 0) return Status::Ok();
  return CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream),
      "cudaMemcpyAsync", "communicator '" + name() + "'");
}

Status NcclCommunicator::AllReduce(std::byte* buffer, int64_t count, DType dtype,
                                   cudaStream_t stream) {
  const Call call{CommOp::kAllReduce, "ncclAllReduce", count, count * planner::SizeOf(dtype),
                  dtype};
  if (size() == 1) return Check(call);
  if (ByPeer(planner::OpKind::kAllReduce, call)) {
    return PutPeer(call, stream, [&] { return channel_->AllReduce(buffer, count, dtype, stream); });
  }
  return Put(call, stream, [&](ncclComm_t c) {
    return ncclAllReduce(buffer, buffer, static_cast<size_t>(count), ToNccl(dtype), ncclSum, c,
                         stream);
  });
}

Status NcclCommunicator::AllGather(const std::byte* in, std::byte* out, int64_t count, DType dtype,
                                   cudaStream_t stream) {
  const Call call{CommOp::kAllGather, "ncclAllGather", count,
                  count * size() * planner::SizeOf(dtype), dtype};
  if (size() == 1) {
    MW_RETURN_IF_ERROR(Check(call));
    return Copy(in, out, call.bytes, stream);
  }
  if (ByPeer(planner::OpKind::kAllGather, call)) {
    return PutPeer(call, stream, [&] {
      return channel_->AllGather(in, out, call.bytes / size(), dtype, stream);
    });
  }
  return Put(call, stream, [&](ncclComm_t c) {
    return ncclAllGather(in, out, static_cast<size_t>(count), ToNccl(dtype), c, stream);
  });
}

Status NcclCommunicator::ReduceScatter(const std::byte* in, std::byte* out, int64_t count,
                                       DType dtype, cudaStream_t stream) {
  const Call call{CommOp::kReduceScatter, "ncclReduceScatter", count,
                  count * size() * planner::SizeOf(dtype), dtype};
  if (size() == 1) {
    MW_RETURN_IF_ERROR(Check(call));
    return Copy(in, out, call.bytes, stream);
  }
  if (ByPeer(planner::OpKind::kReduceScatter, call)) {
    return PutPeer(call, stream,
                   [&] { return channel_->ReduceScatter(in, out, count, dtype, stream); });
  }
  return Put(call, stream, [&](ncclComm_t c) {
    return ncclReduceScatter(in, out, static_cast<size_t>(count), ToNccl(dtype), ncclSum, c,
                             stream);
  });
}

Status NcclCommunicator::Broadcast(std::byte* buffer, int64_t count, DType dtype, int root,
                                   cudaStream_t stream) {
  const Call call{
      CommOp::kBroadcast, "ncclBroadcast", count, count * planner::SizeOf(dtype), dtype, root};
  if (size() == 1) return Check(call);
  return Put(call, stream, [&](ncclComm_t c) {
    return ncclBroadcast(buffer, buffer, static_cast<size_t>(count), ToNccl(dtype), root, c,
                         stream);
  });
}

Status NcclCommunicator::Shift(const std::byte* in, std::byte* out, int64_t count, DType dtype,
                               cudaStream_t stream) {
  const Call call{CommOp::kShift, "ncclGroupEnd", count, count * planner::SizeOf(dtype), dtype};
  if (size() == 1) {
    MW_RETURN_IF_ERROR(Check(call));
    return Copy(in, out, call.bytes, stream);
  }
  if (ByPeer(planner::OpKind::kShift, call)) {
    return PutPeer(call, stream, [&] { return channel_->Shift(in, call.bytes, dtype, stream); });
  }
  return Put(call, stream, [&](ncclComm_t c) {
    const auto elements = static_cast<size_t>(count);
    ncclResult_t result = ncclGroupStart();
    if (result != ncclSuccess) return result;
    result = ncclSend(in, elements, ToNccl(dtype), NextMember(rank(), size()), c, stream);
    if (result == ncclSuccess || result == ncclInProgress) {
      result = ncclRecv(out, elements, ToNccl(dtype), MemberBefore(rank(), size()), c, stream);
    }
    const ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess || result == ncclInProgress ? ended : result;
  });
}

Status NcclCommunicator::Send(const std::byte* buffer, int64_t count, DType dtype, int peer,
                              cudaStream_t stream) {
  const Call call{CommOp::kSend, "ncclSend", count, count * planner::SizeOf(dtype), dtype, peer};
  if (ByPeer(planner::OpKind::kSend, call)) {
    return PutPeer(call, stream, [&] { return channel_->Send(buffer, call.bytes, dtype, stream); });
  }
  return Put(call, stream, [&](ncclComm_t c) {
    return ncclSend(buffer, static_cast<size_t>(count), ToNccl(dtype), peer, c, stream);
  });
}

Status NcclCommunicator::Recv(std::byte* buffer, int64_t count, DType dtype, int peer,
                              cudaStream_t stream) {
  const Call call{CommOp::kRecv, "ncclRecv", count, count * planner::SizeOf(dtype), dtype, peer};
  if (ByPeer(planner::OpKind::kRecv, call)) {
    return PutPeer(call, stream, [&] { return channel_->Recv(buffer, call.bytes, dtype, stream); });
  }
  return Put(call, stream, [&](ncclComm_t c) {
    return ncclRecv(buffer, static_cast<size_t>(count), ToNccl(dtype), peer, c, stream);
  });
}

Status NcclCommunicator::CheckAsync() {
  if (!ready_) return Status::Ok();
  ncclResult_t found = ncclSuccess;
  ncclComm_t communicator = nullptr;
  const ncclResult_t asked = With(0.0, [&](ncclComm_t c) {
    communicator = c;
    return ncclCommGetAsyncError(c, &found);
  });
  if (asked == ncclInProgress) return Status::Ok();
  const ncclResult_t result = asked == ncclSuccess ? found : asked;
  if (result == ncclInProgress) return Status::Ok();
  return NcclStatus(result, "ncclCommGetAsyncError", Describe(), communicator);
}

void NcclCommunicator::Abort() {
  aborted_ = true;
  if (!ready_) return;
  // A thread that hangs in NCCL holds the lock and is freed by the abort.
  const std::unique_lock lock(mutex_, std::chrono::duration<double>(kPatienceS));
  const ncclComm_t communicator = std::exchange(communicator_, nullptr);
  if (communicator == nullptr) return;
  // Nobody hears of a failure: the run has one already.
  [[maybe_unused]] const ncclResult_t result = ncclCommAbort(communicator);
}

Status NcclCommunicator::Close() {
  const std::lock_guard lock(mutex_);
  if (aborted_ || communicator_ == nullptr) return Status::Ok();
  ncclResult_t state = ncclCommFinalize(communicator_);
  while (state == ncclInProgress && !aborted_) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
    if (asked != ncclSuccess) state = asked;
  }
  if (aborted_) return Status::Ok();
  MW_RETURN_IF_ERROR(NcclStatus(state, "ncclCommFinalize", Describe(), communicator_));
  const ncclResult_t destroyed = ncclCommDestroy(std::exchange(communicator_, nullptr));
  if (destroyed == ncclInProgress) return Status::Ok();
  return NcclStatus(destroyed, "ncclCommDestroy", Describe(), nullptr);
}

}  // namespace meshwright::runtime::cuda
