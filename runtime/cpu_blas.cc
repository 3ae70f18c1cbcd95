#include "runtime/cpu_blas.h"

#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace meshwright::runtime {
namespace {

CBLAS_TRANSPOSE Flag(bool transposed) {
  return transposed ? CblasTrans : CblasNoTrans;
}

void Call(int m, int n, int k, float alpha, MatrixIn<float> a, MatrixIn<float> b, float beta,
          MatrixOut<float> c) {
  cblas_sgemm(CblasRowMajor, Flag(a.transposed), Flag(b.transposed), m, n, k, alpha, a.data,
              static_cast<int>(a.stride), b.data, static_cast<int>(b.stride), beta, c.data,
              static_cast<int>(c.stride));
}

void Call(int m, int n, int k, double alpha, MatrixIn<double> a, MatrixIn<double> b, double beta,
          MatrixOut<double> c) {
  cblas_dgemm(CblasRowMajor, Flag(a.transposed), Flag(b.transposed), m, n, k, alpha, a.data,
              static_cast<int>(a.stride), b.data, static_cast<int>(b.stride), beta, c.data,
              static_cast<int>(c.stride));
}

}  // namespace

void UseOneBlasThread() {
  openblas_set_num_threads(1);
}

template <typename T>
Status MatrixProduct(int64_t m, int64_t n, int64_t k, T alpha, MatrixIn<T> a, MatrixIn<T> b, T beta,
                     MatrixOut<T> c) {
  const int64_t largest = std::max({m, n, k, a.stride, b.stride, c.stride});
  if (largest > std::numeric_limits<int>::max()) {
    return Unsupported(fmt::format(
        "matrix product {} x {} x {} with strides {}, {}, {}: BLAS takes sizes below 2^31; use a "
        "smaller micro-batch or split the model further",
        m, n, k, a.stride, b.stride, c.stride));
  }
  Call(static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha, a, b, beta, c);
  return Status::Ok();
}

template Status MatrixProduct(int64_t, int64_t, int64_t, float, MatrixIn<float>, MatrixIn<float>,
                              float, MatrixOut<float>);
template Status MatrixProduct(int64_t, int64_t, int64_t, double, MatrixIn<double>, MatrixIn<double>,
                              double, MatrixOut<double>);

}  // namespace meshwright::runtime
