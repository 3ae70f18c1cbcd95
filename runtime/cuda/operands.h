// How CUDA kernels reach operands, and their errors.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "planner/ir/dtype.h"
#include "planner/ir/op_schema.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/kernels.h"

namespace meshwright::runtime::cuda {

using Bf16 = __nv_bfloat16;

inline constexpr int32_t kMaskedLabel = -100;

template <typename T>
constexpr planner::DType DTypeOf() {
  if constexpr (std::is_same_v<T, Bf16>) return planner::DType::kBf16;
  if constexpr (std::is_same_v<T, float>) return planner::DType::kF32;
  if constexpr (std::is_same_v<T, double>) return planner::DType::kF64;
  if constexpr (std::is_same_v<T, int32_t>) return planner::DType::kI32;
  if constexpr (std::is_same_v<T, int64_t>) return planner::DType::kI64;
}

/// Operands of a call by the names of the op's row, as addresses in device memory. Dtype and size
/// are invariants of the lowering.
class Operands {
 public:
  explicit Operands(const OpCall& call) : call_(call) {}

  const planner::TensorView* View(const char* name) const {
    return planner::Find(call_.block, call_.op, name);
  }
  /// Address of an operand of `elements` elements; nullptr when it is absent.
  template <typename T>
  T* Get(const char* name, int64_t elements) const {
    const planner::TensorView* view = View(name);
    if (view == nullptr) return nullptr;
    MW_CHECK(view->dtype == DTypeOf<T>());
    MW_CHECK(view->elements() == elements);
    return reinterpret_cast<T*>(call_.Address(Index(name)));
  }
  /// False when the operand is overwritten (first micro-batch), true when it is added to.
  bool Accumulates(const char* name) const {
    return call_.op.operands[Index(name)].access != planner::Access::kWrite;
  }

 private:
  size_t Index(const char* name) const {
    return static_cast<size_t>(planner::OperandIndex(call_.op.kind, name));
  }
  const OpCall& call_;
};

/// "block x: op": where a kernel's error comes from.
std::string Where(const OpCall& call);

/// kUnsupported: the operand's dtype, and those that GPU ranks compute in.
Status UnsupportedDType(const OpCall& call, const char* name);

/// The error of the launch just made, with the op it belongs to.
Status Launched(const OpCall& call);

/// Calls f(Bf16{}) or f(float{}) by the dtype of the operand called `name`.
template <typename F>
Status ForCompute(const OpCall& call, const char* name, F f) {
  const planner::TensorView* view = Operands(call).View(name);
  MW_CHECK(view != nullptr);
  if (view->dtype == planner::DType::kBf16) return f(Bf16{});
  if (view->dtype == planner::DType::kF32) return f(float{});
  return UnsupportedDType(call, name);
}

inline cudaStream_t StreamOf(const OpCall& call) {
  return DeviceOf(call).stream(call.op.stream);
}

/// Elements of the last axis.
inline int64_t Width(const planner::TensorView& view) {
  return view.shape.back();
}
inline int64_t RowCount(const planner::TensorView& view) {
  return view.elements() / Width(view);
}

/// True when 16-byte loads and stores may go to all of these addresses.
template <typename... P>
bool Aligned16(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace meshwright::runtime::cuda
