// Activations of the MLP. Plain: u [rows, f]; gated: u [rows, 2f] = gate f | up f in each row and
// s = act(gate) * up. Formulas: cpu_kernels_activation.cc.
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/pack.cuh"
#include "runtime/cuda/row_map.cuh"

namespace meshwright::runtime::cuda {
namespace {

constexpr float kInvSqrt2 = 0.70710678118654752440f;
constexpr float kInvSqrt2Pi = 0.39894228040143267794f;
constexpr float kSqrt2OverPi = 0.79788456080286535588f;
constexpr float kTanhCubic = 0.044715f;
constexpr float kQuickGeluSlope = 1.702f;

/// act(x) and its derivative.
struct Point {
  float value;
  float slope;
};

template <typename T>
__device__ Point ScaledSigmoid(float x, float k) {
  const float sigmoid = Divide<T>(1.0f, 1.0f + Exp<T>(-k * x));
  return {x * sigmoid, sigmoid * (1.0f + k * x * (1.0f - sigmoid))};
}

template <typename T>
__device__ float Tanh(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return tanhf(x);
  } else {
    return 1.0f - Divide<T>(2.0f, 1.0f + Exp<T>(2.0f * x));
  }
}

template <typename T>
struct Gelu {
  __device__ static Point At(float x) {
    const float cdf = 0.5f * (1.0f + erff(x * kInvSqrt2));
    return {x * cdf, cdf + x * kInvSqrt2Pi * Exp<T>(-0.5f * x * x)};
  }
};
template <typename T>
struct GeluTanh {
  __device__ static Point At(float x) {
    const float t = Tanh<T>(kSqrt2OverPi * (x + kTanhCubic * x * x * x));
    const float inner = kSqrt2OverPi * (1.0f + 3.0f * kTanhCubic * x * x);
    return {0.5f * x * (1.0f + t), 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner};
  }
};
template <typename T>
struct Silu {
  __device__ static Point At(float x) { return ScaledSigmoid<T>(x, 1.0f); }
};
template <typename T>
struct QuickGelu {
  __device__ static Point At(float x) { return ScaledSigmoid<T>(x, kQuickGeluSlope); }
};
template <typename T>
struct Relu {
  // A NaN stays a NaN, so that a diverged run shows.
  __device__ static Point At(float x) { return x <= 0.0f ? Point{0.0f, 0.0f} : Point{x, 1.0f}; }
};

template <typename T, typename F>
Status WithActivation(planner::Activation activation, F f) {
  switch (activation) {
    case planner::Activation::kGelu:
      return f(Gelu<T>{});
    case planner::Activation::kGeluTanh:
      return f(GeluTanh<T>{});
    case planner::Activation::kSilu:
      return f(Silu<T>{});
    case planner::Activation::kRelu:
      return f(Relu<T>{});
    case planner::Activation::kQuickGelu:
      return f(QuickGelu<T>{});
  }
  MW_CHECK(false && "unknown activation");
  return Status::Ok();
}

template <typename T, int N, typename Act, bool kGated>
struct ActivationMap {
  static constexpr int kWidth = N;
  const T* u;
  T* s;
  int64_t f;

  struct In {
    Pack<T, N> gate, up;
  };
  __device__ In Load(int64_t row, int64_t column) const {
    const T* at = u + row * (kGated ? 2 * f : f) + column;
    In in;
    in.gate = Pack<T, N>::Load(at);
    if constexpr (kGated) in.up = Pack<T, N>::Load(at + f);
    return in;
  }
  __device__ void Store(int64_t row, int64_t column, const In& in) const {
    float x[N], up[N];
    in.gate.Unpack(x);
    if constexpr (kGated) in.up.Unpack(up);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      x[i] = Act::At(x[i]).value;
      if constexpr (kGated) x[i] *= up[i];
    }
    Pack<T, N>::From(x).Store(s + row * f + column);
  }
};

/// du may lie exactly over u, s exactly over ds.
template <typename T, int N, typename Act, bool kGated>
struct ActivationGradMap {
  static constexpr int kWidth = N;
  const T* u;
  const T* ds;
  T* du;
  T* s;  ///< nullptr: not wanted
  int64_t f;

  struct In {
    Pack<T, N> gate, up, ds;
  };
  __device__ In Load(int64_t row, int64_t column) const {
    const T* at = u + row * (kGated ? 2 * f : f) + column;
    In in;
    in.gate = Pack<T, N>::Load(at);
    if constexpr (kGated) in.up = Pack<T, N>::Load(at + f);
    in.ds = Pack<T, N>::Load(ds + row * f + column);
    return in;
  }
  __device__ void Store(int64_t row, int64_t column, const In& in) const {
    float x[N], up[N], gradient[N], again[N];
    in.gate.Unpack(x);
    if constexpr (kGated) in.up.Unpack(up);
    in.ds.Unpack(gradient);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const Point point = Act::At(x[i]);
      if constexpr (kGated) {
        x[i] = gradient[i] * up[i] * point.slope;
        again[i] = point.value * up[i];
        up[i] = gradient[i] * point.value;
      } else {
        x[i] = gradient[i] * point.slope;
        again[i] = point.value;
      }
    }
    T* at = du + row * (kGated ? 2 * f : f) + column;
    Pack<T, N>::From(x).Store(at);
    if constexpr (kGated) Pack<T, N>::From(up).Store(at + f);
    if (s != nullptr) Pack<T, N>::From(again).Store(s + row * f + column);
  }
};

template <typename T, int N, typename Act>
Status LaunchForward(const OpCall& call, const T* u, T* s, int64_t rows, int64_t f) {
  if (call.op.attributes.gated) {
    return RowMap(call, ActivationMap<T, N, Act, true>{u, s, f}, rows, f);
  }
  return RowMap(call, ActivationMap<T, N, Act, false>{u, s, f}, rows, f);
}

template <typename T>
Status ActivationT(const OpCall& call) {
  const Operands operands(call);
  const planner::TensorView& view = *operands.View("s");
  const int64_t rows = RowCount(view);
  const int64_t f = Width(view);
  const T* u = operands.Get<T>("u", rows * (call.op.attributes.gated ? 2 * f : f));
  T* s = operands.Get<T>("s", rows * f);
  return WithActivation<T>(call.op.attributes.activation, [&](auto act) {
    using Act = decltype(act);
    if (f % kWide<T> == 0 && Aligned16(u, s)) {
      return LaunchForward<T, kWide<T>, Act>(call, u, s, rows, f);
    }
    return LaunchForward<T, 1, Act>(call, u, s, rows, f);
  });
}

template <typename T>
struct GradPointers {
  const T* u;
  const T* ds;
  T* du;
  T* s;
};

template <typename T, int N, typename Act>
Status LaunchBackward(const OpCall& call, const GradPointers<T>& p, int64_t rows, int64_t f) {
  if (call.op.attributes.gated) {
    return RowMap(call, ActivationGradMap<T, N, Act, true>{p.u, p.ds, p.du, p.s, f}, rows, f);
  }
  return RowMap(call, ActivationGradMap<T, N, Act, false>{p.u, p.ds, p.du, p.s, f}, rows, f);
}

template <typename T>
Status ActivationGradT(const OpCall& call) {
  const Operands operands(call);
  const planner::TensorView& view = *operands.View("ds");
  const int64_t rows = RowCount(view);
  const int64_t f = Width(view);
  const int64_t width = call.op.attributes.gated ? 2 * f : f;
  const GradPointers<T> p = {operands.Get<T>("u", rows * width), operands.Get<T>("ds", rows * f),
                             operands.Get<T>("du", rows * width), operands.Get<T>("s", rows * f)};
  return WithActivation<T>(call.op.attributes.activation, [&](auto act) {
    using Act = decltype(act);
    if (f % kWide<T> == 0 && Aligned16(p.u, p.ds, p.du, p.s)) {
      return LaunchBackward<T, kWide<T>, Act>(call, p, rows, f);
    }
    return LaunchBackward<T, 1, Act>(call, p, rows, f);
  });
}

}  // namespace

Status Activation(const OpCall& call) {
  return ForCompute(call, "u", [&](auto zero) { return ActivationT<decltype(zero)>(call); });
}
Status ActivationGrad(const OpCall& call) {
  return ForCompute(call, "u", [&](auto zero) { return ActivationGradT<decltype(zero)>(call); });
}

}  // namespace meshwright::runtime::cuda
