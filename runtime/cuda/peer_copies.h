// Tensor-parallel traffic of two ranks of one host by copy engines between their mapped arenas. A
// copy engine leaves the SMs to the products beside it: on 2 x H200 copies move 389 GB/s each way
// and slow a product by 4 %, where NCCL moves 110 GB/s and slows it by 12 %.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "planner/ir/program.h"
#include "runtime/communicator.h"
#include "runtime/cuda/gpu_memory.h"

namespace meshwright::runtime::cuda {

/// This rank's end of a pair whose ranks run the same program: what lies at an offset of one arena
/// lies at the same offset of the other. Both put the same operations on a stream, in the same
/// order; buffers lie in the arena. Order between the ranks is kept by counters in device memory
/// that streams write and wait for, so the host never waits.
class PeerCopies {
 public:
  /// Called by all ranks once, after they have allocated their arenas; those without a partner get
  /// nullptr: no tensor group of two, another host, other programs, or GPUs without peer access.
  static Result<std::unique_ptr<PeerCopies>> Connect(Communicator& world,
                                                     const planner::Programs& programs, int device,
                                                     std::byte* arena, int64_t least_bytes);
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  int group() const { return group_; }  ///< index into Programs::groups
  /// Of `least_bytes` or more, and possible; the same answer on both ranks.
  bool Takes(int64_t bytes, planner::DType dtype) const;

  /// As of DeviceCommunicator; sums are rounded once, the same bits on both ranks.
  Status AllReduce(std::byte* buffer, int64_t count, planner::DType dtype, cudaStream_t stream);
  Status AllGather(const std::byte* in, std::byte* out, int64_t bytes, cudaStream_t stream);
  Status ReduceScatter(const std::byte* in, std::byte* out, int64_t count, planner::DType dtype,
                       cudaStream_t stream);

  /// Lets streams that wait for the other rank go on, with wrong data: for a run that has failed.
  /// Any thread.
  void Release();

  static constexpr int64_t kStagingBytes = int64_t{32} << 20;

 private:
  struct Entry;
  PeerCopies(int device, int group, int position, std::byte* arena, int64_t least_bytes)
      : device_(device),
        group_(group),
        position_(position),
        arena_(arena),
        least_bytes_(least_bytes) {}

  Status Open(const Entry& peer);
  Status Publish(uint32_t value, int64_t counter, cudaStream_t stream) const;
  Status Await(uint32_t value, int64_t counter, cudaStream_t stream) const;
  /// What `own` points to, in the arena of the other rank.
  const std::byte* Theirs(const std::byte* own) const { return peer_arena_ + (own - arena_); }
  static Status Pull(const std::byte* from, std::byte* to, int64_t bytes, cudaStream_t stream);
  Status Meet(cudaStream_t stream);
  Status Part(cudaStream_t stream);

  const int device_;
  const int group_;
  const int position_;  ///< 0 or 1
  std::byte* const arena_;
  const int64_t least_bytes_;
  std::byte* peer_arena_ = nullptr;
  std::byte* peer_staging_ = nullptr;
  DeviceMemory staging_;  ///< what was pulled and is to be added, then the counters
  cudaStream_t release_ = nullptr;
  uint32_t met_ = 0;     ///< meetings so far
  uint32_t parted_ = 0;  ///< pulls so far
};

/// out = a + b, fp32 or bf16, rounded once; 16-byte aligned, `out` may be one of them.
Status AddElements(const std::byte* a, const std::byte* b, std::byte* out, int64_t count,
                   planner::DType dtype, cudaStream_t stream);

}  // namespace meshwright::runtime::cuda
