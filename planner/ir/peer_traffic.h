// Which traffic of a pair of GPUs copy engines carry instead of NCCL; the runtime does so and
// predictions count on it.
#pragma once

#include <cstdint>

#include "planner/ir/dtype.h"
#include "planner/ir/program.h"

namespace meshwright::planner {

/// Least bytes of an operation, as PeerTrafficPossible has them: below, NCCL with the thread blocks
/// of its class is faster (2 x H200, cost_models/h200_runs.md; an edge has one block).
constexpr int64_t PeerCopiesFrom(CommunicatorKind kind) {
  return int64_t{kind == CommunicatorKind::kEdge ? 1 : 4} << 20;
}

/// `bytes`: whole buffer of an all-reduce, output of an all-gather, input of a reduce-scatter, else
/// what goes one way. Parts and sums take 16 bytes at a time.
constexpr bool PeerTrafficPossible(int64_t bytes, DType dtype) {
  return bytes % 32 == 0 && (dtype == DType::kBf16 || dtype == DType::kF32);
}

}  // namespace meshwright::planner
