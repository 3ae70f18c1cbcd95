// Products with weights stored [out, in] (runtime/cpu_kernels_linear.cc) as GEMMs.
#include <cstdint>

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/gemm.h"
#include "runtime/cuda/operands.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::OpKind;
using planner::TensorView;

/// What a, b, d and the bias of the product are called in the op's row.
struct Names {
  const char* a;
  const char* b;
  const char* d;
  const char* bias;  ///< nullptr: the kind has none
};
Names NamesOf(OpKind kind) {
  switch (kind) {
    case OpKind::kLinear:
      return {"x", "weight", "y", "bias"};
    case OpKind::kLinearInputGrad:
      return {"dy", "weight", "dx", nullptr};
    default:
      MW_CHECK(kind == OpKind::kLinearWeightGrad);
      return {"dy", "x", "weight_grad", nullptr};
  }
}

std::byte* Address(const OpCall& call, const char* name) {
  return call.Address(static_cast<size_t>(planner::OperandIndex(call.op.kind, name)));
}

GemmOperands OperandsOf(const OpCall& call, const Names& names) {
  return {Address(call, names.a), Address(call, names.b), Address(call, names.d),
          names.bias != nullptr ? Address(call, names.bias) : nullptr};
}

Status RunProduct(const OpCall& call) {
  MW_ASSIGN_OR_RETURN(const GemmKey key, GemmEngine::KeyOf(call));
  const Status status =
      DeviceOf(call).gemm().Run(key, OperandsOf(call, NamesOf(call.op.kind)), call.op.stream);
  return status.ok() ? status : status.WithContext(Where(call));
}

}  // namespace

Result<GemmKey> GemmEngine::KeyOf(const OpCall& call, int32_t sm_target) {
  const Names names = NamesOf(call.op.kind);
  const Operands operands(call);
  const TensorView& a = *operands.View(names.a);
  const TensorView& b = *operands.View(names.b);
  const TensorView& d = *operands.View(names.d);
  const TensorView* bias = names.bias != nullptr ? operands.View(names.bias) : nullptr;
  for (const char* name : {names.a, names.d}) {
    const planner::DType dtype = operands.View(name)->dtype;
    if (dtype != planner::DType::kBf16 && dtype != planner::DType::kF32) {
      return UnsupportedDType(call, name);
    }
  }
  MW_CHECK(a.dtype == b.dtype);
  MW_CHECK(bias == nullptr || bias->dtype == d.dtype);

  GemmKey key;
  key.input = a.dtype;
  key.output = d.dtype;
  key.transpose_a = call.op.kind == OpKind::kLinearWeightGrad;
  key.transpose_b = call.op.kind == OpKind::kLinear;
  key.m = RowCount(d);
  key.n = Width(d);
  key.k = key.transpose_a ? RowCount(a) : Width(a);
  key.lda = Width(a), key.ldb = Width(b), key.ldd = Width(d);
  key.bias = bias != nullptr;
  key.accumulate = operands.Accumulates(names.d);
  key.sm_target = sm_target;
  const GemmOperands at = OperandsOf(call, names);
  const auto bits = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  key.alignment = AlignmentClass(bits(at.a) | bits(at.b) | bits(at.d) | bits(at.bias));
  return key;
}

Status Linear(const OpCall& call) {
  return RunProduct(call);
}
Status LinearInputGrad(const OpCall& call) {
  return RunProduct(call);
}
Status LinearWeightGrad(const OpCall& call) {
  return RunProduct(call);
}

}  // namespace meshwright::runtime::cuda
