// Row-major matrix products of both precisions with 64-bit sizes checked against BLAS integers.
#pragma once

#include <cstdint>

#include "topologies/status.h"

namespace meshwright::runtime {

/// One thread a rank: ranks are threads or processes themselves. Called once before the first
/// product.
void UseOneBlasThread();

/// A matrix as BLAS sees it: rows `stride` elements apart, `transposed` before use.
template <typename T>
struct MatrixIn {
  const T* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};
template <typename T>
struct MatrixOut {
  T* data = nullptr;
  int64_t stride = 0;
};

/// c [m, n] = alpha a [m, k] b [k, n] + beta c. With beta 0, c is not read (may hold NaN).
/// kUnsupported when a size exceeds the 32-bit integers of BLAS.
template <typename T>
Status MatrixProduct(int64_t m, int64_t n, int64_t k, T alpha, MatrixIn<T> a, MatrixIn<T> b, T beta,
                     MatrixOut<T> c);

}  // namespace meshwright::runtime
