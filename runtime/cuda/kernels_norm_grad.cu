// Norm backward in one pass over dn, r1 and dr_in: blocks stay for many rows, copy the next ones
// into shared memory while they work on one, and keep their sums of gamma and beta gradients in
// registers; a second stage adds the blocks' sums in order.
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
  float* partial;  ///< a block: [h] of gamma [, then h of beta]
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

/// Threads a row and packs a thread of the one-pass kernel: the sums of beta, when they are wanted,
/// take the registers of a second pack.
template <bool kBeta, typename F, typename G>
Status WithGradConfig(int64_t packs, F f, G otherwise) {
  if (packs <= 128) return f(RowConfig<128, 1>{});
  if (packs <= 256) return f(RowConfig<256, 1>{});
  if constexpr (kBeta) {
    if (packs <= 512) return f(RowConfig<512, 1>{});
  } else {
    if (packs <= 512) return f(RowConfig<256, 2>{});
  }
  if (packs <= 1024) return f(RowConfig<512, 2>{});
  if (packs <= 2048) return f(RowConfig<512, 4>{});
  return otherwise();
}

/// Threads that an SM must hold: bounds the registers.
constexpr int ResidentThreads(int packs, bool beta) {
  if (packs >= 4) return 512;
  if (packs == 2) return beta ? 512 : 768;
  return 1024;
}

/// Rows that a block has in shared memory or on the way there.
constexpr int GradStages(int threads, int packs) {
  return threads * packs >= 2048 ? 2 : 3;
}
constexpr int kGradInputs = 3;  ///< dn, r1, dr_in
constexpr int GradStageBytes(int threads, int packs) {
  return kGradInputs * threads * packs * 16;
}

/// 16 bytes to shared memory without passing registers.
__device__ inline void CopyAsync(uint4* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}
__device__ inline void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// All but the latest kPending groups of this thread have arrived.
template <int kPending>
__device__ void AwaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// The packs of a row that a thread owns; it alone writes and reads them, so that its own wait is
/// enough.
template <typename T, int N, int kThreads, int kPacks>
struct GradStage {
  uint4* own;  ///< of this thread in the stage

  __device__ uint4* At(int input, int v) const { return own + (input * kPacks + v) * kThreads; }
  __device__ Pack<T, N> Load(int input, int v) const {
    return Pack<T, N>::Load(reinterpret_cast<const T*>(At(input, v)));
  }
  __device__ void Fetch(const GradArguments<T>& a, int64_t row, int32_t packs) const {
#pragma unroll
    for (int v = 0; v < kPacks; ++v) {
      const int32_t pack = static_cast<int32_t>(threadIdx.x) + v * kThreads;
      if (pack >= packs) continue;
      const int64_t at = row * a.shape.h + int64_t{pack} * N;
      CopyAsync(At(0, v), a.dn + at);
      CopyAsync(At(1, v), a.r1 + at);
      if (a.dr_in != nullptr) CopyAsync(At(2, v), a.dr_in + at);
    }
  }
};

/// What a thread has of a row and of the parameters' gradients.
template <typename T, int N, int kThreads, int kPacks, bool kMean, bool kBeta>
struct GradRow {
  static constexpr int kSums = kMean ? 2 : 1;  ///< of g * xhat, of g
  using Stage = GradStage<T, N, kThreads, kPacks>;

  int32_t packs;  ///< of a row
  Pack<T, N> gamma[kPacks];
  float gamma_sums[kPacks][N] = {};
  float beta_sums[kBeta ? kPacks : 1][N] = {};

  __device__ static int32_t PackAt(int v) {
    return static_cast<int32_t>(threadIdx.x) + v * kThreads;
  }
  __device__ bool Has(int v) const { return PackAt(v) < packs; }
  __device__ static int64_t Column(int v) { return int64_t{PackAt(v)} * N; }

  __device__ void LoadGamma(const T* from) {
#pragma unroll
    for (int v = 0; v < kPacks; ++v) {
      gamma[v] = Has(v) ? Pack<T, N>::Load(from + Column(v)) : Pack<T, N>::Zero();
    }
  }
  __device__ void Add(const Stage& in, float one, float mean, float rstd, float (&sums)[kSums]) {
#pragma unroll
    for (int v = 0; v < kPacks; ++v) {
      if (!Has(v)) continue;
      float dn[N], xhat[N], weight[N];
      Expand<T, N>(in.Load(0, v), in.Load(1, v), mean, rstd, dn, xhat);
      gamma[v].Unpack(weight);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float g = dn[i] * (weight[i] + one);
        sums[0] += g * xhat[i];
        if constexpr (kMean) sums[1] += g;
        gamma_sums[v][i] += dn[i] * xhat[i];
        if constexpr (kBeta) beta_sums[v][i] += dn[i];
      }
    }
  }
  __device__ void Store(const GradArguments<T>& a, const Stage& in, int64_t row, float mean,
                        float rstd, float g_mean, float product_mean) const {
#pragma unroll
    for (int v = 0; v < kPacks; ++v) {
      if (!Has(v)) continue;
      float dn[N], xhat[N], weight[N];
      Expand<T, N>(in.Load(0, v), in.Load(1, v), mean, rstd, dn, xhat);
      gamma[v].Unpack(weight);
      const auto dr_in = a.dr_in != nullptr ? in.Load(2, v) : Pack<T, N>::Zero();
      StoreInputGrad<T, N>(a, dn, xhat, weight, dr_in, rstd, g_mean, product_mean,
                           row * a.shape.h + Column(v));
    }
  }
  __device__ void StorePartial(float* at, int32_t h) const {
#pragma unroll
    for (int v = 0; v < kPacks; ++v) {
      if (!Has(v)) continue;
      StoreFloats(at + Column(v), gamma_sums[v]);
      if constexpr (kBeta) StoreFloats(at + h + Column(v), beta_sums[v]);
    }
  }
};

template <typename T, int N, int kThreads, int kPacks, bool kMean, bool kBeta>
__global__ void __launch_bounds__(kThreads, ResidentThreads(kPacks, kBeta) / kThreads)
    NormGradKernel(const GradArguments<T> a) {
  using Row = GradRow<T, N, kThreads, kPacks, kMean, kBeta>;
  constexpr int kStages = GradStages(kThreads, kPacks);
  constexpr int kStagePacks = kGradInputs * kPacks * kThreads;
  extern __shared__ uint4 staging[];
  __shared__ SumSpace<kThreads, Row::kSums> space;
  const int32_t h = a.shape.h;
  const auto rows = static_cast<uint32_t>(a.shape.rows);  // below 2^31
  const bool layer = kMean && a.shape.mean != nullptr;
  Row own;
  own.packs = h / N;
  own.LoadGamma(a.gamma);
  const auto stage_at = [&](int stage) {
    return typename Row::Stage{staging + stage * kStagePacks + threadIdx.x};
  };
  const auto fetch = [&](uint32_t row, int stage) {
    if (row < rows) stage_at(stage).Fetch(a, row, own.packs);
    CommitCopies();  // also without a row: groups are counted
  };
  const uint32_t stride = gridDim.x;
#pragma unroll
  for (int s = 0; s + 1 < kStages; ++s) fetch(blockIdx.x + s * stride, s);
  float mean = layer ? a.shape.mean[blockIdx.x] : 0.0f;
  float rstd = a.shape.rstd[blockIdx.x];
  int turn = 0;
  int stage = 0;
  for (uint32_t row = blockIdx.x; row < rows; row += stride, turn ^= 1) {
    fetch(row + (kStages - 1) * stride, stage == 0 ? kStages - 1 : stage - 1);
    const uint32_t next = min(row + stride, rows - 1);
    const float next_mean = layer ? a.shape.mean[next] : 0.0f;
    const float next_rstd = a.shape.rstd[next];
    AwaitCopies<kStages - 1>();
    const auto in = stage_at(stage);
    float sums[Row::kSums] = {};
    own.Add(in, a.shape.one, mean, rstd, sums);
    BlockSum(sums, space, turn);
    const float product_mean = sums[0] / static_cast<float>(h);
    const float g_mean = layer ? sums[Row::kSums - 1] / static_cast<float>(h) : 0.0f;
    own.Store(a, in, row, mean, rstd, g_mean, product_mean);
    mean = next_mean;
    rstd = next_rstd;
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  AllowNextKernel();
  own.StorePartial(a.partial + int64_t{blockIdx.x} * h * (kBeta ? 2 : 1), h);
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

  using In = float;
  __device__ float Load(int64_t row, int64_t column) const {
    const int64_t at = row * a.shape.h + column;
    const float dn = static_cast<float>(a.dn[at]);
    if constexpr (kBeta) return dn;
    const float mean = a.shape.mean != nullptr ? a.shape.mean[row] : 0.0f;
    return dn * (static_cast<float>(a.r1[at]) - mean) * a.shape.rstd[row];
  }
  __device__ void Add(float term, float (&sums)[1]) const { sums[0] += term; }
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

template <typename T, int kThreads, int kPacks, bool kMean, bool kBeta>
Status LaunchOnePass(const OpCall& call, GradArguments<T> a, const ParameterGrads& grads) {
  const CudaDevice& device = DeviceOf(call);
  const auto kernel = NormGradKernel<T, kWide<T>, kThreads, kPacks, kMean, kBeta>;
  constexpr int kBytes = GradStages(kThreads, kPacks) * GradStageBytes(kThreads, kPacks);
  static int blocks_per_sm = 0;  // the same on all GPUs of a host; asked for once
  if (blocks_per_sm == 0) {
    MW_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    MW_CUDA_CALL(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_sm, kernel, kThreads, kBytes));
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
  kernel<<<static_cast<unsigned>(blocks), kThreads, kBytes, StreamOf(call)>>>(a);
  MW_RETURN_IF_ERROR(Launched(call));
  return SumPartials(call, a.partial, blocks, a.shape.h, {grads.gamma, grads.add_gamma},
                     {kBeta ? grads.beta : nullptr, grads.add_beta});
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
  const auto one_pass = [&](auto mean, auto beta) {
    constexpr bool kMean = decltype(mean)::value;
    constexpr bool kBeta = decltype(beta)::value;
    return WithGradConfig<kBeta>(
        a.shape.h / N,
        [&](auto config) {
          using C = decltype(config);
          return LaunchOnePass<T, C::kThreads, C::kPacks, kMean, kBeta>(call, a, grads);
        },
        loop);
  };
  if (grads.beta != nullptr) return one_pass(std::true_type{}, std::true_type{});
  if (a.shape.mean != nullptr) return one_pass(std::true_type{}, std::false_type{});
  return one_pass(std::false_type{}, std::false_type{});
}

}  // namespace

Status NormGrad(const OpCall& call) {
  return ForCompute(call, "r1", [&](auto zero) { return NormGradT<decltype(zero)>(call); });
}

}  // namespace meshwright::runtime::cuda
