// Sums over the rows of [rows, width] in two stages without atomic sums: blocks sum ranges of rows
// into partial rows in the stream's workspace, then the partial rows are summed in order.
#pragma once

#include <algorithm>

#include "runtime/cuda/kernel_candidates.h"
#include "runtime/cuda/launch_behind.cuh"
#include "runtime/cuda/operands.h"
#include "runtime/cuda/pack.cuh"

namespace meshwright::runtime::cuda {

/// Where column sums go.
struct ColumnOut {
  float* out = nullptr;     ///< [width]; nullptr: no such sums
  bool accumulate = false;  ///< added to what is there
};

/// Launched behind the kernel that makes the partial sums, which may call AllowNextKernel. Sums of
/// partial rows that each hold [width] for `first` and, when it is wanted, [width] for `second`.
/// `slim`: with small blocks.
Status SumPartials(const OpCall& call, const float* partial, int64_t count, int64_t width,
                   ColumnOut first, ColumnOut second, bool slim = false);

inline constexpr int kColumnLanes = 32;  ///< packs a block: 512 bytes of a row when packs are wide
inline constexpr int kColumnRows = 8;    ///< rows a block sums at the same time
inline constexpr int kColumnBatch = 4;   ///< rows that a thread loads at the same time
inline constexpr int kColumnBlocks = 4;  ///< an SM; bounds the registers

/// Adds rows first, first + kRows, ... of f to the sums of a thread.
template <int kRows, typename F>
__device__ void AddRows(const F& f, int64_t first, int64_t end, int64_t column,
                        float (&sums)[F::kWidth]) {
  // One batch is on its way while the other is added.
  typename F::In in[2][kColumnBatch];
  const auto load = [&](int64_t row, typename F::In(&batch)[kColumnBatch]) {
#pragma unroll
    for (int u = 0; u < kColumnBatch; ++u) {
      if (row + u * kRows < end) batch[u] = f.Load(row + u * kRows, column);
    }
  };
  const auto add = [&](int64_t row, const typename F::In(&batch)[kColumnBatch]) {
#pragma unroll
    for (int u = 0; u < kColumnBatch; ++u) {
      if (row + u * kRows < end) f.Add(batch[u], sums);
    }
  };
  constexpr int64_t kStep = int64_t{kRows} * kColumnBatch;
  load(first, in[0]);
  for (int64_t row = first; row < end; row += 2 * kStep) {
    load(row + kStep, in[1]);
    add(row, in[0]);
    load(row + 2 * kStep, in[0]);
    add(row + kStep, in[1]);
  }
}

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
  if (column < width) AddRows<kColumnRows>(f, first, end, column, sums);
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

template <typename F>
Status ColumnSumsInTwoKernels(const OpCall& call, const F& f, int64_t rows, int64_t width,
                              bool accumulate, float* out) {
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

inline constexpr int kColumnStreams = 16;
inline constexpr int kColumnCounters = 1024;  ///< columns of blocks of one launch
/// Blocks of a column of blocks that have stored their partial row; zero between launches. A
/// process has one rank a GPU, and launches of a stream follow each other.
static __device__ unsigned column_counters[kColumnStreams][kColumnCounters];

struct ColumnJob {
  int64_t rows;
  int64_t width;
  int64_t rows_per_split;
  int64_t first_block;  ///< column of blocks of blockIdx.x 0
  int32_t stream;
  float* partial;  ///< [columns of blocks of the launch][splits][columns a block], permuted
  ColumnOut to;
};

/// True in all threads of the block that is the last of its column of blocks to come here; it sees
/// what the others stored before.
__device__ inline bool LastOfColumn(const ColumnJob& job) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    // Wraps to zero: ready for the next launch.
    unsigned* const counter = &column_counters[job.stream][blockIdx.x];
    last = atomicInc(counter, gridDim.y - 1) == gridDim.y - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

/// The last block of a column of blocks to be done adds the partial rows of all, in order: which
/// block that is does not matter.
template <typename F, int kRows, int kBlocks>
__global__ void __launch_bounds__(kColumnLanes* kRows, kBlocks)
    ColumnSumsKernel(const F f, const ColumnJob job) {
  constexpr int N = F::kWidth;
  constexpr int kColumns = kColumnLanes * N;  // of a block
  constexpr int kThreads = kColumnLanes * kRows;
  constexpr int kQuads = kColumns / 4;
  constexpr int kSlots = kThreads / kQuads;  // partial rows at the same time
  static_assert(kThreads % kQuads == 0);
  __shared__ float4 space[std::max(kRows * kQuads, kThreads)];
  auto* const tile = reinterpret_cast<float*>(space);
  const auto lane = static_cast<int32_t>(threadIdx.x);
  const auto row = static_cast<int32_t>(threadIdx.y);
  const int32_t thread = row * kColumnLanes + lane;
  const int64_t first_column = (job.first_block + blockIdx.x) * kColumns;
  const int64_t column = first_column + lane * N;
  const int64_t begin = blockIdx.y * job.rows_per_split;
  float sums[N] = {};
  AwaitKernelBefore();
  if (column < job.width) {
    AddRows<kRows>(f, begin + row, min(begin + job.rows_per_split, job.rows), column, sums);
  }
  AllowNextKernel();
#pragma unroll
  for (int i = 0; i < N; ++i) tile[row * kColumns + i * kColumnLanes + lane] = sums[i];
  __syncthreads();
  float* const partial = job.partial + int64_t{blockIdx.x} * gridDim.y * kColumns;
  for (int32_t c = thread; c < kColumns; c += kThreads) {
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum += tile[r * kColumns + c];
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

template <int kRows, int kBlocks, typename F>
Status ColumnSumsInOneKernel(const OpCall& call, const F& f, int64_t rows, int64_t width,
                             ColumnOut to, bool behind) {
  const CudaDevice& device = DeviceOf(call);
  constexpr int64_t kBlockWidth = int64_t{kColumnLanes} * F::kWidth;
  constexpr int64_t kBlockBytes = kBlockWidth * static_cast<int64_t>(sizeof(float));
  constexpr int64_t kMinRows = 4 * kRows;  // less is not worth a partial row
  const int64_t column_blocks = (width + kBlockWidth - 1) / kBlockWidth;
  MW_CHECK(call.op.stream >= 0 && call.op.stream < kColumnStreams);
  ColumnJob job = {rows, width, 0, 0, call.op.stream, nullptr, to};
  for (; job.first_block < column_blocks; job.first_block += kColumnCounters) {
    const int64_t blocks = std::min<int64_t>(column_blocks - job.first_block, kColumnCounters);
    // All blocks at the same time, with as many rows each as the others.
    const int64_t splits = std::max<int64_t>(
        std::min({device.sm_count() * kBlocks / blocks, (rows + kMinRows - 1) / kMinRows,
                  device.workspace_cap() / (blocks * kBlockBytes), int64_t{65535}}),
        1);
    job.rows_per_split = (rows + splits - 1) / splits;
    MW_ASSIGN_OR_RETURN(std::byte* const space,
                        device.workspace(call.op.stream, blocks * splits * kBlockBytes));
    job.partial = reinterpret_cast<float*>(space);
    MW_RETURN_IF_ERROR(Launch(call, behind, ColumnSumsKernel<F, kRows, kBlocks>,
                              dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(splits)),
                              dim3(kColumnLanes, kRows), 0, f, job));
  }
  return Status::Ok();
}

/// out[j] (+)= sum over rows of f; `width` is a multiple of F::kWidth.
template <typename F>
Status ColumnSums(const OpCall& call, const F& f, int64_t rows, int64_t width, bool accumulate,
                  float* out) {
  const ColumnOut to = {out, accumulate};
  const int way = Candidates().column_sums;
  const bool behind = way == kLastBlock16Behind || way == kLastBlock32Behind;
  switch (way) {
    case kLastBlock8:
      return ColumnSumsInOneKernel<8, 4>(call, f, rows, width, to, false);
    case kLastBlock16:
    case kLastBlock16Behind:
      return ColumnSumsInOneKernel<16, 2>(call, f, rows, width, to, behind);
    case kLastBlock32:
    case kLastBlock32Behind:
      return ColumnSumsInOneKernel<32, 1>(call, f, rows, width, to, behind);
    default:
      return ColumnSumsInTwoKernels(call, f, rows, width, accumulate, out);
  }
}

}  // namespace meshwright::runtime::cuda
