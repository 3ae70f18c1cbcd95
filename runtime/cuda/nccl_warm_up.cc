#include "runtime/cuda/nccl_warm_up.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/cuda/cuda_device.h"
#include "runtime/deadline.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::OpKind;

/// Below and above the sizes where NCCL changes protocol and algorithm on one host.
constexpr int64_t kSizes[] = {int64_t{1} << 10, int64_t{1} << 20, int64_t{32} << 20};

/// A stream and memory of the warm-up.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    // After an error they may fail, too; the first error is what counts.
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
    if (buffer_ != nullptr) (void)cudaFree(buffer_);
  }
  Status Open(int64_t bytes) {
    MW_CUDA_CALL(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    void* buffer = nullptr;
    MW_CUDA_CALL(cudaMalloc(&buffer, static_cast<size_t>(bytes)));
    buffer_ = static_cast<std::byte*>(buffer);
    MW_CUDA_CALL(cudaMemsetAsync(buffer_, 0, static_cast<size_t>(bytes), stream_));
    return Status::Ok();
  }
  cudaStream_t stream() const { return stream_; }
  std::byte* buffer() const { return buffer_; }

 private:
  cudaStream_t stream_ = nullptr;
  std::byte* buffer_ = nullptr;
};

Status Run(NcclCommunicator& c, const GroupUse& use, int64_t bytes, const Scratch& scratch) {
  const int64_t size = planner::SizeOf(use.dtype);
  const int64_t all = bytes / size;
  const int64_t slice = all / c.size();
  std::byte* buffer = scratch.buffer();
  std::byte* mine = buffer + c.rank() * slice * size;
  switch (use.kind) {
    case OpKind::kAllReduce:
      return c.AllReduce(buffer, all, use.dtype, scratch.stream());
    case OpKind::kAllGather:
      return c.AllGather(mine, buffer, slice, use.dtype, scratch.stream());
    case OpKind::kReduceScatter:
      return c.ReduceScatter(buffer, mine, slice, use.dtype, scratch.stream());
    case OpKind::kShift:
      return c.Shift(buffer, buffer + bytes / 2, all / 2, use.dtype, scratch.stream());
    case OpKind::kSend:
      if (c.size() != 2) break;
      return c.rank() == 0 ? c.Send(buffer, all, use.dtype, 1, scratch.stream())
                           : c.Recv(buffer, all, use.dtype, 0, scratch.stream());
    default:
      break;
  }
  return Unsupported(fmt::format("communicator '{}' of {} ranks: {} is not supported on GPU ranks",
                                 c.name(), c.size(), planner::ToString(use.kind)));
}

Status Wait(const NcclCommunicator& c, cudaStream_t stream, const Deadline& deadline) {
  while (true) {
    const cudaError_t state = cudaStreamQuery(stream);
    if (state == cudaSuccess) return Status::Ok();
    if (state != cudaErrorNotReady) {
      return CudaStatus(state, "cudaStreamQuery", "warm-up of " + c.Describe());
    }
    if (deadline.passed() || c.aborted()) {
      return RunFailed(
          fmt::format("warm-up of {}: not done by the deadline; another rank does not "
                      "take part",
                      c.Describe()));
    }
    deadline.Sleep(1e-4);
  }
}

}  // namespace

Status WarmUp(NcclCommunicator& communicator, const std::vector<GroupUse>& uses,
              double deadline_s) {
  if (communicator.size() == 1 || uses.empty()) return Status::Ok();
  const int64_t least = 8 * communicator.size();  // an element a member
  const auto clip = [&](const GroupUse& use, int64_t size) {
    return std::max(least, std::min(use.bytes, size));
  };
  int64_t most = 0;
  for (const GroupUse& use : uses) most = std::max(most, clip(use, *std::rbegin(kSizes)));
  const Deadline deadline(deadline_s);
  Scratch scratch;
  MW_RETURN_IF_ERROR(scratch.Open(most));
  for (const GroupUse& use : uses) {
    std::set<int64_t> sizes;
    for (const int64_t size : kSizes) sizes.insert(clip(use, size));
    for (const int64_t bytes : sizes) {
      MW_RETURN_IF_ERROR(Run(communicator, use, bytes, scratch));
      MW_RETURN_IF_ERROR(Wait(communicator, scratch.stream(), deadline));
    }
  }
  return Status::Ok();
}

}  // namespace meshwright::runtime::cuda
