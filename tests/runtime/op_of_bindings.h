// An op from {operand, tensor} pairs, as the harnesses of kernel tests take it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "planner/ir/op_schema.h"

namespace meshwright::runtime {

using OpBindings = std::vector<std::pair<std::string, std::string>>;

/// Which operands that may be added to are.
struct Additions {
  bool gradients = true;  ///< gradients, losses, norms: false as for the first micro-batch
  bool products = false;  ///< outputs of kLinear and kLinearInputGrad
};

/// Operands left out are absent. `index`: tensor of a name in the block.
template <typename Index>
planner::Op OpOfBindings(planner::OpKind kind, const planner::OpAttributes& attributes,
                         const OpBindings& bindings, const Additions& additions, Index index) {
  using planner::Access;
  using planner::OpKind;
  planner::Op op;
  op.kind = kind;
  op.attributes = attributes;
  const bool product = kind == OpKind::kLinear || kind == OpKind::kLinearInputGrad;
  for (const planner::OperandRow& operand : planner::RowOf(kind).operands) {
    Access access = operand.access;
    if (access == Access::kAccumulate && !additions.gradients) access = Access::kWrite;
    if (access == Access::kWrite && product && additions.products) access = Access::kAccumulate;
    op.operands.push_back({-1, access});
  }
  for (const auto& [operand, tensor] : bindings) {
    op.operands[static_cast<size_t>(planner::OperandIndex(kind, operand.c_str()))].tensor =
        static_cast<int32_t>(index(tensor));
  }
  return op;
}

}  // namespace meshwright::runtime
