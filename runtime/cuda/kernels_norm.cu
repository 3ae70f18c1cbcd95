// RMS and layer norm forward: one block a row, the row in registers when it fits.
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/norm_arguments.cuh"
#include "runtime/cuda/row_map.cuh"

namespace meshwright::runtime::cuda {
namespace {

template <typename T>
struct NormArguments {
  NormShape shape;
  float eps;
  const T* r;
  const T* delta;  ///< nullptr: none
  const T* other;  ///< added to delta; nullptr: none
  const T* gamma;
  const T* beta;  ///< nullptr: none
  T* r1;          ///< nullptr: not wanted; may lie exactly over r or delta
  T* n;
};

/// n = (x - mean) * rstd * (gamma + one) + beta of one pack.
template <typename T, int N>
__device__ void Normalize(const NormArguments<T>& a, float mean, float rstd, int64_t column,
                          const float (&x)[N], T* n) {
  float gamma[N], y[N];
  Pack<T, N>::Load(a.gamma + column).Unpack(gamma);
#pragma unroll
  for (int i = 0; i < N; ++i) y[i] = (x[i] - mean) * rstd * (gamma[i] + a.shape.one);
  if (a.beta != nullptr) {
    float beta[N];
    Pack<T, N>::Load(a.beta + column).Unpack(beta);
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] += beta[i];
  }
  Pack<T, N>::From(y).Store(n);
}

/// x = r + (delta + other) as stored in r1: statistics belong to the rounded sum, which backward
/// will read.
template <bool kOther, typename T, int N>
__device__ void Sum(const NormArguments<T>& a, const Pack<T, N>& r, const Pack<T, N>& delta,
                    const Pack<T, N>& other, int64_t at, float (&x)[N]) {
  r.Unpack(x);
  if (a.delta != nullptr) {
    float d[N], o[N] = {};
    delta.Unpack(d);
    if constexpr (kOther) other.Unpack(o);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += d[i] + o[i];
  }
  if (a.r1 != nullptr) {
    const Pack<T, N> rounded = Pack<T, N>::From(x);
    rounded.Store(a.r1 + at);
    rounded.Unpack(x);
  }
}

template <typename T, int N, int kThreads, int kPacks, bool kOther>
__global__ void __launch_bounds__(kThreads) NormKernel(const NormArguments<T> a) {
  __shared__ SumSpace<kThreads, 1> space;
  const int64_t row = blockIdx.x;
  const int32_t h = a.shape.h;
  const int64_t begin = row * h;
  const int32_t packs = h / N;
  Pack<T, N> r[kPacks], delta[kPacks], other[kPacks];
#pragma unroll
  for (int v = 0; v < kPacks; ++v) {
    const int32_t pack = static_cast<int32_t>(threadIdx.x) + v * kThreads;
    r[v] = Pack<T, N>::Zero();
    delta[v] = Pack<T, N>::Zero();
    if constexpr (kOther) other[v] = Pack<T, N>::Zero();
    if (pack >= packs) continue;
    const int64_t at = begin + int64_t{pack} * N;
    r[v] = Pack<T, N>::Load(a.r + at);
    if (a.delta != nullptr) delta[v] = Pack<T, N>::Load(a.delta + at);
    if constexpr (kOther) other[v] = Pack<T, N>::Load(a.other + at);
  }
  float x[kPacks][N];
  float sum[1] = {0.0f};
#pragma unroll
  for (int v = 0; v < kPacks; ++v) {
    const int32_t pack = static_cast<int32_t>(threadIdx.x) + v * kThreads;
    if (pack >= packs) continue;
    Sum<kOther>(a, r[v], delta[v], other[v], begin + int64_t{pack} * N, x[v]);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[0] += a.shape.mean != nullptr ? x[v][i] : x[v][i] * x[v][i];
  }
  BlockSum(sum, space, 0);
  float mean = 0.0f;
  if (a.shape.mean != nullptr) {
    mean = sum[0] / static_cast<float>(h);
    sum[0] = 0.0f;
#pragma unroll
    for (int v = 0; v < kPacks; ++v) {
      if (static_cast<int32_t>(threadIdx.x) + v * kThreads >= packs) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) sum[0] += (x[v][i] - mean) * (x[v][i] - mean);
    }
    BlockSum(sum, space, 1);
  }
  const float rstd = 1.0f / sqrtf(sum[0] / static_cast<float>(h) + a.eps);
  if (threadIdx.x == 0) {
    if (a.shape.mean != nullptr) a.shape.mean[row] = mean;
    a.shape.rstd[row] = rstd;
  }
#pragma unroll
  for (int v = 0; v < kPacks; ++v) {
    const int32_t pack = static_cast<int32_t>(threadIdx.x) + v * kThreads;
    if (pack >= packs) continue;
    const int64_t column = int64_t{pack} * N;
    Normalize<T, N>(a, mean, rstd, column, x[v], a.n + begin + column);
  }
}

/// Rows of any length and alignment: an element at a time, read again in each pass.
template <typename T>
__global__ void __launch_bounds__(kLoopThreads) NormLoopKernel(const NormArguments<T> a) {
  __shared__ SumSpace<kLoopThreads, 1> space;
  const int64_t row = blockIdx.x;
  const int32_t h = a.shape.h;
  const int64_t begin = row * h;
  const auto first = static_cast<int32_t>(threadIdx.x);
  float sum[1] = {0.0f};
  for (int32_t j = first; j < h; j += kLoopThreads) {
    const int64_t at = begin + j;
    const auto load = [at](const T* values) {
      return values != nullptr ? Pack<T, 1>::Load(values + at) : Pack<T, 1>::Zero();
    };
    float x[1];
    Sum<true>(a, load(a.r), load(a.delta), load(a.other), at, x);
    sum[0] += a.shape.mean != nullptr ? x[0] : x[0] * x[0];
  }
  BlockSum(sum, space, 0);
  const T* source = a.r1 != nullptr ? a.r1 : a.r;  // own elements: written by this thread
  float mean = 0.0f;
  if (a.shape.mean != nullptr) {
    mean = sum[0] / static_cast<float>(h);
    sum[0] = 0.0f;
    for (int32_t j = first; j < h; j += kLoopThreads) {
      const float x = static_cast<float>(source[begin + j]) - mean;
      sum[0] += x * x;
    }
    BlockSum(sum, space, 1);
  }
  const float rstd = 1.0f / sqrtf(sum[0] / static_cast<float>(h) + a.eps);
  if (threadIdx.x == 0) {
    if (a.shape.mean != nullptr) a.shape.mean[row] = mean;
    a.shape.rstd[row] = rstd;
  }
  for (int32_t j = first; j < h; j += kLoopThreads) {
    const float x[1] = {static_cast<float>(source[begin + j])};
    Normalize<T, 1>(a, mean, rstd, j, x, a.n + begin + j);
  }
}

template <typename T>
Status NormT(const OpCall& call) {
  const Operands operands(call);
  NormArguments<T> a;
  a.shape = NormShapeOf(call, "r");
  const int64_t elements = a.shape.rows * a.shape.h;
  a.eps = static_cast<float>(call.op.attributes.eps);
  a.r = operands.Get<T>("r", elements);
  a.delta = operands.Get<T>("delta", elements);
  a.other = operands.Get<T>("delta_other", elements);
  a.gamma = operands.Get<T>("gamma", a.shape.h);
  a.beta = operands.Get<T>("beta", a.shape.h);
  a.r1 = operands.Get<T>("r1", elements);
  a.n = operands.Get<T>("n", elements);
  MW_CHECK(a.r1 != nullptr || a.delta == nullptr);
  MW_CHECK(a.delta != nullptr || a.other == nullptr);
  constexpr int N = kWide<T>;
  const auto blocks = static_cast<unsigned>(a.shape.rows);
  const auto loop = [&] {
    NormLoopKernel<T><<<blocks, kLoopThreads, 0, StreamOf(call)>>>(a);
    return Launched(call);
  };
  if (a.shape.h % N != 0 || !Aligned16(a.r, a.delta, a.other, a.gamma, a.beta, a.r1, a.n)) {
    return loop();
  }
  return WithRowConfig(
      a.shape.h / N,
      [&](auto config) {
        using C = decltype(config);
        const auto kernel = a.other != nullptr ? NormKernel<T, N, C::kThreads, C::kPacks, true>
                                               : NormKernel<T, N, C::kThreads, C::kPacks, false>;
        kernel<<<blocks, C::kThreads, 0, StreamOf(call)>>>(a);
        return Launched(call);
      },
      loop);
}

template <typename T, int N>
struct NormApplyMap {
  static constexpr int kWidth = N;
  NormArguments<T> a;

  struct In {
    Pack<T, N> x;
    float mean, rstd;
  };
  __device__ In Load(int64_t row, int64_t column) const {
    return {Pack<T, N>::Load(a.r + row * a.shape.h + column),
            a.shape.mean != nullptr ? a.shape.mean[row] : 0.0f, a.shape.rstd[row]};
  }
  __device__ void Store(int64_t row, int64_t column, const In& in) const {
    float x[N];
    in.x.Unpack(x);
    Normalize<T, N>(a, in.mean, in.rstd, column, x, a.n + row * a.shape.h + column);
  }
};

template <typename T>
Status NormApplyT(const OpCall& call) {
  const Operands operands(call);
  NormArguments<T> a = {};
  a.shape = NormShapeOf(call, "r1");
  const int64_t elements = a.shape.rows * a.shape.h;
  a.r = operands.Get<T>("r1", elements);
  a.gamma = operands.Get<T>("gamma", a.shape.h);
  a.beta = operands.Get<T>("beta", a.shape.h);
  a.n = operands.Get<T>("n", elements);
  if (a.shape.h % kWide<T> == 0 && Aligned16(a.r, a.gamma, a.beta, a.n)) {
    return RowMap(call, NormApplyMap<T, kWide<T>>{a}, a.shape.rows, a.shape.h);
  }
  return RowMap(call, NormApplyMap<T, 1>{a}, a.shape.rows, a.shape.h);
}

}  // namespace

Status Norm(const OpCall& call) {
  return ForCompute(call, "r", [&](auto zero) { return NormT<decltype(zero)>(call); });
}
Status NormApply(const OpCall& call) {
  return ForCompute(call, "r1", [&](auto zero) { return NormApplyT<decltype(zero)>(call); });
}

}  // namespace meshwright::runtime::cuda
