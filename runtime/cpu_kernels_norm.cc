// RMS and layer norm over the last axis, with the residual sum in front.
//   RMS:   xhat = x * rstd,          rstd = 1 / sqrt(mean(x^2) + eps);  stat [rows] = rstd
//   layer: xhat = (x - mean) * rstd, rstd = 1 / sqrt(var(x) + eps);     stat [2, rows] = mean, rstd
//   n = xhat * gamma + beta, with gamma stored as gamma - 1 when attributes.one_plus.
#include <cmath>

#include "runtime/cpu_kernels.h"

namespace meshwright::runtime::cpu {
namespace {

using planner::NormKind;

/// Sizes of one call and its statistics. `mean` is nullptr for RMS norms.
template <typename T>
struct NormShape {
  int64_t rows = 0;
  int64_t h = 0;
  T* mean = nullptr;
  T* rstd = nullptr;
};

template <typename T>
NormShape<T> ShapeOf(const OpCall& call, const char* input) {
  const Operands operands(call);
  const planner::TensorView& x = *operands.View(input);
  const bool layer = call.op.attributes.norm == NormKind::kLayerNorm;
  NormShape<T> shape;
  shape.h = Width(x);
  shape.rows = RowCount(x);
  T* stat = operands.Get<T>("stat", layer ? 2 * shape.rows : shape.rows);
  if (layer) shape.mean = stat;
  shape.rstd = layer ? stat + shape.rows : stat;
  return shape;
}

template <typename T>
void Statistics(const NormShape<T>& shape, int64_t row, const T* x, double eps) {
  const auto h = static_cast<double>(shape.h);
  double mean = 0.0;
  if (shape.mean != nullptr) {
    for (int64_t j = 0; j < shape.h; ++j) mean += static_cast<double>(x[j]);
    mean /= h;
    shape.mean[row] = static_cast<T>(mean);
  }
  double squares = 0.0;
  for (int64_t j = 0; j < shape.h; ++j) {
    const double d = static_cast<double>(x[j]) - mean;
    squares += d * d;
  }
  shape.rstd[row] = static_cast<T>(1.0 / std::sqrt(squares / h + eps));
}

template <typename T>
void Normalize(const NormShape<T>& shape, int64_t row, const T* x, const T* gamma, const T* beta,
               bool one_plus, T* n) {
  const T mean = shape.mean != nullptr ? shape.mean[row] : T{0};
  const T rstd = shape.rstd[row];
  const T one = one_plus ? T{1} : T{0};
  for (int64_t j = 0; j < shape.h; ++j) {
    const T value = (x[j] - mean) * rstd * (gamma[j] + one);
    n[j] = beta != nullptr ? value + beta[j] : value;
  }
}

template <typename T>
Status NormT(const OpCall& call) {
  const Operands operands(call);
  const planner::OpAttributes& a = call.op.attributes;
  const NormShape<T> shape = ShapeOf<T>(call, "r");
  const int64_t elements = shape.rows * shape.h;
  const T* r = operands.Get<T>("r", elements);
  const T* delta = operands.Get<T>("delta", elements);
  const T* other = operands.Get<T>("delta_other", elements);
  const T* gamma = operands.Get<T>("gamma", shape.h);
  const T* beta = operands.Get<T>("beta", shape.h);
  T* r1 = operands.Get<T>("r1", elements);
  T* n = operands.Get<T>("n", elements);
  MW_CHECK(r1 != nullptr || delta == nullptr);
  MW_CHECK(delta != nullptr || other == nullptr);
  const auto delta_at = [&](int64_t j) {
    return other != nullptr ? delta[j] + other[j] : delta[j];
  };
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t at = row * shape.h;
    const T* x = r + at;
    if (r1 != nullptr) {
      // Element by element, so r1 may lie exactly over r or delta.
      for (int64_t j = at; j < at + shape.h; ++j) {
        r1[j] = delta != nullptr ? r[j] + delta_at(j) : r[j];
      }
      x = r1 + at;
    }
    Statistics(shape, row, x, a.eps);
    Normalize(shape, row, x, gamma, beta, a.one_plus, n + at);
  }
  return Status::Ok();
}

template <typename T>
Status NormApplyT(const OpCall& call) {
  const Operands operands(call);
  const NormShape<T> shape = ShapeOf<T>(call, "r1");
  const int64_t elements = shape.rows * shape.h;
  const T* r1 = operands.Get<T>("r1", elements);
  const T* gamma = operands.Get<T>("gamma", shape.h);
  const T* beta = operands.Get<T>("beta", shape.h);
  T* n = operands.Get<T>("n", elements);
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t at = row * shape.h;
    Normalize(shape, row, r1 + at, gamma, beta, call.op.attributes.one_plus, n + at);
  }
  return Status::Ok();
}

/// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dn * gamma; RMS norms lack mean(g).
template <typename T>
void InputGrad(const NormShape<T>& shape, int64_t row, const T* dn, const T* x, const T* gamma,
               double one, const T* dr_in, T* dr_out) {
  const double mean = shape.mean != nullptr ? static_cast<double>(shape.mean[row]) : 0.0;
  const auto rstd = static_cast<double>(shape.rstd[row]);
  double sum = 0.0;
  double product = 0.0;
  for (int64_t j = 0; j < shape.h; ++j) {
    const double g = static_cast<double>(dn[j]) * (static_cast<double>(gamma[j]) + one);
    sum += g;
    product += g * (static_cast<double>(x[j]) - mean) * rstd;
  }
  const auto h = static_cast<double>(shape.h);
  const double mean_g = shape.mean != nullptr ? sum / h : 0.0;
  const double mean_product = product / h;
  for (int64_t j = 0; j < shape.h; ++j) {
    const double g = static_cast<double>(dn[j]) * (static_cast<double>(gamma[j]) + one);
    const double xhat = (static_cast<double>(x[j]) - mean) * rstd;
    const double dx = rstd * (g - mean_g - xhat * mean_product);
    dr_out[j] = static_cast<T>(dr_in != nullptr ? static_cast<double>(dr_in[j]) + dx : dx);
  }
}

template <typename T>
Status NormGradT(const OpCall& call) {
  const Operands operands(call);
  const NormShape<T> shape = ShapeOf<T>(call, "r1");
  const int64_t h = shape.h;
  const int64_t elements = shape.rows * h;
  const T* dn = operands.Get<T>("dn", elements);
  const T* r1 = operands.Get<T>("r1", elements);
  const T* gamma = operands.Get<T>("gamma", h);
  const T* dr_in = operands.Get<T>("dr_in", elements);
  T* dr_out = operands.Get<T>("dr_out", elements);
  // Parameter gradients first: dr_out may lie over an input.
  ColumnSums(
      shape.rows, h, operands.Accumulates("gamma_grad"), operands.Get<T>("gamma_grad", h),
      [&](int64_t row, int64_t j) {
        const double mean = shape.mean != nullptr ? static_cast<double>(shape.mean[row]) : 0.0;
        return static_cast<double>(dn[row * h + j]) *
               (static_cast<double>(r1[row * h + j]) - mean) * static_cast<double>(shape.rstd[row]);
      });
  if (T* beta_grad = operands.Get<T>("beta_grad", h); beta_grad != nullptr) {
    ColumnSums(shape.rows, h, operands.Accumulates("beta_grad"), beta_grad,
               [&](int64_t row, int64_t j) { return static_cast<double>(dn[row * h + j]); });
  }
  const double one = call.op.attributes.one_plus ? 1.0 : 0.0;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t at = row * h;
    InputGrad(shape, row, dn + at, r1 + at, gamma, one, dr_in != nullptr ? dr_in + at : nullptr,
              dr_out + at);
  }
  return Status::Ok();
}

}  // namespace

Status Norm(const OpCall& call) {
  return ForDType(call, "r", [&](auto zero) { return NormT<decltype(zero)>(call); });
}
Status NormApply(const OpCall& call) {
  return ForDType(call, "r1", [&](auto zero) { return NormApplyT<decltype(zero)>(call); });
}
Status NormGrad(const OpCall& call) {
  return ForDType(call, "r1", [&](auto zero) { return NormGradT<decltype(zero)>(call); });
}

}  // namespace meshwright::runtime::cpu
