// Norm backward in one pass over dn, r1 and dr_in: blocks stay for many rows, copy the next ones
// into shared memory while they work on one, and keep their sums of gamma and beta gradients in
// registers; a second stage adds the blocks' sums in order. A block may hold several groups of
// threads that work on rows of their own and add their sums at the end.
//   dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dn * gamma; RMS norms lack mean(g).
#include "runtime/cuda/column_sums.cuh"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/norm_grad_stage.cuh"

namespace meshwright::runtime::cuda {
namespace {

/// dr_out = dr_in + dx of one pack; g_mean and product_mean as in the formula.
template <typename T, int N>
__device__ void StoreInputGrad(const GradArguments<T>& a, const float (&g)[N],
                               const float (&xhat)[N], const Pack<T, N>& dr_in, float rstd,
                               float g_mean, float product_mean, int64_t at) {
  float out[N] = {};
  if (a.dr_in != nullptr) dr_in.Unpack(out);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] += rstd * (g[i] - g_mean - xhat[i] * product_mean);
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

/// Groups of kThreads threads a block.
template <int kThreads_, int kPacks_, int kGroups_, bool kKeep_>
struct GradWay {
  static constexpr int kThreads = kThreads_;
  static constexpr int kPacks = kPacks_;
  static constexpr int kGroups = kGroups_;
  static constexpr bool kKeep = kKeep_;  ///< g and xhat in registers from the sums to the result
};

/// What the threads of a row have of it and of the parameters' gradients.
template <typename T, int N, typename Way, bool kMean, bool kBeta>
struct GradRow {
  static constexpr int kThreads = Way::kThreads;
  static constexpr int kPacks = Way::kPacks;
  static constexpr int kSums = kMean ? 2 : 1;  ///< of g * xhat, of g
  using Stage = GradStage<T, N, kThreads, kPacks>;

  int32_t thread;  ///< of the group
  int32_t packs;   ///< of a row
  Pack<T, N> gamma[kPacks];
  float gamma_sums[kPacks][N] = {};
  float beta_sums[kBeta ? kPacks : 1][N] = {};
  float kept_g[Way::kKeep ? kPacks : 1][N];
  float kept_xhat[Way::kKeep ? kPacks : 1][N];

  __device__ bool Has(int v) const { return thread + v * kThreads < packs; }
  __device__ int64_t Column(int v) const { return int64_t{thread + v * kThreads} * N; }

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
        if constexpr (Way::kKeep) kept_g[v][i] = g, kept_xhat[v][i] = xhat[i];
      }
    }
  }
  /// dr_out = dr_in + dx; g_mean and product_mean as in the formula.
  __device__ void Store(const GradArguments<T>& a, const Stage& in, int64_t row, float mean,
                        float rstd, float g_mean, float product_mean) const {
#pragma unroll
    for (int v = 0; v < kPacks; ++v) {
      if (!Has(v)) continue;
      const auto dr_in = a.dr_in != nullptr ? in.Load(2, v) : Pack<T, N>::Zero();
      const int64_t at = row * a.shape.h + Column(v);
      if constexpr (Way::kKeep) {
        StoreInputGrad<T, N>(a, kept_g[v], kept_xhat[v], dr_in, rstd, g_mean, product_mean, at);
      } else {
        float g[N], xhat[N], weight[N];
        Expand<T, N>(in.Load(0, v), in.Load(1, v), mean, rstd, g, xhat);
        gamma[v].Unpack(weight);
#pragma unroll
        for (int i = 0; i < N; ++i) g[i] *= weight[i] + a.shape.one;
        StoreInputGrad<T, N>(a, g, xhat, dr_in, rstd, g_mean, product_mean, at);
      }
    }
  }
  static constexpr int kQuads = N / 4;
  static constexpr int kJoinQuads = kPacks * kQuads * (kBeta ? 2 : 1);  ///< float4 of a thread

  /// Adds the sums of the groups, in order, to those of the first. Shared memory: free for all.
  __device__ void Join(float4* shared, int group) {
    if constexpr (Way::kGroups == 1) return;
    __syncthreads();
    float4* const own = shared + thread;
    const auto each = [&](auto f) {
#pragma unroll
      for (int v = 0; v < kPacks; ++v) {
#pragma unroll
        for (int q = 0; q < kQuads; ++q) {
          f(gamma_sums[v] + 4 * q, v * kQuads + q);
          if constexpr (kBeta) f(beta_sums[v] + 4 * q, (kPacks + v) * kQuads + q);
        }
      }
    };
    each([&](const float* s, int quad) {
      if (group == 0) return;
      own[((group - 1) * kJoinQuads + quad) * kThreads] = make_float4(s[0], s[1], s[2], s[3]);
    });
    __syncthreads();
    if (group != 0) return;
#pragma unroll
    for (int other = 0; other + 1 < Way::kGroups; ++other) {
      each([&](float* s, int quad) {
        const float4 x = own[(other * kJoinQuads + quad) * kThreads];
        s[0] += x.x, s[1] += x.y, s[2] += x.z, s[3] += x.w;
      });
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

/// Waits for the threads of a group.
template <int kThreads, int kGroups>
__device__ void AwaitGroup(int group) {
  if constexpr (kGroups == 1) {
    __syncthreads();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kThreads) : "memory");
  }
}

template <typename T, int N, typename Way, bool kMean, bool kBeta>
__global__ void __launch_bounds__(Way::kThreads* Way::kGroups, ResidentThreads(Way::kPacks, kBeta) /
                                                                   (Way::kThreads * Way::kGroups))
    NormGradKernel(const GradArguments<T> a) {
  using Row = GradRow<T, N, Way, kMean, kBeta>;
  constexpr int kThreads = Way::kThreads;
  constexpr int kStages = GradStages(kThreads, Way::kPacks);
  constexpr int kStagePacks = kGradInputs * Way::kPacks * kThreads;
  extern __shared__ uint4 staging[];
  __shared__ SumSpace<kThreads, Row::kSums> space[Way::kGroups];
  const int32_t h = a.shape.h;
  const auto rows = static_cast<uint32_t>(a.shape.rows);  // below 2^31
  const bool layer = kMean && a.shape.mean != nullptr;
  const int group = Way::kGroups == 1 ? 0 : static_cast<int>(threadIdx.x) / kThreads;
  Row own;
  own.thread = static_cast<int32_t>(threadIdx.x) - group * kThreads;
  own.packs = h / N;
  AwaitKernelBefore();
  own.LoadGamma(a.gamma);
  const auto stage_at = [&](int stage) {
    return typename Row::Stage{staging + (group * kStages + stage) * kStagePacks + own.thread};
  };
  const auto fetch = [&](uint32_t row, int stage) {
    if (row < rows) stage_at(stage).Fetch(a, row, own.packs, own.thread);
    CommitCopies();  // also without a row: groups are counted
  };
  const uint32_t stride = gridDim.x * Way::kGroups;
  const uint32_t first = blockIdx.x * Way::kGroups + group;
#pragma unroll
  for (int s = 0; s + 1 < kStages; ++s) fetch(first + s * stride, s);
  const uint32_t first_row = min(first, rows - 1);  // a last group may have none
  float mean = layer ? a.shape.mean[first_row] : 0.0f;
  float rstd = a.shape.rstd[first_row];
  int turn = 0;
  int stage = 0;
  for (uint32_t row = first; row < rows; row += stride, turn ^= 1) {
    fetch(row + (kStages - 1) * stride, stage == 0 ? kStages - 1 : stage - 1);
    const uint32_t next = min(row + stride, rows - 1);
    const float next_mean = layer ? a.shape.mean[next] : 0.0f;
    const float next_rstd = a.shape.rstd[next];
    AwaitCopies<kStages - 1>();
    const auto in = stage_at(stage);
    float sums[Row::kSums] = {};
    own.Add(in, a.shape.one, mean, rstd, sums);
    GroupSum<kThreads>(sums, space[group], turn, own.thread,
                       [&] { AwaitGroup<kThreads, Way::kGroups>(group); });
    const float product_mean = sums[0] / static_cast<float>(h);
    const float g_mean = layer ? sums[Row::kSums - 1] / static_cast<float>(h) : 0.0f;
    own.Store(a, in, row, mean, rstd, g_mean, product_mean);
    mean = next_mean;
    rstd = next_rstd;
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  AllowNextKernel();
  static_assert((Way::kGroups - 1) * Row::kJoinQuads <= Way::kGroups * kStages * kGradInputs);
  own.Join(reinterpret_cast<float4*>(staging), group);
  if (group == 0) own.StorePartial(a.partial + int64_t{blockIdx.x} * h * (kBeta ? 2 : 1), h);
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
    const float gamma = static_cast<float>(a.gamma[j]);
    const float g[1] = {static_cast<float>(a.dn[at]) * (gamma + a.shape.one)};
    const float xhat[1] = {(static_cast<float>(a.r1[at]) - mean) * rstd};
    const auto dr_in = a.dr_in != nullptr ? Pack<T, 1>::Load(a.dr_in + at) : Pack<T, 1>::Zero();
    StoreInputGrad<T, 1>(a, g, xhat, dr_in, rstd, g_mean, product_mean, at);
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

template <typename T, typename Way, bool kMean, bool kBeta>
Status LaunchOnePass(const OpCall& call, GradArguments<T> a, const ParameterGrads& grads) {
  const CudaDevice& device = DeviceOf(call);
  const auto kernel = NormGradKernel<T, kWide<T>, Way, kMean, kBeta>;
  constexpr int kThreads = Way::kThreads * Way::kGroups;
  constexpr int kBytes = GradStages(Way::kThreads, Way::kPacks) * Way::kGroups *
                         GradStageBytes(Way::kThreads, Way::kPacks);
  static int blocks_per_sm = 0;  // the same on all GPUs of a host; asked for once
  if (blocks_per_sm == 0) {
    MW_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    MW_CUDA_CALL(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_sm, kernel, kThreads, kBytes));
    MW_CHECK(blocks_per_sm > 0);
  }
  const int64_t row_bytes = int64_t{a.shape.h} * (kBeta ? 8 : 4);
  const int64_t fitting = std::max<int64_t>(device.workspace_cap() / row_bytes, 1);
  const int64_t resident = std::min(int64_t{blocks_per_sm} * device.sm_count(), fitting);
  const int64_t most = std::min(resident * Way::kGroups, a.shape.rows);
  // All groups get the same number of rows, but for the last ones.
  const int64_t rows_per_group = (a.shape.rows + most - 1) / most;
  const int64_t groups = (a.shape.rows + rows_per_group - 1) / rows_per_group;
  const int64_t blocks = (groups + Way::kGroups - 1) / Way::kGroups;
  MW_ASSIGN_OR_RETURN(std::byte* const space, device.workspace(call.op.stream, blocks * row_bytes));
  a.partial = reinterpret_cast<float*>(space);
  const int candidate = Candidates().norm_grad;
  MW_RETURN_IF_ERROR(Launch(call, candidate == kJoinedKeepBehind, kernel,
                            dim3(static_cast<unsigned>(blocks)), dim3(kThreads), kBytes, a));
  return SumPartials(call, a.partial, blocks, a.shape.h, {grads.gamma, grads.add_gamma},
                     {kBeta ? grads.beta : nullptr, grads.add_beta}, candidate >= kJoinedSlim);
}

/// By the candidate.
template <typename T, int kThreads, int kPacks, bool kMean, bool kBeta>
Status LaunchCandidate(const OpCall& call, const GradArguments<T>& a, const ParameterGrads& grads) {
  constexpr int kGroups = ResidentThreads(kPacks, kBeta) / kThreads;
  if constexpr (kPacks == 1) {
    // 768 threads leave registers for what is kept; 512 a row become 256 with two packs.
    using Way = std::conditional_t<kThreads == 512, GradWay<256, 2, 2, true>,
                                   GradWay<kThreads, 1, 768 / kThreads, true>>;
    if (Candidates().norm_grad >= kJoinedKeep) {
      return LaunchOnePass<T, Way, kMean, kBeta>(call, a, grads);
    }
  }
  if (Candidates().norm_grad >= kJoined) {
    return LaunchOnePass<T, GradWay<kThreads, kPacks, kGroups, false>, kMean, kBeta>(call, a,
                                                                                     grads);
  }
  return LaunchOnePass<T, GradWay<kThreads, kPacks, 1, false>, kMean, kBeta>(call, a, grads);
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
          return LaunchCandidate<T, C::kThreads, C::kPacks, kMean, kBeta>(call, a, grads);
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
