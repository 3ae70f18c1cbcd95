// Vocabulary-parallel cross-entropy in two steps (cpu_kernels_loss.cc): one pass over the logits
// for three numbers a row, then dlogits over the logits.
#include <algorithm>

#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/pack.cuh"
#include "runtime/cuda/reduce.cuh"

namespace meshwright::runtime::cuda {
namespace {

constexpr int kRowThreads = 512;
constexpr int kUnroll = 4;  ///< packs that a thread loads at the same time

/// The head's rows on this rank and which of its columns are real.
struct LogitShape {
  int64_t rows = 0;
  int64_t columns = 0;       ///< local, padding included
  int64_t first_column = 0;  ///< global index of local column 0
  int64_t valid = 0;         ///< local columns within the true vocabulary
  int64_t vocab = 0;
};

LogitShape ShapeOf(const OpCall& call) {
  const planner::TensorView& logits = *Operands(call).View("logits");
  LogitShape s;
  s.columns = Width(logits);
  s.rows = RowCount(logits);
  s.first_column = call.rank.binding->tp_index * s.columns;
  s.vocab = call.op.attributes.vocab;
  s.valid = std::clamp<int64_t>(s.vocab - s.first_column, 0, s.columns);
  return s;
}

/// Labels of the rows of this call (a chunk of the rows of the micro-batch).
const int32_t* LabelsOf(const OpCall& call, int64_t rows) {
  const Operands operands(call);
  const int64_t all = operands.View("labels")->elements();
  const int64_t begin = all == rows ? 0 : call.op.attributes.row_begin;
  MW_CHECK(begin >= 0 && begin + rows <= all);
  return operands.Get<int32_t>("labels", all) + begin;
}

/// Maximum and sum of exp(z - maximum) of the values seen so far.
template <typename T>
struct Online {
  float top = -INFINITY;
  float sum = 0.0f;

  template <int K>
  __device__ void Add(const float (&z)[K]) {
    float most = z[0];
#pragma unroll
    for (int i = 1; i < K; ++i) most = fmaxf(most, z[i]);
    if (most > top) {
      sum *= Exp<T>(top - most);
      top = most;
    }
    const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
    for (int i = 0; i < K; ++i) sum += Exp<T>(z[i] - base);
  }
  __device__ void Merge(float other_top, float other_sum) {
    const float most = fmaxf(top, other_top);
    // Nothing seen: -inf on both sides, whose difference is no number.
    const float own = top == most ? sum : sum * expf(top - most);
    const float other = other_top == most ? other_sum : other_sum * expf(other_top - most);
    top = most;
    sum = own + other;
  }
};

template <typename T, int N>
__global__ void __launch_bounds__(kRowThreads)
    SoftmaxStatsKernel(const LogitShape s, const T* logits, const int32_t* labels, float* stats) {
  __shared__ float tops[kRowThreads / kWarp];
  __shared__ float sums[kRowThreads / kWarp];
  const int64_t row = blockIdx.x;
  const T* z = logits + row * s.columns;
  const int64_t full = s.valid / N;  // packs without padding
  Online<T> online;
  int64_t pack = threadIdx.x;
  for (; pack + (kUnroll - 1) * kRowThreads < full; pack += kUnroll * kRowThreads) {
    Pack<T, N> packs[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) packs[u] = Pack<T, N>::Load(z + (pack + u * kRowThreads) * N);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float x[N];
      packs[u].Unpack(x);
      online.Add(x);
    }
  }
  for (; pack < full; pack += kRowThreads) {
    float x[N];
    Pack<T, N>::Load(z + pack * N).Unpack(x);
    online.Add(x);
  }
  for (int64_t j = full * N + threadIdx.x; j < s.valid; j += kRowThreads) {
    const float x[1] = {static_cast<float>(z[j])};
    online.Add(x);
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const float top = __shfl_xor_sync(0xFFFFFFFFu, online.top, offset);
    const float sum = __shfl_xor_sync(0xFFFFFFFFu, online.sum, offset);
    online.Merge(top, sum);
  }
  if (threadIdx.x % kWarp == 0) {
    tops[threadIdx.x / kWarp] = online.top;
    sums[threadIdx.x / kWarp] = online.sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kRowThreads / kWarp; ++w) online.Merge(tops[w], sums[w]);
  const int64_t label = labels[row];
  const int64_t local = label - s.first_column;
  float target = local >= 0 && local < s.valid ? static_cast<float>(z[local]) : 0.0f;
  if (label != kMaskedLabel && (label < 0 || label >= s.vocab)) {
    online.top = online.sum = target = NAN;  // shows as a NaN loss
  }
  stats[row * 3] = online.top;
  stats[row * 3 + 1] = online.sum;
  stats[row * 3 + 2] = target;
}

template <typename T>
Status SoftmaxStatsT(const OpCall& call) {
  const Operands operands(call);
  const LogitShape s = ShapeOf(call);
  const T* logits = operands.Get<T>("logits", s.rows * s.columns);
  const int32_t* labels = LabelsOf(call, s.rows);
  float* stats = operands.Get<float>("stats", s.rows * 3);
  const auto blocks = static_cast<unsigned>(s.rows);
  if (s.columns % kWide<T> == 0 && Aligned16(logits)) {
    SoftmaxStatsKernel<T, kWide<T>>
        <<<blocks, kRowThreads, 0, StreamOf(call)>>>(s, logits, labels, stats);
  } else {
    SoftmaxStatsKernel<T, 1><<<blocks, kRowThreads, 0, StreamOf(call)>>>(s, logits, labels, stats);
  }
  return Launched(call);
}

/// What a row's dlogits need.
struct RowFactors {
  float top;
  float factor;   ///< inverse count / sum of exponentials
  float inverse;  ///< inverse count
};

/// Combines the numbers of all ranks, in rank order; returns the row's loss.
__device__ double CombineRanks(const float* stats, int64_t ranks, int64_t rows, int64_t row,
                               double inverse, RowFactors& factors) {
  double top = -INFINITY;
  double sum = 0.0;
  double target = 0.0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    top = fmax(top, static_cast<double>(stats[(rank * rows + row) * 3]));
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const float* one = stats + (rank * rows + row) * 3;
    sum += static_cast<double>(one[1]) * exp(static_cast<double>(one[0]) - top);
    target += static_cast<double>(one[2]);
  }
  factors.top = static_cast<float>(top);
  factors.factor = static_cast<float>(inverse / sum);
  factors.inverse = static_cast<float>(inverse);
  return log(sum) + top - target;
}

/// dlogits of one pack that starts at local column `column`.
template <typename T, int N>
__device__ void StoreGrad(const LogitShape& s, const RowFactors& f, int64_t label, int64_t column,
                          const Pack<T, N>& pack, T* z) {
  float x[N];
  pack.Unpack(x);
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = Exp<T>(x[i] - f.top) * f.factor;
  if (column + N > s.valid) {  // padding within
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (column + i >= s.valid) x[i] = 0.0f;
    }
  }
  if (label >= column && label < column + N) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (column + i == label) x[i] -= f.inverse;
    }
  }
  Pack<T, N>::From(x).Store(z + column);
}

/// Blocks go from the last row to the first: the last logits read before are still in the cache.
template <typename T, int N>
__global__ void __launch_bounds__(kRowThreads)
    CrossEntropyGradKernel(const LogitShape s, const float* stats, int64_t ranks,
                           const int32_t* labels, const double* inverse, T* logits,
                           double* row_loss) {
  __shared__ RowFactors shared;
  const int64_t row = s.rows - 1 - static_cast<int64_t>(blockIdx.x);
  T* z = logits + row * s.columns;
  const int64_t packs = s.columns / N;
  const int32_t label = labels[row];
  if (label == kMaskedLabel) {
    for (int64_t pack = threadIdx.x; pack < packs; pack += kRowThreads) {
      Pack<T, N>::Zero().Store(z + pack * N);
    }
    if (threadIdx.x == 0) row_loss[row] = 0.0;
    return;
  }
  if (threadIdx.x == 0) row_loss[row] = CombineRanks(stats, ranks, s.rows, row, *inverse, shared);
  __syncthreads();
  const RowFactors f = shared;
  int64_t local = label - s.first_column;
  if (local >= s.valid) local = -1;
  int64_t pack = threadIdx.x;
  for (; pack + (kUnroll - 1) * kRowThreads < packs; pack += kUnroll * kRowThreads) {
    Pack<T, N> loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      loaded[u] = Pack<T, N>::Load(z + (pack + u * kRowThreads) * N);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      StoreGrad<T, N>(s, f, local, (pack + u * kRowThreads) * N, loaded[u], z);
    }
  }
  for (; pack < packs; pack += kRowThreads) {
    StoreGrad<T, N>(s, f, local, pack * N, Pack<T, N>::Load(z + pack * N), z);
  }
}

template <typename T>
Status CrossEntropyGradT(const OpCall& call) {
  const Operands operands(call);
  const LogitShape s = ShapeOf(call);
  const int64_t ranks = operands.View("stats")->elements() / (s.rows * 3);
  const float* stats = operands.Get<float>("stats", ranks * s.rows * 3);
  const int32_t* labels = LabelsOf(call, s.rows);
  T* logits = operands.Get<T>("logits", s.rows * s.columns);
  const double* inverse = operands.Get<double>("inverse", 1);
  MW_ASSIGN_OR_RETURN(
      std::byte* const space,
      DeviceOf(call).workspace(call.op.stream, s.rows * static_cast<int64_t>(sizeof(double))));
  auto* row_loss = reinterpret_cast<double*>(space);
  const auto blocks = static_cast<unsigned>(s.rows);
  if (s.columns % kWide<T> == 0 && Aligned16(logits)) {
    CrossEntropyGradKernel<T, kWide<T>><<<blocks, kRowThreads, 0, StreamOf(call)>>>(
        s, stats, ranks, labels, inverse, logits, row_loss);
  } else {
    CrossEntropyGradKernel<T, 1><<<blocks, kRowThreads, 0, StreamOf(call)>>>(
        s, stats, ranks, labels, inverse, logits, row_loss);
  }
  MW_RETURN_IF_ERROR(Launched(call));
  return SumDoubles(call, row_loss, s.rows, operands.Accumulates("loss"),
                    operands.Get<double>("loss", 1));
}

}  // namespace

Status SoftmaxStats(const OpCall& call) {
  return ForCompute(call, "logits", [&](auto zero) { return SoftmaxStatsT<decltype(zero)>(call); });
}
Status CrossEntropyGrad(const OpCall& call) {
  return ForCompute(call, "logits",
                    [&](auto zero) { return CrossEntropyGradT<decltype(zero)>(call); });
}

}  // namespace meshwright::runtime::cuda
