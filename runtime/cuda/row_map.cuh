// Elementwise kernels over [rows, width]: threads of a block lie along the columns first, each
// thread loads its packs of two rows before it stores the first.
#pragma once

#include <algorithm>

#include "runtime/cuda/operands.h"

namespace meshwright::runtime::cuda {

inline constexpr int kRowMapThreads = 256;
inline constexpr int kRowMapRows = 2;  ///< rows a thread

/// F has: kWidth (elements a thread and row), In, In Load(row, column), Store(row, column, In). An
/// element may be stored over one that the same thread alone has loaded.
template <typename F>
__global__ void __launch_bounds__(kRowMapThreads)
    RowMapKernel(const F f, int64_t rows, int32_t packs, int32_t column_blocks) {
  const int64_t row_block = blockIdx.x / static_cast<uint32_t>(column_blocks);
  const auto column_block = static_cast<int32_t>(blockIdx.x - row_block * column_blocks);
  const int32_t pack =
      column_block * static_cast<int32_t>(blockDim.x) + static_cast<int32_t>(threadIdx.x);
  if (pack >= packs) return;
  const int64_t column = int64_t{pack} * F::kWidth;
  const int64_t first = row_block * (blockDim.y * kRowMapRows) + threadIdx.y;
  typename F::In in[kRowMapRows];
#pragma unroll
  for (int u = 0; u < kRowMapRows; ++u) {
    const int64_t row = first + u * blockDim.y;
    if (row < rows) in[u] = f.Load(row, column);
  }
#pragma unroll
  for (int u = 0; u < kRowMapRows; ++u) {
    const int64_t row = first + u * blockDim.y;
    if (row < rows) f.Store(row, column, in[u]);
  }
}

/// `width` is a multiple of F::kWidth.
template <typename F>
Status RowMap(const OpCall& call, const F& f, int64_t rows, int64_t width) {
  MW_CHECK(width % F::kWidth == 0);
  const int64_t packs = width / F::kWidth;
  if (rows == 0 || packs == 0) return Status::Ok();
  int64_t across = 1;
  while (across < packs && across < kRowMapThreads) across *= 2;
  const int64_t down = kRowMapThreads / across;
  const int64_t column_blocks = (packs + across - 1) / across;
  const int64_t row_blocks = (rows + down * kRowMapRows - 1) / (down * kRowMapRows);
  constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;
  MW_CHECK(packs <= kMaxBlocks && column_blocks * row_blocks <= kMaxBlocks);
  const dim3 block(static_cast<unsigned>(across), static_cast<unsigned>(down));
  RowMapKernel<F><<<static_cast<unsigned>(column_blocks * row_blocks), block, 0, StreamOf(call)>>>(
      f, rows, static_cast<int32_t>(packs), static_cast<int32_t>(column_blocks));
  return Launched(call);
}

}  // namespace meshwright::runtime::cuda
