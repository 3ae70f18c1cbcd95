// Sums over the threads of a warp or block. The order is fixed, so results repeat bit by bit.
#pragma once

#include "runtime/cuda/operands.h"

namespace meshwright::runtime::cuda {

inline constexpr int kWarp = 32;

/// Sum over the warp, in all lanes.
template <typename V>
__device__ V WarpSum(V value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, offset);
  }
  return value;
}

/// Shared memory of BlockSum: two sets, used in turn, so that one barrier a sum is enough.
template <int kThreads, int K>
struct SumSpace {
  float values[2][K][kThreads / kWarp];
};

/// Sums of K values over a block of kThreads threads, in all threads. `turn` alternates 0, 1 from
/// call to call.
template <int kThreads, int K>
__device__ void BlockSum(float (&values)[K], SumSpace<kThreads, K>& space, int turn) {
  constexpr int kWarps = kThreads / kWarp;
#pragma unroll
  for (int k = 0; k < K; ++k) values[k] = WarpSum(values[k]);
  if constexpr (kWarps > 1) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    if (threadIdx.x % kWarp == 0) {
#pragma unroll
      for (int k = 0; k < K; ++k) space.values[turn][k][warp] = values[k];
    }
    __syncthreads();
    // Every warp adds the warps' sums by itself: one load and a few shuffles a thread.
    static_assert((kWarps & (kWarps - 1)) == 0 && kWarps <= kWarp);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      values[k] = space.values[turn][k][threadIdx.x % kWarps];
#pragma unroll
      for (int offset = kWarps / 2; offset > 0; offset /= 2) {
        values[k] += __shfl_xor_sync(0xFFFFFFFFu, values[k], offset);
      }
    }
  }
}

/// Sum over a block of kThreads threads, valid in thread 0. Once a kernel.
template <int kThreads>
__device__ double BlockSumDouble(double value) {
  __shared__ double warps[kThreads / kWarp];
  value = WarpSum(value);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  double sum = 0.0;
  if (threadIdx.x == 0) {
    for (double w : warps) sum += w;
  }
  return sum;
}

/// *out (+)= sum of values[0 .. count), in a fixed order.
Status SumDoubles(const OpCall& call, const double* values, int64_t count, bool accumulate,
                  double* out);

}  // namespace meshwright::runtime::cuda
