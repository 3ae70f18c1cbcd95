#include "runtime/cuda/peer_channel.h"

#include <cuda.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace meshwright::runtime::cuda {
namespace {

using planner::DType;
using planner::OpKind;

constexpr int64_t kMeetAt = 0;    // the partner's data is ready
constexpr int64_t kPartAt = 128;  // the partner has pulled ours

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

Status PeerChannel::Follow(std::vector<PeerOp> ops) {
  ops_ = std::move(ops);
  next_ = 0;
  const int64_t before = staging_bytes_;
  for (const PeerOp& op : ops_) {
    const int64_t added = op.kind == OpKind::kAllReduce       ? op.bytes
                          : op.kind == OpKind::kReduceScatter ? op.bytes / 2
                                                              : 0;
    staging_bytes_ = std::max(staging_bytes_, std::min(added, kMostStagingBytes));
  }
  return staging_bytes_ > before ? staging_.Allocate(staging_bytes_) : Status::Ok();
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

Status PeerChannel::Publish(uint32_t value, int64_t counter, cudaStream_t stream) const {
  MW_ASSIGN_OR_RETURN(const StreamMemoryOps ops, DriverStreamMemoryOps());
  const auto at = reinterpret_cast<CUdeviceptr>(ends_.their_counters + counter);
  return DriverStatus(ops.write(stream, at, value, CU_STREAM_WRITE_VALUE_DEFAULT),
                      "cuStreamWriteValue32");
}

Status PeerChannel::Await(uint32_t value, int64_t counter, cudaStream_t stream) const {
  MW_ASSIGN_OR_RETURN(const StreamMemoryOps ops, DriverStreamMemoryOps());
  const auto at = reinterpret_cast<CUdeviceptr>(ends_.own_counters + counter);
  return DriverStatus(ops.wait(stream, at, value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
}

Status PeerChannel::Pull(int64_t theirs, std::byte* to, int64_t bytes, cudaStream_t stream) const {
  return CopyOnDevice(to, ends_.their_arena + theirs, bytes, stream);
}

/// Both ranks have what the other is to pull.
Status PeerChannel::Meet(cudaStream_t stream) {
  ++met_;
  MW_RETURN_IF_ERROR(Publish(met_, kMeetAt, stream));
  return Await(met_, kMeetAt, stream);
}

/// Both ranks have pulled: what was pulled may be written again.
Status PeerChannel::Part(cudaStream_t stream) {
  ++parted_;
  MW_RETURN_IF_ERROR(Publish(parted_, kPartAt, stream));
  return Await(parted_, kPartAt, stream);
}

Status PeerChannel::AllReduce(std::byte* buffer, int64_t count, DType dtype, cudaStream_t stream) {
  const int64_t size = planner::SizeOf(dtype);
  MW_ASSIGN_OR_RETURN(const PeerOp op, Next(OpKind::kAllReduce, count * size));
  MW_RETURN_IF_ERROR(Meet(stream));
  for (int64_t at = 0; at < op.bytes; at += staging_bytes_) {
    const int64_t bytes = std::min(staging_bytes_, op.bytes - at);
    MW_RETURN_IF_ERROR(Pull(op.theirs + at, staging_.data(), bytes, stream));
    MW_RETURN_IF_ERROR(Part(stream));
    MW_RETURN_IF_ERROR(
        AddElements(buffer + at, staging_.data(), buffer + at, bytes / size, dtype, stream));
  }
  return Status::Ok();
}

Status PeerChannel::AllGather(const std::byte* in, std::byte* out, int64_t bytes,
                              cudaStream_t stream) {
  MW_ASSIGN_OR_RETURN(const PeerOp op, Next(OpKind::kAllGather, 2 * bytes));
  std::byte* const own_slice = out + ends_.position * bytes;
  MW_RETURN_IF_ERROR(Meet(stream));
  MW_RETURN_IF_ERROR(Pull(op.theirs, out + (1 - ends_.position) * bytes, bytes, stream));
  MW_RETURN_IF_ERROR(Part(stream));
  return in == own_slice ? Status::Ok() : CopyOnDevice(own_slice, in, bytes, stream);
}

Status PeerChannel::ReduceScatter(const std::byte* in, std::byte* out, int64_t count, DType dtype,
                                  cudaStream_t stream) {
  const int64_t size = planner::SizeOf(dtype);
  MW_ASSIGN_OR_RETURN(const PeerOp op, Next(OpKind::kReduceScatter, 2 * count * size));
  const std::byte* const own_slice = in + ends_.position * count * size;
  MW_RETURN_IF_ERROR(Meet(stream));
  for (int64_t at = 0; at < count * size; at += staging_bytes_) {
    const int64_t bytes = std::min(staging_bytes_, count * size - at);
    MW_RETURN_IF_ERROR(Pull(op.theirs + at, staging_.data(), bytes, stream));
    MW_RETURN_IF_ERROR(
        AddElements(own_slice + at, staging_.data(), out + at, bytes / size, dtype, stream));
  }
  return Part(stream);
}

Status PeerChannel::Swap(std::byte* out, int64_t bytes, cudaStream_t stream) {
  MW_ASSIGN_OR_RETURN(const PeerOp op, Next(OpKind::kSwap, bytes));
  MW_RETURN_IF_ERROR(Meet(stream));
  MW_RETURN_IF_ERROR(Pull(op.theirs, out, bytes, stream));
  return Part(stream);
}

Status PeerChannel::Send(int64_t bytes, cudaStream_t stream) {
  MW_RETURN_IF_ERROR(Next(OpKind::kSend, bytes).status());
  MW_RETURN_IF_ERROR(Publish(++met_, kMeetAt, stream));
  return Await(++parted_, kPartAt, stream);
}

Status PeerChannel::Recv(std::byte* buffer, int64_t bytes, cudaStream_t stream) {
  MW_ASSIGN_OR_RETURN(const PeerOp op, Next(OpKind::kRecv, bytes));
  MW_RETURN_IF_ERROR(Await(++met_, kMeetAt, stream));
  MW_RETURN_IF_ERROR(Pull(op.theirs, buffer, bytes, stream));
  return Publish(++parted_, kPartAt, stream);
}

}  // namespace meshwright::runtime::cuda
