// Activations of the MLP. Plain: u [rows, f]; gated: u [rows, 2f] = gate f | up f in each row and
// s = act(gate) * up.
#include <cmath>

#include "runtime/cpu_kernels.h"

namespace meshwright::runtime::cpu {
namespace {

constexpr double kInvSqrt2 = 0.70710678118654752440;
constexpr double kInvSqrt2Pi = 0.39894228040143267794;
constexpr double kSqrt2OverPi = 0.79788456080286535588;
constexpr double kTanhCubic = 0.044715;    // Hendrycks and Gimpel, "Gaussian error linear units"
constexpr double kQuickGeluSlope = 1.702;  // the same: x * sigmoid(1.702 x)

/// act(x) and its derivative.
template <typename T>
struct Point {
  T value;
  T slope;
};

template <typename T>
Point<T> ScaledSigmoid(T x, T k) {
  const T sigmoid = T{1} / (T{1} + std::exp(-k * x));
  return {x * sigmoid, sigmoid * (T{1} + k * x * (T{1} - sigmoid))};
}

template <typename T>
struct Gelu {
  Point<T> operator()(T x) const {
    const T cdf = T(0.5) * (T{1} + std::erf(x * T(kInvSqrt2)));
    return {x * cdf, cdf + x * T(kInvSqrt2Pi) * std::exp(T(-0.5) * x * x)};
  }
};
template <typename T>
struct GeluTanh {
  Point<T> operator()(T x) const {
    const T t = std::tanh(T(kSqrt2OverPi) * (x + T(kTanhCubic) * x * x * x));
    const T inner = T(kSqrt2OverPi) * (T{1} + T(3 * kTanhCubic) * x * x);
    return {T(0.5) * x * (T{1} + t), T(0.5) * (T{1} + t) + T(0.5) * x * (T{1} - t * t) * inner};
  }
};
template <typename T>
struct Silu {
  Point<T> operator()(T x) const { return ScaledSigmoid(x, T{1}); }
};
template <typename T>
struct QuickGelu {
  Point<T> operator()(T x) const { return ScaledSigmoid(x, T(kQuickGeluSlope)); }
};
template <typename T>
struct Relu {
  // A NaN stays a NaN, so that a diverged run shows.
  Point<T> operator()(T x) const { return x <= T{0} ? Point<T>{T{0}, T{0}} : Point<T>{x, T{1}}; }
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

template <typename T>
Status ActivationT(const OpCall& call) {
  const Operands operands(call);
  const bool gated = call.op.attributes.gated;
  const planner::TensorView& view = *operands.View("s");
  const int64_t rows = RowCount(view);
  const int64_t f = Width(view);
  const int64_t width = gated ? 2 * f : f;
  const T* u = operands.Get<T>("u", rows * width);
  T* s = operands.Get<T>("s", rows * f);
  return WithActivation<T>(call.op.attributes.activation, [&](auto act) {
    for (int64_t row = 0; row < rows; ++row) {
      const T* gate = u + row * width;
      for (int64_t j = 0; j < f; ++j) {
        const T value = act(gate[j]).value;
        s[row * f + j] = gated ? value * gate[f + j] : value;
      }
    }
    return Status::Ok();
  });
}

/// du may lie exactly over u, s exactly over ds: each element is read before it is written.
template <typename T>
Status ActivationGradT(const OpCall& call) {
  const Operands operands(call);
  const bool gated = call.op.attributes.gated;
  const planner::TensorView& view = *operands.View("ds");
  const int64_t rows = RowCount(view);
  const int64_t f = Width(view);
  const int64_t width = gated ? 2 * f : f;
  const T* u = operands.Get<T>("u", rows * width);
  const T* ds = operands.Get<T>("ds", rows * f);
  T* du = operands.Get<T>("du", rows * width);
  T* s = operands.Get<T>("s", rows * f);
  return WithActivation<T>(call.op.attributes.activation, [&](auto act) {
    for (int64_t row = 0; row < rows; ++row) {
      const T* gate = u + row * width;
      T* dgate = du + row * width;
      for (int64_t j = 0; j < f; ++j) {
        const Point<T> point = act(gate[j]);
        const T up = gated ? gate[f + j] : T{1};
        const T gradient = ds[row * f + j];
        dgate[j] = gradient * up * point.slope;
        if (gated) dgate[f + j] = gradient * point.value;
        if (s != nullptr) s[row * f + j] = gated ? point.value * up : point.value;
      }
    }
    return Status::Ok();
  });
}

}  // namespace

Status Activation(const OpCall& call) {
  return ForDType(call, "u", [&](auto zero) { return ActivationT<decltype(zero)>(call); });
}
Status ActivationGrad(const OpCall& call) {
  return ForDType(call, "u", [&](auto zero) { return ActivationGradT<decltype(zero)>(call); });
}

}  // namespace meshwright::runtime::cpu
