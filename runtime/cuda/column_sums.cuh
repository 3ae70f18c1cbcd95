// Sums over the rows of [rows, width] without atomics, in an order that does not change.
#pragma once

#include <cooperative_groups.h>

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

inline constexpr int kColumnThreads = 512;
/// Blocks that share the rows of the same columns and add up through each other's shared memory:
/// the largest cluster that every GPU with clusters runs.
inline constexpr int kColumnCluster = 8;

/// Packs along the columns: 256 bytes of a row when packs are wide. Less reads the memory in pieces
/// that cost bandwidth, more leaves too few blocks for all multiprocessors.
template <typename F>
inline constexpr int kColumnLanes = F::kWidth == 1 ? 32 : 16;

inline constexpr int kColumnBatch = 4;     ///< rows that a thread loads at the same time
inline constexpr int kColumnResident = 2;  ///< blocks an SM must hold: bounds the registers

/// F has kWidth, In, In Load(row, column) and Add(In, float (&sums)[kWidth]).
template <typename F>
__global__ void __launch_bounds__(kColumnThreads, kColumnResident)
    ColumnSumsKernel(const F f, int64_t rows, int64_t width, ColumnOut to) {
  constexpr int N = F::kWidth;
  constexpr int kLanes = kColumnLanes<F>;
  constexpr int kRows = kColumnThreads / kLanes;  // at the same time
  constexpr int kColumns = kLanes * N;
  constexpr int kParts = kColumnThreads / kColumns;
  static_assert(kColumns <= kColumnThreads && kRows % kParts == 0);
  __shared__ float tile[kRows][kColumns + 1];  // one more: no two rows in the same bank
  __shared__ float parts[kParts][kColumns];
  __shared__ float totals[kColumns];
  namespace cg = cooperative_groups;
  const cg::cluster_group cluster = cg::this_cluster();
  const int64_t group = blockIdx.x / kColumnCluster;
  const auto rank = static_cast<int64_t>(cluster.block_rank());
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kLanes;
  const int64_t column = (group * kLanes + lane) * N;
  const int64_t share = (rows + kColumnCluster - 1) / kColumnCluster;
  const int64_t end = min((rank + 1) * share, rows);
  float sums[N] = {};
  if (column < width) {
    // One batch is on its way while the other is added.
    typename F::In in[2][kColumnBatch];
    const int64_t first = rank * share + thread / kLanes;
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
#pragma unroll
  for (int i = 0; i < N; ++i) tile[thread / kLanes][lane * N + i] = sums[i];
  __syncthreads();
  const int own = thread % kColumns;
  float sum = 0.0f;
  for (int r = thread / kColumns; r < kRows; r += kParts) sum += tile[r][own];
  parts[thread / kColumns][own] = sum;
  __syncthreads();
  if (thread < kColumns) {
    float total = 0.0f;
#pragma unroll
    for (int p = 0; p < kParts; ++p) total += parts[p][thread];
    totals[thread] = total;
  }
  cluster.sync();
  const int64_t at = group * kColumns + thread;
  if (rank == 0 && thread < kColumns && at < width) {
    float total = 0.0f;
    for (int r = 0; r < kColumnCluster; ++r) {
      total += cluster.map_shared_rank(totals, static_cast<unsigned>(r))[thread];
    }
    to.out[at] = to.accumulate ? to.out[at] + total : total;
  }
  cluster.sync();  // shared memory must stay until rank 0 has read it
}

/// out[j] (+)= sum over rows of f; `width` is a multiple of F::kWidth.
template <typename F>
Status ColumnSums(const OpCall& call, const F& f, int64_t rows, int64_t width, bool accumulate,
                  float* out) {
  constexpr int64_t kColumns = int64_t{kColumnLanes<F>} * F::kWidth;
  const int64_t groups = (width + kColumns - 1) / kColumns;
  if (groups == 0) return Status::Ok();
  MW_CHECK(groups * kColumnCluster < int64_t{1} << 31);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kColumnCluster;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(groups * kColumnCluster));
  config.blockDim = dim3(kColumnThreads);
  config.stream = StreamOf(call);
  config.attrs = &attribute;
  config.numAttrs = 1;
  MW_CUDA_CALL(
      cudaLaunchKernelEx(&config, ColumnSumsKernel<F>, f, rows, width, ColumnOut{out, accumulate}));
  return Launched(call);
}

}  // namespace meshwright::runtime::cuda
