// Sums over the rows of [rows, width], in an order that does not change: blocks sum ranges of rows
// into partial rows in the stream's workspace, then the partial rows are summed in order.
#pragma once

#include <algorithm>

#include "runtime/cuda/operands.h"
#include "runtime/cuda/pack.cuh"

namespace meshwright::runtime::cuda {

/// Where column sums go.
struct ColumnOut {
  float* out = nullptr;     ///< [width]; nullptr: no such sums
  bool accumulate = false;  ///< added to what is there
};

/// Lets the next kernel of the stream start its blocks before this one has ended, if it was
/// launched so. It sees nothing of this one until AwaitKernelBefore.
__device__ inline void AllowNextKernel() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/// Until the kernel before has ended and its stores are seen.
__device__ inline void AwaitKernelBefore() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// Launched behind the kernel that makes the partial sums, which may call AllowNextKernel. Sums of
/// partial rows that each hold [width] for `first` and, when it is wanted, [width] for `second`.
Status SumPartials(const OpCall& call, const float* partial, int64_t count, int64_t width,
                   ColumnOut first, ColumnOut second);

/// N fp32 values that other blocks have stored in this launch, N = 1, 4 or 8.
template <int N>
__device__ void LoadFloatsFromL2(const float* p, float (&x)[N]) {
  if constexpr (N == 1) {
    x[0] = __ldcg(p);
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 q = __ldcg(reinterpret_cast<const float4*>(p + i));
      x[i] = q.x, x[i + 1] = q.y, x[i + 2] = q.z, x[i + 3] = q.w;
    }
  }
}

inline constexpr int kColumnLanes = 32;  ///< packs a block: 512 bytes of a row when packs are wide
inline constexpr int kColumnRows = 8;    ///< rows a block sums at the same time
inline constexpr int kColumnBatch = 4;   ///< rows that a thread loads at the same time
inline constexpr int kColumnBlocks = 4;  ///< an SM; bounds the registers

/// F has kWidth, In, In Load(row, column) and Add(In, float (&sums)[kWidth]).
template <typename F>
__global__ void __launch_bounds__(kColumnLanes* kColumnRows, kColumnBlocks)
    ColumnSumsKernel(const F f, int64_t rows, int64_t width, int64_t rows_per_split, float* partial,
                     unsigned* counters, ColumnOut to) {
  constexpr int N = F::kWidth;
  __shared__ float tile[kColumnRows][kColumnLanes * N];
  __shared__ bool last;
  const int64_t column =
      (int64_t{blockIdx.x} * kColumnLanes + static_cast<int64_t>(threadIdx.x)) * N;
  const int64_t first = blockIdx.y * rows_per_split + threadIdx.y;
  const int64_t end = min(blockIdx.y * rows_per_split + rows_per_split, rows);
  float sums[N] = {};
  if (column < width) {
    // One batch is on its way while the other is added.
    typename F::In in[2][kColumnBatch];
    const auto load = [&](int64_t row, typename F::In(&batch)[kColumnBatch]) {
#pragma unroll
      for (int u = 0; u < kColumnBatch; ++u) {
        if (row + u * kColumnRows < end) batch[u] = f.Load(row + u * kColumnRows, column);
      }
    };
    const auto add = [&](int64_t row, const typename F::In(&batch)[kColumnBatch]) {
#pragma unroll
      for (int u = 0; u < kColumnBatch; ++u) {
        if (row + u * kColumnRows < end) f.Add(batch[u], sums);
      }
    };
    constexpr int64_t kStep = int64_t{kColumnRows} * kColumnBatch;
    load(first, in[0]);
    for (int64_t row = first; row < end; row += 2 * kStep) {
      load(row + kStep, in[1]);
      add(row, in[0]);
      load(row + 2 * kStep, in[0]);
      add(row + kStep, in[1]);
    }
  }
  AllowNextKernel();
  // Sums over the rows of threads, in those of row 0.
  const auto add_rows = [&] {
#pragma unroll
    for (int i = 0; i < N; ++i) tile[threadIdx.y][i * kColumnLanes + threadIdx.x] = sums[i];
    __syncthreads();
    if (threadIdx.y != 0) return;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sums[i] = 0.0f;
#pragma unroll
      for (int r = 0; r < kColumnRows; ++r) sums[i] += tile[r][i * kColumnLanes + threadIdx.x];
    }
  };
  add_rows();
  if (threadIdx.y == 0 && column < width) {
    StoreFloats(partial + blockIdx.y * width + column, sums);
    __threadfence();  // there before this block is counted
  }
  if (counters == nullptr) return;
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    // Starts at zero again after the last.
    last = atomicInc(counters + blockIdx.x, gridDim.y - 1) == gridDim.y - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
#pragma unroll
  for (int i = 0; i < N; ++i) sums[i] = 0.0f;
  if (column < width) {
#pragma unroll 8
    for (unsigned split = threadIdx.y; split < gridDim.y; split += kColumnRows) {
      float x[N];
      LoadFloatsFromL2(partial + split * width + column, x);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += x[i];
    }
  }
  add_rows();
  if (threadIdx.y != 0 || column >= width) return;
  if (to.accumulate) {
    float old[N];
#pragma unroll
    for (int i = 0; i < N; ++i) old[i] = to.out[column + i];
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] += old[i];
  }
#pragma unroll
  for (int i = 0; i < N; ++i) to.out[column + i] = sums[i];
}

/// out[j] (+)= sum over rows of f; `width` is a multiple of F::kWidth.
template <typename F>
Status ColumnSums(const OpCall& call, const F& f, int64_t rows, int64_t width, bool accumulate,
                  float* out) {
  const CudaDevice& device = DeviceOf(call);
  const int64_t row_bytes = width * static_cast<int64_t>(sizeof(float));
  constexpr int64_t kBlockWidth = int64_t{kColumnLanes} * F::kWidth;
  const int64_t column_blocks = (width + kBlockWidth - 1) / kBlockWidth;
  constexpr int64_t kMinRows = 4 * kColumnRows;  // less is not worth a partial row
  // All blocks at the same time, with as many rows each as the others.
  int64_t splits = std::max<int64_t>(device.sm_count() * kColumnBlocks / column_blocks, 1);
  splits = std::min({splits, (rows + kMinRows - 1) / kMinRows, device.workspace_cap() / row_bytes,
                     int64_t{65535}});
  splits = std::max<int64_t>(splits, 1);
  const int64_t rows_per_split = (rows + splits - 1) / splits;
  MW_ASSIGN_OR_RETURN(std::byte* const space, device.workspace(call.op.stream, splits * row_bytes));
  auto* partial = reinterpret_cast<float*>(space);
  const dim3 grid(static_cast<unsigned>(column_blocks), static_cast<unsigned>(splits));
  const ColumnOut to{out, accumulate};
  // The last block of some columns sums their partial rows, which saves a launch. Only the compute
  // stream has counters.
  const bool one_launch =
      column_blocks <= CudaDevice::kCounters && call.op.stream == planner::kComputeStream;
  ColumnSumsKernel<F><<<grid, dim3(kColumnLanes, kColumnRows), 0, StreamOf(call)>>>(
      f, rows, width, rows_per_split, partial, one_launch ? device.counters() : nullptr, to);
  MW_RETURN_IF_ERROR(Launched(call));
  return one_launch ? Status::Ok() : SumPartials(call, partial, splits, width, to, {});
}

}  // namespace meshwright::runtime::cuda
