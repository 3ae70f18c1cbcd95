// Kernels of a pair of ranks between their mapped memories. Both ranks start the same kernel with
// the same `count`, `blocks` and `turn`; block by block the two meet before the first access and
// part after the last, so that what is read is there and what is written is free.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "planner/ir/dtype.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// Counters by which blocks meet: kMostPeerBlocks each, written by the partner.
struct PeerTurn {
  uint32_t* own_met = nullptr;
  uint32_t* own_parted = nullptr;
  uint32_t* their_met = nullptr;
  uint32_t* their_parted = nullptr;
  uint32_t turn = 0;  ///< rises by one from kernel to kernel; differences of 32 bits count
  int blocks = 0;     ///< at most kMostPeerBlocks; fewer are started for few elements
};
inline constexpr int kMostPeerBlocks = 32;

/// own + theirs -> out and, unless that is null, `their_out`. fp32 or bf16, rounded once; 16-byte
/// aligned. `out` may be `own`, `their_out` may be `theirs`.
Status PeerSum(const std::byte* own, const std::byte* theirs, std::byte* out, std::byte* their_out,
               int64_t count, planner::DType dtype, const PeerTurn& turn, cudaStream_t stream);

/// The same where each rank's terms of the other's sum fit into `landing` (count elements): they
/// are written there, so that the two meet once. `own` are the terms of this rank's sum, `given` of
/// the partner's. A landing must not be used again before the next kernel of the pair is over.
struct Landings {
  std::byte* own = nullptr;
  std::byte* theirs = nullptr;
};
Status PeerSmallSum(const std::byte* own, const std::byte* given, std::byte* out,
                    const Landings& landings, int64_t count, planner::DType dtype,
                    const PeerTurn& turn, cudaStream_t stream);

/// from -> to, then `value` to the partner's `told`: multiples of 16 bytes. Waits for nobody.
/// `arrived`: a counter of the own device for blocks, 0 between kernels.
struct PeerNotice {
  uint32_t* told = nullptr;
  uint32_t value = 0;
  uint32_t* arrived = nullptr;
};
Status CopyAndTell(const std::byte* from, std::byte* to, int64_t bytes, const PeerNotice& notice,
                   int blocks, cudaStream_t stream);

/// from -> their_out and, unless that is null, `out`; multiples of 16 bytes.
Status PeerPush(const std::byte* from, std::byte* their_out, std::byte* out, int64_t bytes,
                const PeerTurn& turn, cudaStream_t stream);

}  // namespace meshwright::runtime::cuda
