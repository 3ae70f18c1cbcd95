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

/// A warp along the columns, 32 rows at the same time.
__global__ void __launch_bounds__(kSumThreads)
    SumPartialsKernel(const float* partial, int64_t count, int64_t width, bool accumulate,
                      float* out) {
  __shared__ float tile[kWarp][kWarp];
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  float sum = 0.0f;
  if (column < width) {
#pragma unroll 8
    for (int64_t i = threadIdx.y; i < count; i += kWarp) sum += partial[i * width + column];
  }
  tile[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  float total = 0.0f;
#pragma unroll
  for (int r = 0; r < kWarp; ++r) total += tile[r][threadIdx.x];
  out[column] = accumulate ? out[column] + total : total;
}

}  // namespace

Status SumDoubles(const OpCall& call, const double* values, int64_t count, bool accumulate,
                  double* out) {
  SumDoublesKernel<<<1, kSumThreads, 0, StreamOf(call)>>>(values, count, accumulate, out);
  return Launched(call);
}

Status SumPartials(const OpCall& call, const float* partial, int64_t count, int64_t width,
                   bool accumulate, float* out) {
  const auto blocks = static_cast<unsigned>((width + kWarp - 1) / kWarp);
  SumPartialsKernel<<<blocks, dim3(kWarp, kWarp), 0, StreamOf(call)>>>(partial, count, width,
                                                                       accumulate, out);
  return Launched(call);
}

}  // namespace meshwright::runtime::cuda
