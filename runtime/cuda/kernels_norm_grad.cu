// Norm backward in one pass over dn, r1 and dr_in: blocks stay for many rows and keep their sums of
// gamma and beta gradients in registers; a second stage adds the blocks' sums in order.
//   dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dn * gamma; RMS norms lack mean(g).
#include "runtime/cuda/column_sums.cuh"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/norm_arguments.cuh"

namespace meshwright::runtime::cuda {
namespace {

template <typename T>
struct GradArguments {
  NormShape shape;
  const T* dn;
  const T* r1;
  const T* gamma;
  const T* dr_in;  ///< nullptr: none
  T* dr_out;       ///< may lie exactly over an input
  float* partial;  ///< [blocks, h] of gamma, then [blocks, h] of beta
};

/// dr_out = dr_in + dx of one pack; g_mean and product_mean as in the formula.
template <typename T, int N>
__device__ void StoreInputGrad(const GradArguments<T>& a, const float (&dn)[N],
                               const float (&xhat)[N], const float (&gamma)[N],
                               const Pack<T, N>& dr_in, float rstd, float g_mean,
                               float product_mean, int64_t at) {
  float out[N] = {};
  if (a.dr_in != nullptr) dr_in.Unpack(out);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float g = dn[i] * (gamma[i] + a.shape.one);
    out[i] += rstd * (g - g_mean - xhat[i] * product_mean);
  }
  Pack<T, N>::From(out).Store(a.dr_out + at);
}

/// dn and xhat of one pack.
template <typename T, int N>
__device__ void Expand(const Pack<T, N>& dn_pack, const Pack<T, N>& x_pack, float mean, float rstd,
                       float (&dn)[N], float (&xhat)[N]) {
  dn_pack.Unpack(dn);
  x_pack.Unpack(xhat);
#pragma unroll
  for (int i = 0; i < N; ++i) xhat[i] = (xhat[i] - mean) * rstd;
}

/// Threads that an SM must hold: bounds the registers, and leaves rows to load while others sum.
constexpr int ResidentThreads(int packs, bool beta) {
  if (packs >= 4) return 512;
  if (packs == 2) return beta ? 640 : 768;
  return 1024;
}

template <typename T, int N, int kThreads, int kPacks, bool kBeta>
__global__ void __launch_bounds__(kThreads, ResidentThreads(kPacks, kBeta) / kThreads)
    NormGradKernel(const GradArguments<T> a) {
  __shared__ SumSpace<kThreads, 2> space;
  const int32_t h = a.shape.h;
  const int32_t packs = h / N;
  const bool layer = a.shape.mean != nullptr;
  Pack<T, N> gamma[kPacks];
  float gamma_sums[kPacks][N] = {};
  float beta_sums[kBeta ? kPacks : 1][N] = {};
#pragma unroll
  for (int v = 0; v < kPacks; ++v) {
    const int32_t pack = static_cast<int32_t>(threadIdx.x) + v * kThreads;
    gamma[v] = pack < packs ? Pack<T, N>::Load(a.gamma + int64_t{pack} * N) : Pack<T, N>::Zero();
  }
  int turn = 0;
  for (int64_t row = blockIdx.x; row < a.shape.rows; row += gridDim.x, turn ^= 1) {
    const int64_t begin = row * h;
    Pack<T, N> dn_packs[kPacks], x_packs[kPacks], dr_packs[kPacks];
#pragma unroll
    for (int v = 0; v < kPacks; ++v) {
      const int32_t pack = static_cast<int32_t>(threadIdx.x) + v * kThreads;
      if (pack >= packs) continue;
      const int64_t at = begin + int64_t{pack} * N;
      dn_packs[v] = Pack<T, N>::Load(a.dn + at);
      x_packs[v] = Pack<T, N>::Load(a.r1 + at);
      if (a.dr_in != nullptr) dr_packs[v] = Pack<T, N>::Load(a.dr_in + at);
    }
    const float mean = layer ? a.shape.mean[row] : 0.0f;
    const float rstd = a.shape.rstd[row];
    float sums[2] = {};  // of g and of g * xhat
#pragma unroll
    for (int v = 0; v < kPacks; ++v) {
      if (static_cast<int32_t>(threadIdx.x) + v * kThreads >= packs) continue;
      float dn[N], xhat[N], weight[N];
      Expand<T, N>(dn_packs[v], x_packs[v], mean, rstd, dn, xhat);
      gamma[v].Unpack(weight);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float g = dn[i] * (weight[i] + a.shape.one);
        sums[0] += g;
        sums[1] += g * xhat[i];
        gamma_sums[v][i] += dn[i] * xhat[i];
        if constexpr (kBeta) beta_sums[v][i] += dn[i];
      }
    }
    BlockSum(sums, space, turn);
    const float g_mean = layer ? sums[0] / static_cast<float>(h) : 0.0f;
    const float product_mean = sums[1] / static_cast<float>(h);
#pragma unroll
    for (int v = 0; v < kPacks; ++v) {
      const int32_t pack = static_cast<int32_t>(threadIdx.x) + v * kThreads;
      if (pack >= packs) continue;
      float dn[N], xhat[N], weight[N];
      Expand<T, N>(dn_packs[v], x_packs[v], mean, rstd, dn, xhat);
      gamma[v].Unpack(weight);
      StoreInputGrad<T, N>(a, dn, xhat, weight, dr_packs[v], rstd, g_mean, product_mean,
                           begin + int64_t{pack} * N);
    }
  }
#pragma unroll
  for (int v = 0; v < kPacks; ++v) {
    const int32_t pack = static_cast<int32_t>(threadIdx.x) + v * kThreads;
    if (pack >= packs) continue;
    float* const at = a.partial + int64_t{blockIdx.x} * h + int64_t{pack} * N;
    StoreFloats(at, gamma_sums[v]);
    if constexpr (kBeta) StoreFloats(at + int64_t{gridDim.x} * h, beta_sums[v]);
  }
}

/// Input gradient of rows of any length and alignment.
template <typename T>
__global__ void __launch_bounds__(kLoopThreads) InputGradLoopKernel(const GradArguments<T> a) {
  __shared__ SumSpace<kLoopThreads, 2> space;
  const int64_t row = blockIdx.x;
  const int32_t h = a.shape.h;
  const int64_t begin = row * h;
  const bool layer = a.shape.mean != nullptr;
  const float mean = layer ? a.shape.mean[row] : 0.0f;
  const float rstd = a.shape.rstd[row];
  float sums[2] = {};
  for (auto j = static_cast<int32_t>(threadIdx.x); j < h; j += kLoopThreads) {
    const float g =
        static_cast<float>(a.dn[begin + j]) * (static_cast<float>(a.gamma[j]) + a.shape.one);
    sums[0] += g;
    sums[1] += g * (static_cast<float>(a.r1[begin + j]) - mean) * rstd;
  }
  BlockSum(sums, space, 0);
  const float g_mean = layer ? sums[0] / static_cast<float>(h) : 0.0f;
  const float product_mean = sums[1] / static_cast<float>(h);
  for (auto j = static_cast<int32_t>(threadIdx.x); j < h; j += kLoopThreads) {
    const int64_t at = begin + j;
    const float dn[1] = {static_cast<float>(a.dn[at])};
    const float xhat[1] = {(static_cast<float>(a.r1[at]) - mean) * rstd};
    const float gamma[1] = {static_cast<float>(a.gamma[j])};
    const auto dr_in = a.dr_in != nullptr ? Pack<T, 1>::Load(a.dr_in + at) : Pack<T, 1>::Zero();
    StoreInputGrad<T, 1>(a, dn, xhat, gamma, dr_in, rstd, g_mean, product_mean, at);
  }
}

/// Terms of the gradients of gamma (kBeta false) and beta for the two-stage column sums.
template <typename T, bool kBeta>
struct ParameterSum {
  static constexpr int kWidth = 1;
  GradArguments<T> a;

  __device__ void Add(int64_t row, int64_t column, float (&sums)[1]) const {
    const int64_t at = row * a.shape.h + column;
    const float dn = static_cast<float>(a.dn[at]);
    if constexpr (kBeta) {
      sums[0] += dn;
    } else {
      const float mean = a.shape.mean != nullptr ? a.shape.mean[row] : 0.0f;
      sums[0] += dn * (static_cast<float>(a.r1[at]) - mean) * a.shape.rstd[row];
    }
  }
};

struct ParameterGrads {
  float* gamma = nullptr;
  float* beta = nullptr;  ///< nullptr: none
  bool add_gamma = false;
  bool add_beta = false;
};

template <typename T>
Status LaunchLoops(const OpCall& call, const GradArguments<T>& a, const ParameterGrads& grads) {
  // Parameter gradients first: dr_out may lie over an input.
  MW_RETURN_IF_ERROR(ColumnSums(call, ParameterSum<T, false>{a}, a.shape.rows, a.shape.h,
                                grads.add_gamma, grads.gamma));
  if (grads.beta != nullptr) {
    MW_RETURN_IF_ERROR(ColumnSums(call, ParameterSum<T, true>{a}, a.shape.rows, a.shape.h,
                                  grads.add_beta, grads.beta));
  }
  InputGradLoopKernel<T>
      <<<static_cast<unsigned>(a.shape.rows), kLoopThreads, 0, StreamOf(call)>>>(a);
  return Launched(call);
}

template <typename T, int kThreads, int kPacks, bool kBeta>
Status LaunchOnePass(const OpCall& call, GradArguments<T> a, const ParameterGrads& grads) {
  const CudaDevice& device = DeviceOf(call);
  const auto kernel = NormGradKernel<T, kWide<T>, kThreads, kPacks, kBeta>;
  static int blocks_per_sm = 0;  // the same on all GPUs of a host; asked for once
  if (blocks_per_sm == 0) {
    MW_CUDA_CALL(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_sm, kernel, kThreads, 0));
    MW_CHECK(blocks_per_sm > 0);
  }
  const int64_t row_bytes = int64_t{a.shape.h} * (kBeta ? 8 : 4);
  const int64_t fitting = std::max<int64_t>(device.workspace_cap() / row_bytes, 1);
  const int64_t most =
      std::min({int64_t{blocks_per_sm} * device.sm_count(), a.shape.rows, fitting});
  // All blocks get the same number of rows, but for the last ones.
  const int64_t rows_per_block = (a.shape.rows + most - 1) / most;
  const int64_t blocks = (a.shape.rows + rows_per_block - 1) / rows_per_block;
  MW_ASSIGN_OR_RETURN(std::byte* const space, device.workspace(call.op.stream, blocks * row_bytes));
  a.partial = reinterpret_cast<float*>(space);
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, StreamOf(call)>>>(a);
  MW_RETURN_IF_ERROR(Launched(call));
  MW_RETURN_IF_ERROR(SumPartials(call, a.partial, blocks, a.shape.h, grads.add_gamma, grads.gamma));
  if constexpr (kBeta) {
    return SumPartials(call, a.partial + blocks * a.shape.h, blocks, a.shape.h, grads.add_beta,
                       grads.beta);
  }
  return Status::Ok();
}

template <typename T>
Status NormGradT(const OpCall& call) {
  const Operands operands(call);
  GradArguments<T> a = {};
  a.shape = NormShapeOf(call, "r1");
  const int64_t elements = a.shape.rows * a.shape.h;
  a.dn = operands.Get<T>("dn", elements);
  a.r1 = operands.Get<T>("r1", elements);
  a.gamma = operands.Get<T>("gamma", a.shape.h);
  a.dr_in = operands.Get<T>("dr_in", elements);
  a.dr_out = operands.Get<T>("dr_out", elements);
  ParameterGrads grads;
  grads.gamma = operands.Get<float>("gamma_grad", a.shape.h);
  grads.beta = operands.Get<float>("beta_grad", a.shape.h);
  grads.add_gamma = operands.Accumulates("gamma_grad");
  grads.add_beta = operands.Accumulates("beta_grad");
  constexpr int N = kWide<T>;
  const auto loop = [&] { return LaunchLoops(call, a, grads); };
  if (a.shape.h % N != 0 || !Aligned16(a.dn, a.r1, a.gamma, a.dr_in, a.dr_out)) return loop();
  return WithRowConfig(
      a.shape.h / N,
      [&](auto config) {
        using C = decltype(config);
        return grads.beta != nullptr
                   ? LaunchOnePass<T, C::kThreads, C::kPacks, true>(call, a, grads)
                   : LaunchOnePass<T, C::kThreads, C::kPacks, false>(call, a, grads);
      },
      loop);
}

}  // namespace

Status NormGrad(const OpCall& call) {
  return ForCompute(call, "r1", [&](auto zero) { return NormGradT<decltype(zero)>(call); });
}

}  // namespace meshwright::runtime::cuda
