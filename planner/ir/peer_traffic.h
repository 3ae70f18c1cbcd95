// How communication of GPU ranks is carried: NCCL's thread blocks by class, and which traffic of a
// pair goes by copy engines instead. The runtime does so and predictions count on it.
#pragma once

#include <cstdint>

#include "planner/ir/dtype.h"
#include "planner/ir/program.h"

namespace meshwright::planner {

/// Thread blocks (CTAs) of NCCL on a communicator of `kind`. Exposed tensor traffic wants
/// bandwidth; a message that waits holds its SMs, which slows the products beside it. Best on 2 x
/// H200 of 16, 24, 32; 4, 8, 16; 1, 2, 4 (cost_models/h200_runs.md).
constexpr int NcclCtas(CommunicatorKind kind) {
  switch (kind) {
    case CommunicatorKind::kTensor:
      return 32;
    case CommunicatorKind::kData:
      return 8;
    case CommunicatorKind::kEdge:
      return 1;
    default:
      return 4;
  }
}

/// Least bytes of an operation, as PeerTrafficPossible has them: below, NCCL with its thread blocks
/// is faster alone (2 x H200, cost_models/h200_runs.md). A swap runs beside products, where NCCL is
/// not.
constexpr int64_t PeerCopiesFrom(CommunicatorKind kind, OpKind op) {
  if (kind == CommunicatorKind::kEdge) return int64_t{1} << 20;
  return int64_t{op == OpKind::kSwap ? 4 : 16} << 20;
}

/// `bytes`: whole buffer of an all-reduce, output of an all-gather, input of a reduce-scatter, else
/// what goes one way. Parts and sums take 16 bytes at a time.
constexpr bool PeerTrafficPossible(int64_t bytes, DType dtype) {
  return bytes % 32 == 0 && (dtype == DType::kBf16 || dtype == DType::kF32);
}

}  // namespace meshwright::planner
