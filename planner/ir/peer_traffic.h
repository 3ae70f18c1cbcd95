// How communication of GPU ranks is carried: NCCL's thread blocks by class, and which traffic of a
// host's ranks goes straight between their memories instead. The runtime does so and predictions
// count on it. Thresholds and limits: 2 x H200, cost_models/h200_runs.md.
#pragma once

#include <cstdint>
#include <optional>

#include "planner/ir/dtype.h"
#include "planner/ir/program.h"

namespace meshwright::planner {

/// Thread blocks (CTAs) of NCCL on a communicator of `kind`. Exposed tensor traffic wants
/// bandwidth; a message that waits holds its SMs, which slows the products beside it. Best of 16,
/// 24, 32; 4, 8, 16; 1, 2, 4.
constexpr int NcclCtas(CommunicatorKind kind) {
  switch (kind) {
    case CommunicatorKind::kTensor:
      return 32;
    case CommunicatorKind::kData:
    case CommunicatorKind::kTied:
      return 8;
    case CommunicatorKind::kEdge:
      return 1;
    default:
      return 4;
  }
}

/// What carries an operation of a group.
enum class PeerCarrier : uint8_t {
  kNccl,
  kKernels,     ///< kernels that read and write the partner's memory: soon done, but take SMs
  kCopyEngines  ///< take no SMs, start slowly; only moves, no sums
};

/// Thread blocks of a kernel between pairs of `kind`: 8 take nine tenths of what the link gives,
/// and gradients have time.
constexpr int PeerKernelCtas(CommunicatorKind kind) {
  return kind == CommunicatorKind::kTensor || kind == CommunicatorKind::kEdge ? 16 : 8;
}

/// Messages up to this go into a ring of the receiver's, whether it waits for them or not. Larger
/// ones wait for their buffer, which takes 17 us.
inline constexpr int64_t kMostBufferedMessageBytes = int64_t{16} << 20;

/// `bytes`: whole buffer of an all-reduce, output of an all-gather, input of a reduce-scatter, else
/// what goes one way. The ranks' parts of them take 16 bytes at a time.
constexpr bool PeerTrafficPossible(int64_t bytes, int64_t ranks, DType dtype) {
  return bytes % (16 * ranks) == 0 && (dtype == DType::kBf16 || dtype == DType::kF32);
}

/// Of an operation of `ranks` that reach the memory of the next one of their ring, where
/// PeerTrafficPossible. `moves`: of those that sum nothing; absent: copy engines where the
/// operation is large. A shift runs beside products and so goes by them sooner. No kernel of a
/// message waits for the partner. More than two ranks leave sums, and gathers that are not large,
/// to NCCL.
constexpr PeerCarrier PeerCarrierOf(OpKind op, int64_t bytes, int64_t ranks,
                                    std::optional<PeerCarrier> moves = std::nullopt) {
  if (ranks > 2 && op == OpKind::kAllGather) {
    constexpr int64_t kLargeSlice = int64_t{8} << 20;
    const bool large = moves ? *moves == PeerCarrier::kCopyEngines : bytes / ranks >= kLargeSlice;
    return large ? PeerCarrier::kCopyEngines : PeerCarrier::kNccl;
  }
  if (ranks > 2 && op != OpKind::kShift) return PeerCarrier::kNccl;
  switch (op) {
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
      return PeerCarrier::kKernels;
    case OpKind::kSend:
    case OpKind::kRecv:
      return moves.value_or(bytes <= kMostBufferedMessageBytes ? PeerCarrier::kKernels
                                                               : PeerCarrier::kCopyEngines);
    case OpKind::kAllGather:
    case OpKind::kShift: {
      const int64_t large = int64_t{op == OpKind::kShift ? 4 : 16} << 20;
      const auto by_size = bytes < large ? PeerCarrier::kKernels : PeerCarrier::kCopyEngines;
      return moves.value_or(by_size);
    }
    default:
      return PeerCarrier::kNccl;
  }
}

/// Of a rank that receives over the class-local communicator: room for two of the largest messages
/// that go there; 0 when none does.
int64_t MessageRingBytes(const RankProgram& program, int32_t communicator);

}  // namespace meshwright::planner
