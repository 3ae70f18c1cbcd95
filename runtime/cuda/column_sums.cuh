// Sums over the rows of [rows, width] in two stages without atomics: blocks sum ranges of rows into
// partial rows in the stream's workspace, then the partial rows are summed in order.
#pragma once

#include <algorithm>

#include "runtime/cuda/operands.h"
#include "runtime/cuda/pack.cuh"

namespace meshwright::runtime::cuda {

inline constexpr int kSumColumns = 32;  ///< packs a block
inline constexpr int kSumRows = 8;      ///< rows a block sums at the same time

/// out[j] (+)= sum over i of partial[i, j], partial [count, width].
Status SumPartials(const OpCall& call, const float* partial, int64_t count, int64_t width,
                   bool accumulate, float* out);

/// F has kWidth and Add(row, column, float (&sums)[kWidth]).
template <typename F>
__global__ void __launch_bounds__(kSumColumns* kSumRows)
    ColumnPartialsKernel(const F f, int64_t rows, int64_t width, int64_t rows_per_split,
                         float* partial) {
  constexpr int N = F::kWidth;
  __shared__ float tile[kSumRows][kSumColumns * N];
  const int64_t column =
      (int64_t{blockIdx.x} * kSumColumns + static_cast<int64_t>(threadIdx.x)) * N;
  const int64_t begin = blockIdx.y * rows_per_split;
  const int64_t end = min(begin + rows_per_split, rows);
  float sums[N] = {};
  if (column < width) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kSumRows) f.Add(row, column, sums);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) tile[threadIdx.y][i * kSumColumns + threadIdx.x] = sums[i];
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < kSumRows; ++r) sum += tile[r][i * kSumColumns + threadIdx.x];
    partial[blockIdx.y * width + column + i] = sum;
  }
}

/// out[j] (+)= sum over rows of f; `width` is a multiple of F::kWidth.
template <typename F>
Status ColumnSums(const OpCall& call, const F& f, int64_t rows, int64_t width, bool accumulate,
                  float* out) {
  const CudaDevice& device = DeviceOf(call);
  const int64_t row_bytes = width * static_cast<int64_t>(sizeof(float));
  constexpr int64_t kBlockWidth = int64_t{kSumColumns} * F::kWidth;
  const int64_t column_blocks = (width + kBlockWidth - 1) / kBlockWidth;
  constexpr int64_t kBlocksPerSm = 4;
  constexpr int64_t kMinRows = 4 * kSumRows;  // less is not worth a partial row
  int64_t splits = (device.sm_count() * kBlocksPerSm + column_blocks - 1) / column_blocks;
  splits = std::min({splits, (rows + kMinRows - 1) / kMinRows, device.workspace_cap() / row_bytes,
                     int64_t{65535}});
  splits = std::max<int64_t>(splits, 1);
  const int64_t rows_per_split = (rows + splits - 1) / splits;
  MW_ASSIGN_OR_RETURN(std::byte* const space, device.workspace(call.op.stream, splits * row_bytes));
  auto* partial = reinterpret_cast<float*>(space);
  const dim3 grid(static_cast<unsigned>(column_blocks), static_cast<unsigned>(splits));
  ColumnPartialsKernel<F><<<grid, dim3(kSumColumns, kSumRows), 0, StreamOf(call)>>>(
      f, rows, width, rows_per_split, partial);
  MW_RETURN_IF_ERROR(Launched(call));
  return SumPartials(call, partial, splits, width, accumulate, out);
}

}  // namespace meshwright::runtime::cuda
