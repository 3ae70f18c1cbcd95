// Row kernels of fp32 attention: one thread block for each query of each head. Sums in fp64, as the
// CPU kernel has them.
#include <cfloat>

#include "runtime/cuda/attention_fp32.h"

namespace meshwright::runtime::cuda {
namespace {

constexpr int kThreads = 256;

/// Keys that a query sees: [first, end), relative to the block's first key.
struct Seen {
  __device__ Seen(const AttentionBlock& b, int64_t query) {
    int64_t lowest = 0;
    int64_t past = b.sequence;
    if (b.window > 0) {
      lowest = query - b.window + 1 > 0 ? query - b.window + 1 : 0;
      past = query + b.window < b.sequence ? query + b.window : b.sequence;
    }
    if (b.causal) past = query + 1;
    first = lowest - b.key_begin;
    end = past - b.key_begin;
  }
  int64_t first, end;
};

struct Maximum {
  __device__ static float Of(float a, float b) { return a > b ? a : b; }
};
struct Sum {
  __device__ static double Of(double a, double b) { return a + b; }
};

/// Combines one value of every thread; all threads get the result. Fixed order.
template <typename Combine, typename T>
__device__ T BlockCombine(T value) {
  __shared__ T warps[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) {
    value = Combine::Of(value, __shfl_xor_sync(0xFFFFFFFFU, value, offset));
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = warps[0];
  for (int i = 1; i < kThreads / 32; ++i) value = Combine::Of(value, warps[i]);
  __syncthreads();  // `warps` may be used again
  return value;
}

__global__ void SoftmaxKernel(AttentionBlock b, float* scores, float* lse) {
  const int64_t row = blockIdx.x;
  const int64_t head = blockIdx.y;
  const int64_t query = b.begin + row;
  const Seen seen(b, query);
  float* x = scores + (head * b.rows + row) * b.keys;

  float top = -FLT_MAX;
  for (int64_t j = seen.first + threadIdx.x; j < seen.end; j += kThreads) {
    top = Maximum::Of(top, x[j]);
  }
  top = BlockCombine<Maximum>(top);
  double sum = 0.0;
  for (int64_t j = seen.first + threadIdx.x; j < seen.end; j += kThreads) {
    const float e = expf(x[j] - top);
    x[j] = e;
    sum += static_cast<double>(e);
  }
  sum = BlockCombine<Sum>(sum);
  const float inverse = static_cast<float>(1.0 / sum);
  for (int64_t j = threadIdx.x; j < b.keys; j += kThreads) {
    // Written by other threads; the barriers of the sum make them visible.
    x[j] = j >= seen.first && j < seen.end ? x[j] * inverse : 0.0F;
  }
  if (threadIdx.x == 0) {
    lse[head * b.lse_stride + query] = static_cast<float>(static_cast<double>(top) + log(sum));
  }
}

__global__ void SoftmaxGradKernel(AttentionBlock b, float* scores, float* dp, const float* lse,
                                  const float* o, const float* d_o) {
  const int64_t row = blockIdx.x;
  const int64_t head = blockIdx.y;
  const int64_t query = b.begin + row;
  const int64_t at = query * b.row_stride + head * b.head_stride;
  double product = 0.0;
  for (int64_t j = threadIdx.x; j < b.head_dim; j += kThreads) {
    product += static_cast<double>(o[at + j]) * static_cast<double>(d_o[at + j]);
  }
  const float delta = static_cast<float>(BlockCombine<Sum>(product));
  const float shift = lse[head * b.lse_stride + query];
  const Seen seen(b, query);
  float* x = scores + (head * b.rows + row) * b.keys;
  float* dx = dp + (head * b.rows + row) * b.keys;
  for (int64_t j = threadIdx.x; j < b.keys; j += kThreads) {
    const float p = j >= seen.first && j < seen.end ? expf(x[j] - shift) : 0.0F;
    x[j] = p;
    dx[j] = b.scale * p * (dx[j] - delta);
  }
}

dim3 GridOf(const AttentionBlock& b) {
  return dim3(static_cast<unsigned>(b.rows), static_cast<unsigned>(b.kv_heads));
}

}  // namespace

cudaError_t LaunchSoftmax(const AttentionBlock& block, float* scores, float* lse,
                          cudaStream_t stream) {
  SoftmaxKernel<<<GridOf(block), kThreads, 0, stream>>>(block, scores, lse);
  return cudaGetLastError();
}

cudaError_t LaunchSoftmaxGrad(const AttentionBlock& block, float* scores, float* dp,
                              const float* lse, const float* o, const float* d_o,
                              cudaStream_t stream) {
  SoftmaxGradKernel<<<GridOf(block), kThreads, 0, stream>>>(block, scores, dp, lse, o, d_o);
  return cudaGetLastError();
}

}  // namespace meshwright::runtime::cuda
