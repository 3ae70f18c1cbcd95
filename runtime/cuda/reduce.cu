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

constexpr int kPartialColumns = 16;
constexpr int kPartialRows = kSumThreads / kPartialColumns;  // at the same time

__global__ void __launch_bounds__(kSumThreads)
    SumPartialsKernel(const float* partial, int64_t count, int64_t width, ColumnOut first,
                      ColumnOut second) {
  __shared__ float tile[kPartialRows][kPartialColumns];
  const int64_t all = second.out != nullptr ? 2 * width : width;
  const int64_t column = int64_t{blockIdx.x} * kPartialColumns + threadIdx.x;
  AwaitKernelBefore();
  float sum = 0.0f;
  if (column < all) {
#pragma unroll 8
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
                   ColumnOut first, ColumnOut second) {
  const int64_t all = second.out != nullptr ? 2 * width : width;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((all + kPartialColumns - 1) / kPartialColumns));
  config.blockDim = dim3(kPartialColumns, kPartialRows);
  config.stream = StreamOf(call);
  config.attrs = &attribute;
  config.numAttrs = 1;
  MW_CUDA_CALL(
      cudaLaunchKernelEx(&config, SumPartialsKernel, partial, count, width, first, second));
  return Launched(call);
}

}  // namespace meshwright::runtime::cuda
