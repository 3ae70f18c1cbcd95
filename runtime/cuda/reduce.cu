// Second stages of the two-stage sums.
#include "runtime/cuda/column_sums.cuh"
#include "runtime/cuda/reduce.cuh"

namespace meshwright::runtime::cuda {
namespace {

constexpr int kSumThreads = 1024;

__global__ void __launch_bounds__(kSumThreads)
    SumDoublesKernel(const double* values, int64_t count, bool accumulate, double* out) {
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) sum += values[i];
  sum = BlockSumDouble<kSumThreads>(sum);
  if (threadIdx.x == 0) *out = accumulate ? *out + sum : sum;
}

/// kPartialRows rows at the same time.
template <int kPartialColumns, int kPartialRows>
__global__ void __launch_bounds__(kPartialColumns* kPartialRows)
    SumPartialsKernel(const float* partial, int64_t count, int64_t width, ColumnOut first,
                      ColumnOut second) {
  __shared__ float tile[kPartialRows][kPartialColumns];
  const int64_t all = second.out != nullptr ? 2 * width : width;
  const int64_t column = int64_t{blockIdx.x} * kPartialColumns + threadIdx.x;
  AwaitKernelBefore();
  AllowNextKernel();
  constexpr int kUnroll = kPartialRows < 64 ? 16 : 8;
  float sum = 0.0f;
  if (column < all) {
#pragma unroll kUnroll
    for (int64_t i = threadIdx.y; i < count; i += kPartialRows) sum += partial[i * all + column];
  }
  tile[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= all) return;
  float total = 0.0f;
#pragma unroll
  for (int r = 0; r < kPartialRows; ++r) total += tile[r][threadIdx.x];
  const ColumnOut& to = column < width ? first : second;
  float* const at = to.out + (column < width ? column : column - width);
  *at = to.accumulate ? *at + total : total;
}

}  // namespace

Status SumDoubles(const OpCall& call, const double* values, int64_t count, bool accumulate,
                  double* out) {
  SumDoublesKernel<<<1, kSumThreads, 0, StreamOf(call)>>>(values, count, accumulate, out);
  return Launched(call);
}

Status SumPartials(const OpCall& call, const float* partial, int64_t count, int64_t width,
                   ColumnOut first, ColumnOut second, bool slim) {
  const int64_t all = second.out != nullptr ? 2 * width : width;
  const auto launch = [&](auto kernel, int columns, int rows) {
    const dim3 grid(static_cast<unsigned>((all + columns - 1) / columns));
    const dim3 block(static_cast<unsigned>(columns), static_cast<unsigned>(rows));
    return Launch(call, true, kernel, grid, block, 0, partial, count, width, first, second);
  };
  if (slim) return launch(SumPartialsKernel<32, 8>, 32, 8);
  return launch(SumPartialsKernel<16, 64>, 16, 64);
}

}  // namespace meshwright::runtime::cuda
