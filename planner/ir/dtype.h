// Element types. Dtypes are open: a new one is a row here and in the kernels that support it.
#pragma once

#include <cstdint>
#include <string>

#include "topologies/status.h"

namespace meshwright::planner {

enum class DType : uint8_t { kBf16, kF32, kF64, kI32, kI64 };

/// Bytes of one element.
constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return 2;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF64:
    case DType::kI64:
      return 8;
  }
  return 0;
}

/// "bf16", "fp32", "fp64", "int32", "int64".
std::string ToString(DType dtype);
Result<DType> ParseDType(const std::string& text);

/// Which element type each kind of state has when the model computes in `compute`.
/// bf16: fp32 gradients, fp32 master weights, fp32 moments. fp32/fp64: the parameter is its own master.
struct DTypePolicy {
  DType compute = DType::kF32;
  DType gradient = DType::kF32;
  DType moment = DType::kF32;
  DType statistics = DType::kF32;  ///< norm statistics, log-sum-exp, loss pieces
  bool master = false;             ///< separate master weights of type `moment`
};
DTypePolicy PolicyOf(DType compute);

}  // namespace meshwright::planner
