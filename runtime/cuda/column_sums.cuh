// Sums over the rows of [rows, width] in two stages without atomic sums: blocks sum ranges of rows
// into partial rows in the stream's workspace, then the partial rows are summed in order, by a
// second kernel (SumPartials) or by the last block that is done (ColumnSums).
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
inline constexpr int kColumnRows = 32;  ///< rows a block sums at the same time; a block fills an SM
inline constexpr int kColumnBatch = 4;  ///< rows that a thread loads at the same time

struct ColumnJob {
  int64_t rows;
  int64_t width;
  int64_t rows_per_split;
  float* partial;      ///< [columns of blocks][splits][columns a block], the last axis permuted
  unsigned* counters;  ///< CudaDevice::block_counters
  ColumnOut to;
};

/// Adds rows first, first + kColumnRows, ... of f to the sums of a thread.
template <typename F>
__device__ void AddRows(const F& f, int64_t first, int64_t end, int64_t column,
                        float (&sums)[F::kWidth]) {
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

/// True in all threads of the block that is the last of its column of blocks to come here; it sees
/// what the others stored before.
__device__ inline bool LastOfColumn(const ColumnJob& job) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (gridDim.y == 1) return true;  // wide grids have more columns than counters
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    // Wraps to zero: ready for the next launch.
    last = atomicInc(job.counters + blockIdx.x, gridDim.y - 1) == gridDim.y - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

/// The last block of a column of blocks to be done adds the partial rows of all, in order: which
/// block that is does not matter. F has kWidth, In, In Load(row, column) and
/// Add(In, float (&sums)[kWidth]).
template <typename F>
__global__ void __launch_bounds__(kColumnLanes* kColumnRows)
    ColumnSumsKernel(const F f, const ColumnJob job) {
  constexpr int N = F::kWidth;
  constexpr int kColumns = kColumnLanes * N;  // of a block
  constexpr int kThreads = kColumnLanes * kColumnRows;
  constexpr int kQuads = kColumns / 4;
  constexpr int kSlots = kThreads / kQuads;  // partial rows at the same time
  static_assert(kThreads % kQuads == 0);
  __shared__ float4 space[std::max(kColumnRows * kQuads, kThreads)];
  auto* const tile = reinterpret_cast<float*>(space);
  const auto lane = static_cast<int32_t>(threadIdx.x);
  const auto row = static_cast<int32_t>(threadIdx.y);
  const int32_t thread = row * kColumnLanes + lane;
  const int64_t first_column = int64_t{blockIdx.x} * kColumns;
  const int64_t column = first_column + lane * N;
  const int64_t begin = blockIdx.y * job.rows_per_split;
  float sums[N] = {};
  if (column < job.width) {
    AddRows(f, begin + row, min(begin + job.rows_per_split, job.rows), column, sums);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) tile[row * kColumns + i * kColumnLanes + lane] = sums[i];
  __syncthreads();
  float* const partial = job.partial + int64_t{blockIdx.x} * gridDim.y * kColumns;
  for (int32_t c = thread; c < kColumns; c += kThreads) {
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < kColumnRows; ++r) sum += tile[r * kColumns + c];
    partial[int64_t{blockIdx.y} * kColumns + c] = sum;
  }
  if (!LastOfColumn(job)) return;
  float4 total = {};
  const auto* const from = reinterpret_cast<const float4*>(partial) + thread % kQuads;
#pragma unroll 8
  for (unsigned s = thread / kQuads; s < gridDim.y; s += kSlots) {
    const float4 q = __ldcg(from + int64_t{s} * kQuads);  // others' stores: not through L1
    total.x += q.x, total.y += q.y, total.z += q.z, total.w += q.w;
  }
  space[thread] = total;
  __syncthreads();
  for (int32_t c = thread; c < kColumns; c += kThreads) {
    const int64_t at = first_column + (c % kColumnLanes) * N + c / kColumnLanes;
    if (at >= job.width) continue;
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) sum += tile[s * kColumns + c];
    job.to.out[at] = job.to.accumulate ? job.to.out[at] + sum : sum;
  }
}

/// out[j] (+)= sum over rows of f; `width` is a multiple of F::kWidth.
template <typename F>
Status ColumnSums(const OpCall& call, const F& f, int64_t rows, int64_t width, bool accumulate,
                  float* out) {
  const CudaDevice& device = DeviceOf(call);
  constexpr int64_t kBlockWidth = int64_t{kColumnLanes} * F::kWidth;
  const int64_t column_blocks = (width + kBlockWidth - 1) / kBlockWidth;
  const int64_t row_bytes = column_blocks * kBlockWidth * static_cast<int64_t>(sizeof(float));
  constexpr int64_t kMinRows = 4 * kColumnRows;  // less is not worth a partial row
  // All blocks at the same time, with as many rows each as the others. Never more blocks than SMs,
  // which are as many as the counters, unless a single split needs none.
  const int64_t splits = std::max<int64_t>(
      std::min({device.sm_count() / column_blocks, (rows + kMinRows - 1) / kMinRows,
                device.workspace_cap() / row_bytes}),
      1);
  MW_ASSIGN_OR_RETURN(std::byte* const space, device.workspace(call.op.stream, splits * row_bytes));
  const ColumnJob job = {rows,
                         width,
                         (rows + splits - 1) / splits,
                         reinterpret_cast<float*>(space),
                         device.block_counters(call.op.stream),
                         {out, accumulate}};
  const dim3 grid(static_cast<unsigned>(column_blocks), static_cast<unsigned>(splits));
  ColumnSumsKernel<<<grid, dim3(kColumnLanes, kColumnRows), 0, StreamOf(call)>>>(f, job);
  return Launched(call);
}

}  // namespace meshwright::runtime::cuda
