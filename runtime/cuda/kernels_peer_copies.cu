// The sum of what a rank has and what it pulled from its partner.
#include "runtime/cuda/pack.cuh"
#include "runtime/cuda/peer_channel.h"

namespace meshwright::runtime::cuda {
namespace {

constexpr int kAddThreads = 512;
constexpr int64_t kMostBlocks = 132;  ///< few, since products run beside it

template <typename T>
__global__ void __launch_bounds__(kAddThreads)
    AddElementsKernel(const T* a, const T* b, T* out, int64_t packs) {
  constexpr int N = kWide<T>;
  const int64_t stride = int64_t{gridDim.x} * kAddThreads;
  for (int64_t i = int64_t{blockIdx.x} * kAddThreads + threadIdx.x; i < packs; i += stride) {
    float x[N], y[N];
    Pack<T, N>::Load(a + i * N).Unpack(x);
    Pack<T, N>::Load(b + i * N).Unpack(y);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] += y[k];
    Pack<T, N>::From(x).Store(out + i * N);
  }
}

template <typename T>
Status Launch(const std::byte* a, const std::byte* b, std::byte* out, int64_t count,
              cudaStream_t stream) {
  const int64_t packs = count / kWide<T>;
  const int64_t blocks = min((packs + kAddThreads - 1) / kAddThreads, kMostBlocks);
  AddElementsKernel<T><<<static_cast<unsigned>(blocks), kAddThreads, 0, stream>>>(
      reinterpret_cast<const T*>(a), reinterpret_cast<const T*>(b), reinterpret_cast<T*>(out),
      packs);
  MW_CUDA_CALL(cudaGetLastError());
  return Status::Ok();
}

}  // namespace

Status AddElements(const std::byte* a, const std::byte* b, std::byte* out, int64_t count,
                   planner::DType dtype, cudaStream_t stream) {
  if (dtype == planner::DType::kF32) return Launch<float>(a, b, out, count, stream);
  return Launch<__nv_bfloat16>(a, b, out, count, stream);
}

}  // namespace meshwright::runtime::cuda
