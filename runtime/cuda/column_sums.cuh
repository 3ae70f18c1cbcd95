// Sums over the rows of [rows, width] in two stages without atomics: blocks sum ranges of rows into
// partial rows in the stream's workspace, then the partial rows are summed in order.
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

inline constexpr int kColumnLanes = 32;  ///< packs a block: 512 bytes of a row when packs are wide
inline constexpr int kColumnRows = 8;    ///< rows a block sums at the same time
inline constexpr int kColumnBatch = 4;   ///< rows that a thread loads at the same time
inline constexpr int kColumnBlocks = 4;  ///< an SM; bounds the registers

/// F has kWidth, In, In Load(row, column) and Add(In, float (&sums)[kWidth]).
template <typename F>
__global__ void __launch_bounds__(kColumnLanes* kColumnRows, kColumnBlocks)
    ColumnPartialsKernel(const F f, int64_t rows, int64_t width, int64_t rows_per_split,
                         float* partial) {
  constexpr int N = F::kWidth;
  __shared__ float tile[kColumnRows][kColumnLanes * N];
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
#pragma unroll
  for (int i = 0; i < N; ++i) tile[threadIdx.y][i * kColumnLanes + threadIdx.x] = sums[i];
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < kColumnRows; ++r) sum += tile[r][i * kColumnLanes + threadIdx.x];
    partial[blockIdx.y * width + column + i] = sum;
  }
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
  ColumnPartialsKernel<F><<<grid, dim3(kColumnLanes, kColumnRows), 0, StreamOf(call)>>>(
      f, rows, width, rows_per_split, partial);
  MW_RETURN_IF_ERROR(Launched(call));
  return SumPartials(call, partial, splits, width, {out, accumulate}, {});
}

}  // namespace meshwright::runtime::cuda
