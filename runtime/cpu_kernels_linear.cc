// Products with weights stored [out, in], bias, and the sums and copies between them.
#include <algorithm>
#include <cstring>

#include "runtime/cpu_blas.h"
#include "runtime/cpu_kernels.h"

namespace meshwright::runtime::cpu {
namespace {

/// y [rows, out] (+)= x [rows, in] W^T + bias.
template <typename T>
Status LinearT(const OpCall& call) {
  const Operands operands(call);
  const planner::TensorView& w = *operands.View("weight");
  const int64_t out = w.shape[0];
  const int64_t in = w.shape[1];
  const int64_t rows = operands.View("y")->elements() / out;
  const T* x = operands.Get<T>("x", rows * in);
  const T* weight = operands.Get<T>("weight", out * in);
  const T* bias = operands.Get<T>("bias", out);
  T* y = operands.Get<T>("y", rows * out);
  const bool accumulates = operands.Accumulates("y");
  for (int64_t row = 0; bias != nullptr && row < rows; ++row) {
    for (int64_t j = 0; j < out; ++j) {
      y[row * out + j] = bias[j] + (accumulates ? y[row * out + j] : T{0});
    }
  }
  const T beta = accumulates || bias != nullptr ? T{1} : T{0};
  return MatrixProduct<T>(rows, out, in, T{1}, {x, in}, {weight, in, true}, beta, {y, out})
      .WithContext(Where(call));
}

/// dx [rows, in] (+)= dy [rows, out] W.
template <typename T>
Status LinearInputGradT(const OpCall& call) {
  const Operands operands(call);
  const planner::TensorView& w = *operands.View("weight");
  const int64_t out = w.shape[0];
  const int64_t in = w.shape[1];
  const int64_t rows = operands.View("dy")->elements() / out;
  const T* dy = operands.Get<T>("dy", rows * out);
  const T* weight = operands.Get<T>("weight", out * in);
  T* dx = operands.Get<T>("dx", rows * in);
  const T beta = operands.Accumulates("dx") ? T{1} : T{0};
  return MatrixProduct<T>(rows, in, out, T{1}, {dy, out}, {weight, in}, beta, {dx, in})
      .WithContext(Where(call));
}

/// W.G [out, in] (+)= dy^T x.
template <typename T>
Status LinearWeightGradT(const OpCall& call) {
  const Operands operands(call);
  const planner::TensorView& w = *operands.View("weight_grad");
  const int64_t out = w.shape[0];
  const int64_t in = w.shape[1];
  const int64_t rows = operands.View("dy")->elements() / out;
  const T* dy = operands.Get<T>("dy", rows * out);
  const T* x = operands.Get<T>("x", rows * in);
  T* gradient = operands.Get<T>("weight_grad", out * in);
  const T beta = operands.Accumulates("weight_grad") ? T{1} : T{0};
  return MatrixProduct<T>(out, in, rows, T{1}, {dy, out, true}, {x, in}, beta, {gradient, in})
      .WithContext(Where(call));
}

template <typename T>
Status BiasAddT(const OpCall& call) {
  const Operands operands(call);
  const int64_t h = operands.View("bias")->elements();
  const int64_t rows = operands.View("y")->elements() / h;
  const T* bias = operands.Get<T>("bias", h);
  T* y = operands.Get<T>("y", rows * h);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t j = 0; j < h; ++j) y[row * h + j] += bias[j];
  }
  return Status::Ok();
}

template <typename T>
Status BiasGradT(const OpCall& call) {
  const Operands operands(call);
  const int64_t h = operands.View("bias_grad")->elements();
  const int64_t rows = operands.View("dy")->elements() / h;
  const T* dy = operands.Get<T>("dy", rows * h);
  T* gradient = operands.Get<T>("bias_grad", h);
  ColumnSums(rows, h, operands.Accumulates("bias_grad"), gradient,
             [&](int64_t row, int64_t j) { return static_cast<double>(dy[row * h + j]); });
  return Status::Ok();
}

/// `out` may lie exactly over an input.
template <typename T>
Status AddT(const OpCall& call) {
  const Operands operands(call);
  const int64_t n = operands.View("out")->elements();
  const T* a = operands.Get<T>("a", n);
  const T* b = operands.Get<T>("b", n);
  T* out = operands.Get<T>("out", n);
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
  return Status::Ok();
}

}  // namespace

Status Linear(const OpCall& call) {
  return ForDType(call, "x", [&](auto zero) { return LinearT<decltype(zero)>(call); });
}
Status LinearInputGrad(const OpCall& call) {
  return ForDType(call, "dy", [&](auto zero) { return LinearInputGradT<decltype(zero)>(call); });
}
Status LinearWeightGrad(const OpCall& call) {
  return ForDType(call, "dy", [&](auto zero) { return LinearWeightGradT<decltype(zero)>(call); });
}
Status BiasAdd(const OpCall& call) {
  return ForDType(call, "y", [&](auto zero) { return BiasAddT<decltype(zero)>(call); });
}
Status BiasGrad(const OpCall& call) {
  return ForDType(call, "dy", [&](auto zero) { return BiasGradT<decltype(zero)>(call); });
}
Status Add(const OpCall& call) {
  return ForDType(call, "out", [&](auto zero) { return AddT<decltype(zero)>(call); });
}

Status Copy(const OpCall& call) {
  const planner::TensorView& from = *call.View(0);
  const planner::TensorView& to = *call.View(1);
  MW_CHECK(from.dtype == to.dtype && from.elements() == to.elements());
  std::memmove(call.Address(1), call.Address(0), static_cast<size_t>(from.bytes()));
  return Status::Ok();
}

}  // namespace meshwright::runtime::cpu
