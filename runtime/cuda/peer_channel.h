// Traffic of two ranks of one host by copy engines between their mapped arenas. A copy engine
// leaves the SMs to the products beside it: on 2 x H200 copies move 389 GB/s each way and slow a
// product by 4 %, where NCCL moves 110 GB/s and slows it by 12 %.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/ir/peer_traffic.h"
#include "planner/ir/program.h"
#include "runtime/cuda/gpu_memory.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// One operation of a step: what to expect, and what of the partner's arena it pulls.
struct PeerOp {
  planner::OpKind kind{};
  int64_t bytes = 0;   ///< whole buffer of an all-reduce, output of an all-gather, input of a
                       ///< reduce-scatter, else what goes one way
  int64_t theirs = 0;  ///< offset in the partner's arena; unused by kSend
};

/// From how many bytes on a group's operations go by copies.
struct LeastPeerBytes {
  planner::CommunicatorKind group{};
  std::optional<int64_t> bytes;  ///< of every operation; absent: planner::PeerCopiesFrom

  bool Take(planner::OpKind kind, int64_t of, planner::DType dtype) const {
    return of >= bytes.value_or(planner::PeerCopiesFrom(group, kind)) &&
           planner::PeerTrafficPossible(of, dtype);
  }
};

/// This rank's end of a pair. Both put their operations on one stream each, in the order of `ops`,
/// step after step. Order between the ranks is kept by counters in device memory that streams write
/// and wait for, so the host never waits. Errors: kRunFailed for an operation that is not the next
/// one of `ops`, and what CUDA reports.
class PeerChannel {
 public:
  /// What one rank maps of the other. Both outlive the channel.
  struct Ends {
    int position = 0;  ///< 0 or 1 in the group
    const std::byte* their_arena = nullptr;
    std::byte* own_counters = nullptr;  ///< kCounterBytes of zeros, written by the partner
    std::byte* their_counters = nullptr;
  };
  static constexpr int64_t kCounterBytes = 256;
  static constexpr int64_t kMostStagingBytes = int64_t{32} << 20;

  PeerChannel(const Ends& ends, const LeastPeerBytes& least_bytes)
      : ends_(ends), least_bytes_(least_bytes) {}
  /// What comes from now on, on both ranks. Allocates memory for what is pulled and then added.
  Status Follow(std::vector<PeerOp> ops);

  const LeastPeerBytes& least_bytes() const { return least_bytes_; }
  /// The same answer on both ranks. kSend and kRecv are one.
  bool Takes(planner::OpKind kind, int64_t bytes, planner::DType dtype) const {
    return least_bytes_.Take(kind, bytes, dtype);
  }

  /// As of DeviceCommunicator; sums are rounded once, the same bits on both ranks.
  Status AllReduce(std::byte* buffer, int64_t count, planner::DType dtype, cudaStream_t stream);
  Status AllGather(const std::byte* in, std::byte* out, int64_t bytes, cudaStream_t stream);
  Status ReduceScatter(const std::byte* in, std::byte* out, int64_t count, planner::DType dtype,
                       cudaStream_t stream);
  Status Swap(std::byte* out, int64_t bytes, cudaStream_t stream);
  Status Send(int64_t bytes, cudaStream_t stream);
  Status Recv(std::byte* buffer, int64_t bytes, cudaStream_t stream);

 private:
  Result<PeerOp> Next(planner::OpKind kind, int64_t bytes);
  Status Publish(uint32_t value, int64_t counter, cudaStream_t stream) const;
  Status Await(uint32_t value, int64_t counter, cudaStream_t stream) const;
  Status Pull(int64_t theirs, std::byte* to, int64_t bytes, cudaStream_t stream) const;
  Status Meet(cudaStream_t stream);
  Status Part(cudaStream_t stream);

  const Ends ends_;
  std::vector<PeerOp> ops_;
  const LeastPeerBytes least_bytes_;
  DeviceMemory staging_;
  int64_t staging_bytes_ = 0;
  size_t next_ = 0;      ///< index into ops_
  uint32_t met_ = 0;     ///< operations for which what is pulled was ready
  uint32_t parted_ = 0;  ///< pulls so far
};

/// kRunFailed when the driver has no operations on memory in stream order.
Status CheckStreamMemoryOps();

/// out = a + b, fp32 or bf16, rounded once; 16-byte aligned, `out` may be one of them.
Status AddElements(const std::byte* a, const std::byte* b, std::byte* out, int64_t count,
                   planner::DType dtype, cudaStream_t stream);

}  // namespace meshwright::runtime::cuda
