// CPU kernels, one function an op kind, and what they share. Semantics of each kind stand in
// planner/ir/program.h, operand order in planner/ir/op_schema.cc.
#pragma once

#include <cstdint>
#include <type_traits>

#include "planner/ir/dtype.h"
#include "runtime/kernels.h"

namespace meshwright::runtime::cpu {

Status CountTokens(const OpCall& call);
Status InvertCount(const OpCall& call);
Status Embed(const OpCall& call);
Status EmbedGrad(const OpCall& call);
Status AddPositions(const OpCall& call);
Status PositionsGrad(const OpCall& call);
Status Norm(const OpCall& call);
Status NormApply(const OpCall& call);
Status NormGrad(const OpCall& call);
Status Linear(const OpCall& call);
Status LinearInputGrad(const OpCall& call);
Status LinearWeightGrad(const OpCall& call);
Status BiasAdd(const OpCall& call);
Status BiasGrad(const OpCall& call);
Status Rotary(const OpCall& call);
Status Attention(const OpCall& call);
Status AttentionGrad(const OpCall& call);
Status Activation(const OpCall& call);
Status ActivationGrad(const OpCall& call);
Status Add(const OpCall& call);
Status Copy(const OpCall& call);
Status SoftmaxStats(const OpCall& call);
Status CrossEntropyGrad(const OpCall& call);
Status SquaredNorm(const OpCall& call);
Status StepStatistics(const OpCall& call);
Status ClipFactor(const OpCall& call);
Status OptimizerStep(const OpCall& call);

inline constexpr int32_t kMaskedLabel = -100;

template <typename T>
constexpr planner::DType DTypeOf() {
  if constexpr (std::is_same_v<T, float>) return planner::DType::kF32;
  if constexpr (std::is_same_v<T, double>) return planner::DType::kF64;
  if constexpr (std::is_same_v<T, int32_t>) return planner::DType::kI32;
  if constexpr (std::is_same_v<T, int64_t>) return planner::DType::kI64;
}

/// Operands of a call by the names of the op's row. Dtype and size are invariants of the lowering.
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
    return Address<T>(name);
  }
  /// The same for operands that may be larger than what the op uses.
  template <typename T>
  T* GetAtLeast(const char* name, int64_t elements) const {
    const planner::TensorView* view = View(name);
    if (view == nullptr) return nullptr;
    MW_CHECK(view->dtype == DTypeOf<T>());
    MW_CHECK(view->elements() >= elements);
    return Address<T>(name);
  }
  /// False when the operand is overwritten (first micro-batch), true when it is added to.
  bool Accumulates(const char* name) const {
    return call_.op.operands[Index(name)].access != planner::Access::kWrite;
  }

 private:
  size_t Index(const char* name) const {
    return static_cast<size_t>(planner::OperandIndex(call_.op.kind, name));
  }
  template <typename T>
  T* Address(const char* name) const {
    return reinterpret_cast<T*>(call_.Address(Index(name)));
  }
  const OpCall& call_;
};

/// kUnsupported, naming block, op and tensor, when an operand has a dtype that CPU ranks lack.
Status CheckDTypes(const OpCall& call);

/// Calls f(float{}) or f(double{}) by the dtype of the operand called `name`.
template <typename F>
Status ForDType(const OpCall& call, const char* name, F f) {
  MW_RETURN_IF_ERROR(CheckDTypes(call));
  const planner::TensorView* view = Operands(call).View(name);
  MW_CHECK(view != nullptr);
  if (view->dtype == planner::DType::kF32) return f(float{});
  MW_CHECK(view->dtype == planner::DType::kF64);
  return f(double{});
}

/// "block x: op": where a kernel's error comes from.
std::string Where(const OpCall& call);

/// Elements of the last axis.
inline int64_t Width(const planner::TensorView& view) {
  return view.shape.back();
}
inline int64_t RowCount(const planner::TensorView& view) {
  return view.elements() / Width(view);
}

/// out[j] (+)= sum over rows of value(row, j), in fp64. Columns go in blocks so that the sums fit
/// the stack and rows are read in cache lines.
template <typename T, typename F>
void ColumnSums(int64_t rows, int64_t columns, bool accumulate, T* out, F value) {
  constexpr int64_t kBlock = 64;
  for (int64_t begin = 0; begin < columns; begin += kBlock) {
    const int64_t width = columns - begin < kBlock ? columns - begin : kBlock;
    double sums[kBlock] = {};
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t j = 0; j < width; ++j) sums[j] += value(row, begin + j);
    }
    for (int64_t j = 0; j < width; ++j) {
      T& target = out[begin + j];
      target = static_cast<T>(accumulate ? static_cast<double>(target) + sums[j] : sums[j]);
    }
  }
}

}  // namespace meshwright::runtime::cpu
