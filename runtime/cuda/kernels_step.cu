// End of step: gradient norm, statistics, clip factor, optimizer. What a rank counts and updates of
// a bucket stands in StepTables; one launch works on a whole bucket.
#include <algorithm>

#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/pack.cuh"
#include "runtime/cuda/reduce.cuh"
#include "runtime/cuda/step_tables.h"

namespace meshwright::runtime::cuda {
namespace {

constexpr int kStepThreads = 256;
constexpr int kStepWidth = 4;  ///< fp32 elements in 16 bytes

int64_t BucketElements(const OpCall& call) {
  const auto& buckets = call.rank.program->buckets;
  const int32_t index = call.op.attributes.bucket;
  MW_CHECK(index >= 0 && static_cast<size_t>(index) < buckets.size());
  return buckets[static_cast<size_t>(index)].elements;
}

/// fp32 within a chunk (32 squares a thread), fp64 beyond.
__global__ void __launch_bounds__(kStepThreads)
    SquaredNormKernel(const ChunkList list, const float* gradient, bool aligned, double* partial) {
  double total = 0.0;
  for (auto c = static_cast<int32_t>(blockIdx.x); c < list.count;
       c += static_cast<int32_t>(gridDim.x)) {
    const WorkChunk chunk = list.chunks[c];
    const float* g = gradient + chunk.begin;
    const int32_t wide =
        aligned && chunk.begin % kStepWidth == 0 ? chunk.length - chunk.length % kStepWidth : 0;
    float sum = 0.0f;
#pragma unroll 8
    for (int32_t i = static_cast<int32_t>(threadIdx.x) * kStepWidth; i < wide;
         i += kStepThreads * kStepWidth) {
      const float4 q = *reinterpret_cast<const float4*>(g + i);
      sum += q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w;
    }
    for (int32_t i = wide + static_cast<int32_t>(threadIdx.x); i < chunk.length;
         i += kStepThreads) {
      sum += g[i] * g[i];
    }
    total += static_cast<double>(sum);
  }
  total = BlockSumDouble<kStepThreads>(total);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__global__ void StepStatisticsKernel(const double* loss, const int64_t* count, bool reports_loss,
                                     bool reports_count, double* statistics) {
  statistics[1] = reports_loss ? *loss : 0.0;
  statistics[2] = reports_count ? static_cast<double>(*count) : 0.0;
}

__global__ void ClipFactorKernel(const double* statistics, double limit, double* clip) {
  double factor = 1.0;
  if (limit > 0.0) {
    factor = limit / (sqrt(statistics[0]) + 1e-6);
    if (factor > 1.0) factor = 1.0;  // a NaN norm stays a NaN
  }
  *clip = factor;
}

/// Coefficients of one optimizer step, computed once in fp64.
struct StepFactors {
  float clip;
  float rate;
  float inverse1;  ///< 1 / (1 - beta1^step)
  float inverse2;
};

__global__ void StepFactorsKernel(const double* clip, const double* rate, const int64_t* step,
                                  double beta1, double beta2, StepFactors* factors) {
  const auto t = static_cast<double>(*step);
  factors->clip = static_cast<float>(*clip);
  factors->rate = static_cast<float>(*rate);
  factors->inverse1 = static_cast<float>(1.0 / (1.0 - pow(beta1, t)));
  factors->inverse2 = static_cast<float>(1.0 / (1.0 - pow(beta2, t)));
}

/// P is the parameters' type. Bf16 parameters have an fp32 master; fp32 ones are their own.
/// m, v and master hold the own range, the others the bucket.
template <typename P>
struct StepArguments {
  ChunkList list;
  const StepFactors* factors;
  const float* gradient;
  P* parameter;
  float* m;
  float* v;
  float* master;  ///< fp32 parameters: nullptr
  int64_t own_begin;
  float beta1, beta2;
  float rest1, rest2;  ///< 1 - beta, rounded from fp64
  float epsilon;
  float decay;
  bool aligned;  ///< all pointers and the own range allow 16-byte access
};

/// m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2,
/// p -= rate (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay p); SGD: p -= rate (g + decay
/// p).
template <typename P, bool kAdam, int N>
__device__ void UpdatePack(const StepArguments<P>& a, const StepFactors& f, float decay,
                           int64_t at) {
  constexpr bool kMaster = std::is_same_v<P, Bf16>;
  const int64_t own = at - a.own_begin;
  float g[N], p[N], m[N], v[N];
  LoadFloats(a.gradient + at, g);
  if constexpr (kMaster) {
    LoadFloats(a.master + own, p);
  } else {
    LoadFloats(a.parameter + at, p);
  }
  if constexpr (kAdam) {
    LoadFloats(a.m + own, m);
    LoadFloats(a.v + own, v);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float gradient = g[i] * f.clip;
    float update = gradient;
    if constexpr (kAdam) {
      m[i] = a.beta1 * m[i] + a.rest1 * gradient;
      v[i] = a.beta2 * v[i] + a.rest2 * gradient * gradient;
      update = m[i] * f.inverse1 / (sqrtf(v[i] * f.inverse2) + a.epsilon);
    }
    p[i] -= f.rate * (update + decay * p[i]);
  }
  if constexpr (kAdam) {
    StoreFloats(a.m + own, m);
    StoreFloats(a.v + own, v);
  }
  if constexpr (kMaster) StoreFloats(a.master + own, p);
  Pack<P, N>::From(p).Store(a.parameter + at);
}

template <typename P, bool kAdam>
__global__ void __launch_bounds__(kStepThreads) OptimizerKernel(const StepArguments<P> a) {
  const WorkChunk chunk = a.list.chunks[blockIdx.x];
  const StepFactors f = *a.factors;
  const float decay = chunk.decay != 0 ? a.decay : 0.0f;
  const int32_t wide =
      a.aligned && chunk.begin % kStepWidth == 0 ? chunk.length - chunk.length % kStepWidth : 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x) * kStepWidth; i < wide;
       i += kStepThreads * kStepWidth) {
    UpdatePack<P, kAdam, kStepWidth>(a, f, decay, chunk.begin + i);
  }
  for (int32_t i = wide + static_cast<int32_t>(threadIdx.x); i < chunk.length; i += kStepThreads) {
    UpdatePack<P, kAdam, 1>(a, f, decay, chunk.begin + i);
  }
}

template <typename P>
Status OptimizerStepT(const OpCall& call) {
  constexpr bool kMaster = std::is_same_v<P, Bf16>;
  const Operands operands(call);
  const OptimizerOptions& options = call.rank.optimizer;
  const int64_t elements = BucketElements(call);
  const OwnRange own = OwnRangeOf(call.rank, call.op.attributes.bucket);
  const bool adam = call.rank.facts.optimizer == planner::OptimizerKind::kAdamW;
  StepArguments<P> a = {};
  MW_ASSIGN_OR_RETURN(a.list, DeviceOf(call).step_tables().updated(call.op.attributes.bucket));
  a.parameter = operands.Get<P>("parameter", elements);
  a.gradient = operands.Get<float>("gradient", elements);
  // State: m, v (AdamW), then the master weights, each of the own range.
  const int64_t states = (adam ? 2 : 0) + (kMaster ? 1 : 0);
  float* state = states > 0 ? operands.Get<float>("state", states * own.size) : nullptr;
  MW_CHECK(states == 0 || state != nullptr);
  if (adam) {
    a.m = state;
    a.v = state + own.size;
    state += 2 * own.size;
  }
  if (kMaster) a.master = state;
  a.own_begin = own.begin;
  a.beta1 = static_cast<float>(options.beta1);
  a.beta2 = static_cast<float>(options.beta2);
  a.rest1 = static_cast<float>(1.0 - options.beta1);
  a.rest2 = static_cast<float>(1.0 - options.beta2);
  a.epsilon = static_cast<float>(options.epsilon);
  a.decay = static_cast<float>(options.weight_decay);
  a.aligned = own.begin % kStepWidth == 0 && Aligned16(a.parameter, a.gradient, a.m, a.v, a.master);
  if (a.list.count == 0) return Status::Ok();
  MW_ASSIGN_OR_RETURN(std::byte* const space,
                      DeviceOf(call).workspace(call.op.stream, sizeof(StepFactors)));
  auto* factors = reinterpret_cast<StepFactors*>(space);
  a.factors = factors;
  StepFactorsKernel<<<1, 1, 0, StreamOf(call)>>>(
      operands.Get<double>("clip", 1), operands.Get<double>("learning_rate", 1),
      operands.Get<int64_t>("step", 1), options.beta1, options.beta2, factors);
  MW_RETURN_IF_ERROR(Launched(call));
  const auto blocks = static_cast<unsigned>(a.list.count);
  if (adam) {
    OptimizerKernel<P, true><<<blocks, kStepThreads, 0, StreamOf(call)>>>(a);
  } else {
    OptimizerKernel<P, false><<<blocks, kStepThreads, 0, StreamOf(call)>>>(a);
  }
  return Launched(call);
}

}  // namespace

Status SquaredNorm(const OpCall& call) {
  const Operands operands(call);
  if (operands.View("gradient")->dtype != planner::DType::kF32) {
    return UnsupportedDType(call, "gradient");  // bf16 runs have fp32 gradients too
  }
  const float* gradient = operands.Get<float>("gradient", BucketElements(call));
  const CudaDevice& device = DeviceOf(call);
  MW_ASSIGN_OR_RETURN(const ChunkList list,
                      DeviceOf(call).step_tables().counted(call.op.attributes.bucket));
  constexpr int32_t kBlocksPerSm = 2048 / kStepThreads;  // threads an SM holds
  const int32_t blocks = std::min(list.count, device.sm_count() * kBlocksPerSm);
  MW_ASSIGN_OR_RETURN(
      std::byte* const space,
      device.workspace(call.op.stream, blocks * static_cast<int64_t>(sizeof(double))));
  auto* partial = reinterpret_cast<double*>(space);
  if (blocks > 0) {
    SquaredNormKernel<<<static_cast<unsigned>(blocks), kStepThreads, 0, StreamOf(call)>>>(
        list, gradient, Aligned16(gradient), partial);
    MW_RETURN_IF_ERROR(Launched(call));
  }
  return SumDoubles(call, partial, blocks, operands.Accumulates("norm"),
                    operands.Get<double>("norm", 1));
}

/// Who reports what: cpu_kernels_step.cc.
Status StepStatistics(const OpCall& call) {
  const Operands operands(call);
  const planner::RankBinding& rank = *call.rank.binding;
  const bool reports = rank.tp_index == 0 && rank.pp_index == call.rank.grid.pp - 1;
  StepStatisticsKernel<<<1, 1, 0, StreamOf(call)>>>(
      operands.Get<double>("loss", 1), operands.Get<int64_t>("count", 1), reports,
      reports && rank.dp_index == 0, operands.Get<double>("statistics", 3));
  return Launched(call);
}

Status ClipFactor(const OpCall& call) {
  const Operands operands(call);
  ClipFactorKernel<<<1, 1, 0, StreamOf(call)>>>(operands.Get<double>("statistics", 3),
                                                call.rank.optimizer.clip,
                                                operands.Get<double>("clip", 1));
  return Launched(call);
}

Status OptimizerStep(const OpCall& call) {
  return ForCompute(call, "parameter",
                    [&](auto zero) { return OptimizerStepT<decltype(zero)>(call); });
}

}  // namespace meshwright::runtime::cuda
