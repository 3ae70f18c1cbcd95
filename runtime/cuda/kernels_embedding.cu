// Token counts, vocabulary-parallel embedding and learned positions.
#include <algorithm>
#include <string>

#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/pack.cuh"
#include "runtime/cuda/reduce.cuh"
#include "runtime/cuda/row_map.cuh"

namespace meshwright::runtime::cuda {
namespace {

constexpr int kCountThreads = 256;

/// Sums of integers do not depend on their order: an atomic add is deterministic here.
__global__ void __launch_bounds__(kCountThreads)
    CountTokensKernel(const int32_t* labels, int64_t n, unsigned long long* count) {
  int32_t own = 0;
  const int64_t stride = int64_t{gridDim.x} * kCountThreads;
  for (int64_t i = int64_t{blockIdx.x} * kCountThreads + threadIdx.x; i < n; i += stride) {
    own += labels[i] != kMaskedLabel ? 1 : 0;
  }
  own = WarpSum(own);
  if (threadIdx.x % kWarp == 0 && own != 0) atomicAdd(count, static_cast<unsigned long long>(own));
}

__global__ void InvertCountKernel(const int64_t* count, double* inverse) {
  *inverse = 1.0 / static_cast<double>(*count > 1 ? *count : 1);
}

template <typename T, int N>
struct EmbedMap {
  static constexpr int kWidth = N;
  const int32_t* ids;
  const T* weight;
  T* y;
  int64_t h;
  int64_t first;  ///< token id of local row 0
  int64_t rows;   ///< local rows

  using In = Pack<T, N>;
  __device__ In Load(int64_t token, int64_t column) const {
    const int64_t row = ids[token] - first;
    if (row < 0 || row >= rows) return In::Zero();
    return In::Load(weight + row * h + column);
  }
  __device__ void Store(int64_t token, int64_t column, const In& in) const {
    in.Store(y + token * h + column);
  }
};

template <typename T>
Status EmbedT(const OpCall& call) {
  const Operands operands(call);
  const planner::TensorView& table = *operands.View("weight");
  const int64_t rows = table.shape[0];
  const int64_t h = table.shape[1];
  const int64_t tokens = operands.View("y")->elements() / h;
  const int32_t* ids = operands.Get<int32_t>("tokens", tokens);
  const T* weight = operands.Get<T>("weight", rows * h);
  T* y = operands.Get<T>("y", tokens * h);
  const int64_t first = call.rank.binding->tp_index * rows;
  if (h % kWide<T> == 0 && Aligned16(weight, y)) {
    return RowMap(call, EmbedMap<T, kWide<T>>{ids, weight, y, h, first, rows}, tokens, h);
  }
  return RowMap(call, EmbedMap<T, 1>{ids, weight, y, h, first, rows}, tokens, h);
}

/// Elements that a thread adds at once: neighbouring threads then add neighbouring 16 bytes, and
/// each sector of the L2 cache is added to once.
constexpr int kAddWidth = 4;

/// Adds rows of dy to the gradient by atomics: the order of equal ids is open.
template <typename T, int N>
struct EmbedGradMap {
  static constexpr int kWidth = N;
  const int32_t* ids;
  const T* dy;
  float* gradient;
  int64_t h;
  int64_t first;
  int64_t rows;

  using In = Pack<T, N>;
  __device__ In Load(int64_t token, int64_t column) const {
    // The row is on its way to the L2 cache, where the sums are made, while dy is awaited.
    float* const at = Row(token, column);
    if (at != nullptr) asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
    return In::Load(dy + token * h + column);
  }
  /// nullptr for ids of other ranks.
  __device__ float* Row(int64_t token, int64_t column) const {
    const int64_t row = ids[token] - first;
    return row < 0 || row >= rows ? nullptr : gradient + row * h + column;
  }
  __device__ void Store(int64_t token, int64_t column, const In& in) const {
    float* const at = Row(token, column);
    if (at == nullptr) return;
    float x[N];
    in.Unpack(x);
    if constexpr (N == 1) {
      atomicAdd(at, x[0]);
    } else {
      static_assert(N == kAddWidth);
      atomicAdd(reinterpret_cast<float4*>(at), make_float4(x[0], x[1], x[2], x[3]));
    }
  }
};

constexpr int kOrderedThreads = 256;
constexpr int kOrderedColumns = 4;  ///< columns a thread

/// The same in the order of the tokens. A block stands for a token and a range of columns; the
/// block of the first token of each id adds all tokens of that id.
template <typename T>
__global__ void __launch_bounds__(kOrderedThreads)
    EmbedGradOrderedKernel(const int32_t* ids, const T* dy, float* gradient, int64_t tokens,
                           int64_t h, int64_t first, int64_t rows) {
  __shared__ int32_t list[kOrderedThreads];  // offsets of this tile's tokens of the id, in order
  __shared__ int32_t counts[kOrderedThreads / kWarp];
  const int64_t token = blockIdx.x;
  const int32_t id = ids[token];
  const int64_t row = id - first;
  if (row < 0 || row >= rows) return;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int64_t base = 0; base < token; base += kOrderedThreads) {
    const bool hit = base + thread < token && ids[base + thread] == id;
    if (__syncthreads_or(hit) != 0) return;
  }
  const int64_t column = int64_t{blockIdx.y} * (kOrderedThreads * kOrderedColumns) + thread;
  float sums[kOrderedColumns];
  float* const at = gradient + row * h;
#pragma unroll
  for (int k = 0; k < kOrderedColumns; ++k) {
    const int64_t c = column + k * kOrderedThreads;
    sums[k] = c < h ? at[c] : 0.0f;
  }
  for (int64_t base = token; base < tokens; base += kOrderedThreads) {
    const bool hit = base + thread < tokens && ids[base + thread] == id;
    const unsigned hits = __ballot_sync(0xFFFFFFFFu, hit);
    if (thread % kWarp == 0) counts[thread / kWarp] = __popc(hits);
    if (__syncthreads_or(hit) == 0) continue;
    int32_t before = 0;
    int32_t total = 0;
    for (int w = 0; w < kOrderedThreads / kWarp; ++w) {
      if (w < thread / kWarp) before += counts[w];
      total += counts[w];
    }
    if (hit) list[before + __popc(hits & ((1u << (thread % kWarp)) - 1))] = thread;
    __syncthreads();
    for (int32_t i = 0; i < total; ++i) {
      const T* source = dy + (base + list[i]) * h;
#pragma unroll
      for (int k = 0; k < kOrderedColumns; ++k) {
        const int64_t c = column + k * kOrderedThreads;
        if (c < h) sums[k] += static_cast<float>(source[c]);
      }
    }
    __syncthreads();  // the lists are free for the next tile
  }
#pragma unroll
  for (int k = 0; k < kOrderedColumns; ++k) {
    const int64_t c = column + k * kOrderedThreads;
    if (c < h) at[c] = sums[k];
  }
}

template <typename T>
Status EmbedGradT(const OpCall& call) {
  const Operands operands(call);
  const planner::TensorView& table = *operands.View("weight_grad");
  const int64_t rows = table.shape[0];
  const int64_t h = table.shape[1];
  const int64_t tokens = operands.View("dy")->elements() / h;
  const int32_t* ids = operands.Get<int32_t>("tokens", tokens);
  const T* dy = operands.Get<T>("dy", tokens * h);
  float* gradient = operands.Get<float>("weight_grad", rows * h);
  if (!operands.Accumulates("weight_grad")) {
    MW_CUDA_CALL(cudaMemsetAsync(gradient, 0, static_cast<size_t>(table.bytes()), StreamOf(call)));
  }
  const int64_t first = call.rank.binding->tp_index * rows;
  if (DeviceOf(call).deterministic()) {
    constexpr int64_t kColumns = int64_t{kOrderedThreads} * kOrderedColumns;
    const dim3 grid(static_cast<unsigned>(tokens),
                    static_cast<unsigned>((h + kColumns - 1) / kColumns));
    EmbedGradOrderedKernel<T>
        <<<grid, kOrderedThreads, 0, StreamOf(call)>>>(ids, dy, gradient, tokens, h, first, rows);
    return Launched(call);
  }
  if (h % kAddWidth == 0 && Aligned16(dy, gradient)) {
    return RowMap(call, EmbedGradMap<T, kAddWidth>{ids, dy, gradient, h, first, rows}, tokens, h);
  }
  return RowMap(call, EmbedGradMap<T, 1>{ids, dy, gradient, h, first, rows}, tokens, h);
}

/// Position of the first row of a [sequence, batch, h] tensor that may be a slice of the sequence.
Result<int64_t> FirstPosition(const OpCall& call, int64_t tokens, int64_t max_positions) {
  const planner::OpAttributes& a = call.op.attributes;
  MW_CHECK(a.batch > 0 && tokens % a.batch == 0);
  const int64_t count = tokens / a.batch;
  const int64_t first = a.sequence_sharded ? call.rank.binding->tp_index * count : 0;
  if (first + count > max_positions) {
    return Unsupported(Where(call) + ": positions up to " + std::to_string(first + count) +
                       " asked for, the model has " + std::to_string(max_positions) +
                       "; use a shorter sequence");
  }
  return first;
}

template <typename T, int N>
struct AddPositionsMap {
  static constexpr int kWidth = N;
  const T* positions;  ///< of the first row
  T* y;
  int64_t h;
  int32_t batch;

  struct In {
    Pack<T, N> y, position;
  };
  __device__ In Load(int64_t token, int64_t column) const {
    const int64_t position = static_cast<uint32_t>(token) / static_cast<uint32_t>(batch);
    return {Pack<T, N>::Load(y + token * h + column),
            Pack<T, N>::Load(positions + position * h + column)};
  }
  __device__ void Store(int64_t token, int64_t column, const In& in) const {
    float x[N], p[N];
    in.y.Unpack(x);
    in.position.Unpack(p);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += p[i];
    Pack<T, N>::From(x).Store(y + token * h + column);
  }
};

template <typename T>
Status AddPositionsT(const OpCall& call) {
  const Operands operands(call);
  const planner::TensorView& table = *operands.View("positions");
  const int64_t h = table.shape[1];
  const int64_t tokens = operands.View("y")->elements() / h;
  MW_ASSIGN_OR_RETURN(const int64_t first, FirstPosition(call, tokens, table.shape[0]));
  const T* positions = operands.Get<T>("positions", table.shape[0] * h) + first * h;
  T* y = operands.Get<T>("y", tokens * h);
  const auto batch = static_cast<int32_t>(call.op.attributes.batch);
  if (h % kWide<T> == 0 && Aligned16(positions, y)) {
    return RowMap(call, AddPositionsMap<T, kWide<T>>{positions, y, h, batch}, tokens, h);
  }
  return RowMap(call, AddPositionsMap<T, 1>{positions, y, h, batch}, tokens, h);
}

/// Row = position: sums over the samples, then adds to the gradient.
template <typename T, int N>
struct PositionsGradMap {
  static constexpr int kWidth = N;
  const T* dy;
  float* gradient;  ///< of the first position
  int64_t h;
  int32_t batch;

  struct In {
    float sums[N];
  };
  __device__ In Load(int64_t position, int64_t column) const {
    In in;
    LoadFloats(gradient + position * h + column, in.sums);
    for (int32_t b = 0; b < batch; ++b) {
      float x[N];
      Pack<T, N>::Load(dy + (position * batch + b) * h + column).Unpack(x);
#pragma unroll
      for (int i = 0; i < N; ++i) in.sums[i] += x[i];
    }
    return in;
  }
  __device__ void Store(int64_t position, int64_t column, const In& in) const {
    StoreFloats(gradient + position * h + column, in.sums);
  }
};

template <typename T>
Status PositionsGradT(const OpCall& call) {
  const Operands operands(call);
  const planner::TensorView& table = *operands.View("positions_grad");
  const int64_t h = table.shape[1];
  const int64_t tokens = operands.View("dy")->elements() / h;
  MW_ASSIGN_OR_RETURN(const int64_t first, FirstPosition(call, tokens, table.shape[0]));
  const T* dy = operands.Get<T>("dy", tokens * h);
  float* whole = operands.Get<float>("positions_grad", table.shape[0] * h);
  if (!operands.Accumulates("positions_grad")) {
    MW_CUDA_CALL(cudaMemsetAsync(whole, 0, static_cast<size_t>(table.bytes()), StreamOf(call)));
  }
  float* gradient = whole + first * h;
  const auto batch = static_cast<int32_t>(call.op.attributes.batch);
  if (h % kWide<T> == 0 && Aligned16(dy, gradient)) {
    return RowMap(call, PositionsGradMap<T, kWide<T>>{dy, gradient, h, batch}, tokens / batch, h);
  }
  return RowMap(call, PositionsGradMap<T, 1>{dy, gradient, h, batch}, tokens / batch, h);
}

}  // namespace

Status CountTokens(const OpCall& call) {
  const Operands operands(call);
  const int64_t n = operands.View("labels")->elements();
  const int32_t* labels = operands.Get<int32_t>("labels", n);
  auto* count = reinterpret_cast<unsigned long long*>(operands.Get<int64_t>("count", 1));
  MW_CUDA_CALL(cudaMemsetAsync(count, 0, sizeof(*count), StreamOf(call)));
  const int64_t blocks =
      std::min<int64_t>((n + kCountThreads - 1) / kCountThreads, DeviceOf(call).sm_count() * 4);
  if (blocks == 0) return Status::Ok();
  CountTokensKernel<<<static_cast<unsigned>(blocks), kCountThreads, 0, StreamOf(call)>>>(labels, n,
                                                                                         count);
  return Launched(call);
}

Status InvertCount(const OpCall& call) {
  const Operands operands(call);
  InvertCountKernel<<<1, 1, 0, StreamOf(call)>>>(operands.Get<int64_t>("count", 1),
                                                 operands.Get<double>("inverse", 1));
  return Launched(call);
}

Status Embed(const OpCall& call) {
  return ForCompute(call, "weight", [&](auto zero) { return EmbedT<decltype(zero)>(call); });
}
Status EmbedGrad(const OpCall& call) {
  return ForCompute(call, "dy", [&](auto zero) { return EmbedGradT<decltype(zero)>(call); });
}
Status AddPositions(const OpCall& call) {
  return ForCompute(call, "y", [&](auto zero) { return AddPositionsT<decltype(zero)>(call); });
}
Status PositionsGrad(const OpCall& call) {
  return ForCompute(call, "dy", [&](auto zero) { return PositionsGradT<decltype(zero)>(call); });
}

}  // namespace meshwright::runtime::cuda
