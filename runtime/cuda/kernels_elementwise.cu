// Sums, copies, bias and rotary embeddings.
#include "runtime/cuda/column_sums.cuh"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/row_map.cuh"
#include "runtime/cuda/step_tables.h"

namespace meshwright::runtime::cuda {
namespace {

template <typename T, int N>
struct AddMap {
  static constexpr int kWidth = N;
  const T* a;
  const T* b;
  T* out;
  int64_t stride;  ///< elements a row

  struct In {
    Pack<T, N> a, b;
  };
  __device__ In Load(int64_t row, int64_t column) const {
    const int64_t at = row * stride + column;
    return {Pack<T, N>::Load(a + at), Pack<T, N>::Load(b + at)};
  }
  __device__ void Store(int64_t row, int64_t column, const In& in) const {
    float x[N], y[N];
    in.a.Unpack(x);
    in.b.Unpack(y);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += y[i];
    Pack<T, N>::From(x).Store(out + row * stride + column);
  }
};

template <typename T>
Status AddT(const OpCall& call) {
  const Operands operands(call);
  const int64_t n = operands.View("out")->elements();
  const T* a = operands.Get<T>("a", n);
  const T* b = operands.Get<T>("b", n);
  T* out = operands.Get<T>("out", n);
  constexpr int64_t kRow = int64_t{kRowMapThreads} * kWide<T>;
  const int64_t rows = Aligned16(a, b, out) ? n / kRow : 0;
  MW_RETURN_IF_ERROR(RowMap(call, AddMap<T, kWide<T>>{a, b, out, kRow}, rows, kRow));
  const int64_t done = rows * kRow;
  return RowMap(call, AddMap<T, 1>{a + done, b + done, out + done, 0}, 1, n - done);
}

template <typename T, int N>
struct BiasAddMap {
  static constexpr int kWidth = N;
  const T* bias;
  T* y;
  int64_t h;

  using In = Pack<T, N>;
  __device__ In Load(int64_t row, int64_t column) const { return In::Load(y + row * h + column); }
  __device__ void Store(int64_t row, int64_t column, const In& in) const {
    float x[N], b[N];
    in.Unpack(x);
    In::Load(bias + column).Unpack(b);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += b[i];
    In::From(x).Store(y + row * h + column);
  }
};

template <typename T>
Status BiasAddT(const OpCall& call) {
  const Operands operands(call);
  const int64_t h = operands.View("bias")->elements();
  const int64_t rows = operands.View("y")->elements() / h;
  const T* bias = operands.Get<T>("bias", h);
  T* y = operands.Get<T>("y", rows * h);
  if (h % kWide<T> == 0 && Aligned16(bias, y)) {
    return RowMap(call, BiasAddMap<T, kWide<T>>{bias, y, h}, rows, h);
  }
  return RowMap(call, BiasAddMap<T, 1>{bias, y, h}, rows, h);
}

template <typename T, int N>
struct BiasSum {
  static constexpr int kWidth = N;
  const T* dy;
  int64_t h;

  using In = Pack<T, N>;
  __device__ In Load(int64_t row, int64_t column) const { return In::Load(dy + row * h + column); }
  __device__ void Add(const In& in, float (&sums)[N]) const {
    float x[N];
    in.Unpack(x);
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] += x[i];
  }
};

template <typename T>
Status BiasGradT(const OpCall& call) {
  const Operands operands(call);
  const int64_t h = operands.View("bias_grad")->elements();
  const int64_t rows = operands.View("dy")->elements() / h;
  const T* dy = operands.Get<T>("dy", rows * h);
  float* gradient = operands.Get<float>("bias_grad", h);
  const bool accumulate = operands.Accumulates("bias_grad");
  if (h % kWide<T> == 0 && Aligned16(dy)) {
    return ColumnSums(call, BiasSum<T, kWide<T>>{dy, h}, rows, h, accumulate, gradient);
  }
  return ColumnSums(call, BiasSum<T, 1>{dy, h}, rows, h, accumulate, gradient);
}

constexpr int kRotaryThreads = 128;
constexpr int kRotaryItems = 2;  ///< heads a thread

template <typename T>
struct RotaryArguments {
  T* qkv;  ///< [sequence, batch, packed]
  const float* cosine;
  const float* sine;
  float direction;
  int32_t heads;  ///< q and k heads, those that turn
  int32_t head_dim;
  int64_t packed;  ///< elements of a token
  int32_t batch;
};

/// Block x is a position; threads lie along pairs first, then over (sample, head): the angles of a
/// thread serve all of its heads.
template <typename T, int N>
__global__ void __launch_bounds__(kRotaryThreads) RotaryKernel(const RotaryArguments<T> a) {
  const int32_t pairs = a.head_dim / 2;
  const int32_t packs = min(pairs / N, kRotaryThreads);  // along pairs at the same time
  const int32_t slots = kRotaryThreads / packs;
  const auto slot = static_cast<int32_t>(threadIdx.x) / packs;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % packs;
  if (slot >= slots) return;
  const int64_t position = blockIdx.x;
  const int32_t items = a.heads * a.batch;
  const int32_t first = static_cast<int32_t>(blockIdx.y) * slots * kRotaryItems + slot;
  for (int32_t pair = lane * N; pair < pairs; pair += packs * N) {
    float cosine[N], sine[N];
    LoadFloats(a.cosine + position * pairs + pair, cosine);
    LoadFloats(a.sine + position * pairs + pair, sine);
    Pack<T, N> low[kRotaryItems], high[kRotaryItems];
    T* at[kRotaryItems];
#pragma unroll
    for (int u = 0; u < kRotaryItems; ++u) {
      const int32_t item = first + u * slots;
      if (item >= items) continue;
      const int32_t sample = item / a.heads;
      const int32_t head = item - sample * a.heads;
      at[u] = a.qkv + (position * a.batch + sample) * a.packed + int64_t{head} * a.head_dim + pair;
      low[u] = Pack<T, N>::Load(at[u]);
      high[u] = Pack<T, N>::Load(at[u] + pairs);
    }
#pragma unroll
    for (int u = 0; u < kRotaryItems; ++u) {
      if (first + u * slots >= items) continue;
      float x[N], y[N];
      low[u].Unpack(x);
      high[u].Unpack(y);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float s = a.direction * sine[i];
        const float turned = x[i] * cosine[i] - y[i] * s;
        y[i] = y[i] * cosine[i] + x[i] * s;
        x[i] = turned;
      }
      Pack<T, N>::From(x).Store(at[u]);
      Pack<T, N>::From(y).Store(at[u] + pairs);
    }
  }
}

template <typename T, int N>
Status LaunchRotary(const OpCall& call, const RotaryArguments<T>& a, int64_t sequence) {
  const int64_t packs = std::min<int64_t>(a.head_dim / 2 / N, kRotaryThreads);
  const int64_t per_block = kRotaryThreads / packs * kRotaryItems;
  const int64_t item_blocks = (int64_t{a.heads} * a.batch + per_block - 1) / per_block;
  MW_CHECK(item_blocks <= 65535);
  const dim3 grid(static_cast<unsigned>(sequence), static_cast<unsigned>(item_blocks));
  RotaryKernel<T, N><<<grid, kRotaryThreads, 0, StreamOf(call)>>>(a);
  return Launched(call);
}

template <typename T>
Status RotaryT(const OpCall& call) {
  const Operands operands(call);
  const planner::OpAttributes& a = call.op.attributes;
  MW_CHECK(a.head_dim > 0 && a.head_dim % 2 == 0 && a.rope_theta > 0);
  MW_ASSIGN_OR_RETURN(const RotaryTable table,
                      DeviceOf(call).step_tables().rotary(a.rope_theta, a.head_dim, a.sequence));
  const int64_t packed = (a.heads + 2 * a.kv_heads) * a.head_dim;
  RotaryArguments<T> arguments;
  arguments.qkv = operands.Get<T>("qkv", a.sequence * a.batch * packed);
  arguments.cosine = table.cosine;
  arguments.sine = table.sine;
  arguments.direction = a.inverse ? -1.0f : 1.0f;
  arguments.heads = static_cast<int32_t>(a.heads + a.kv_heads);
  arguments.head_dim = static_cast<int32_t>(a.head_dim);
  arguments.packed = packed;
  arguments.batch = static_cast<int32_t>(a.batch);
  // Half heads in whole packs; the tables are then aligned as well.
  if (a.head_dim / 2 % kWide<T> == 0 && Aligned16(arguments.qkv, table.cosine, table.sine)) {
    return LaunchRotary<T, kWide<T>>(call, arguments, a.sequence);
  }
  return LaunchRotary<T, 1>(call, arguments, a.sequence);
}

}  // namespace

Status Add(const OpCall& call) {
  return ForCompute(call, "out", [&](auto zero) { return AddT<decltype(zero)>(call); });
}
Status BiasAdd(const OpCall& call) {
  return ForCompute(call, "y", [&](auto zero) { return BiasAddT<decltype(zero)>(call); });
}
Status BiasGrad(const OpCall& call) {
  return ForCompute(call, "dy", [&](auto zero) { return BiasGradT<decltype(zero)>(call); });
}
Status Rotary(const OpCall& call) {
  return ForCompute(call, "qkv", [&](auto zero) { return RotaryT<decltype(zero)>(call); });
}

Status Copy(const OpCall& call) {
  const planner::TensorView& from = *call.View(0);
  const planner::TensorView& to = *call.View(1);
  MW_CHECK(from.dtype == to.dtype && from.elements() == to.elements());
  if (call.Address(0) == call.Address(1)) return Status::Ok();
  MW_CUDA_CALL(cudaMemcpyAsync(call.Address(1), call.Address(0), static_cast<size_t>(from.bytes()),
                               cudaMemcpyDeviceToDevice, StreamOf(call)));
  return Status::Ok();
}

}  // namespace meshwright::runtime::cuda
