#include <fmt/format.h>

#include <cstring>

#include "planner/ir/op_schema.h"

namespace meshwright::planner {
namespace {

/// Accesses an operand may have beside the one of its row.
bool AccessAllowed(const OpRow& row, const OperandRow& operand, Access access) {
  if (access == operand.access) return true;
  // The first micro-batch writes what later ones add to.
  if (operand.access == Access::kAccumulate) return access == Access::kWrite;
  // Of slices of a sum over tensor ranks the last product adds to the other rank's.
  if (row.kind == OpKind::kLinear || row.kind == OpKind::kLinearInputGrad) {
    return operand.access == Access::kWrite && access == Access::kAccumulate;
  }
  // In place: the own slice of the full buffer is the other operand.
  if (row.kind == OpKind::kReduceScatter && std::strcmp(operand.name, "in") == 0) {
    return access == Access::kReadWrite;
  }
  if (row.kind == OpKind::kAllGather && std::strcmp(operand.name, "out") == 0) {
    return access == Access::kReadWrite;
  }
  return false;
}

Status ShapeError(const Block& block, const Op& op, const std::string& what) {
  return Infeasible(fmt::format("block {}: {}: {}", block.name, RowOf(op.kind).name, what));
}

/// One equality of element counts or extents, reported with both sides.
#define MW_EXPECT_EQUAL(a, b, text)                                                         \
  do {                                                                                      \
    if ((a) != (b))                                                                         \
      return ShapeError(block, op,                                                          \
                        fmt::format("{}: found {} and {}, must be equal", text, (a), (b))); \
  } while (false)

Status CheckMatrixProduct(const Block& block, const Op& op) {
  const bool forward = op.kind == OpKind::kLinear;
  const bool weight_grad = op.kind == OpKind::kLinearWeightGrad;
  const TensorView& x = *Find(block, op, op.kind == OpKind::kLinearInputGrad ? "dx" : "x");
  const TensorView& w = *Find(block, op, weight_grad ? "weight_grad" : "weight");
  const TensorView& y = *Find(block, op, forward ? "y" : "dy");
  if (w.shape.size() != 2) return ShapeError(block, op, "weight must have shape [out, in]");
  MW_EXPECT_EQUAL(x.shape.back(), w.shape[1], "width of the input and of the weight");
  MW_EXPECT_EQUAL(y.shape.back(), w.shape[0], "width of the output and rows of the weight");
  MW_EXPECT_EQUAL(x.rows(), y.rows(), "rows of input and output");
  if (forward) {
    if (const TensorView* bias = Find(block, op, "bias"); bias != nullptr) {
      MW_EXPECT_EQUAL(bias->elements(), w.shape[0], "bias and rows of the weight");
    }
    MW_EXPECT_EQUAL(ToString(x.dtype), ToString(w.dtype), "dtype of input and weight");
  }
  return Status::Ok();
}

Status CheckCollective(const Block& block, const Op& op, const RankProgram& program) {
  const int32_t c = op.attributes.communicator;
  if (c < 0 || c >= static_cast<int32_t>(program.communicators.size())) {
    return ShapeError(block, op, fmt::format("communicator {} does not exist", c));
  }
  const int64_t n = program.communicators[static_cast<size_t>(c)].size;
  if (op.kind == OpKind::kAllGather) {
    const TensorView& out = *Find(block, op, "out");
    MW_EXPECT_EQUAL(out.elements() % n, 0, "all-gather output elements modulo group size");
    if (const TensorView* in = Find(block, op, "in"); in != nullptr) {
      MW_EXPECT_EQUAL(in->elements() * n, out.elements(),
                      "all-gather input x group size and output");
      MW_EXPECT_EQUAL(ToString(in->dtype), ToString(out.dtype), "dtypes");
    }
  } else if (op.kind == OpKind::kReduceScatter) {
    const TensorView& in = *Find(block, op, "in");
    MW_EXPECT_EQUAL(in.elements() % n, 0, "reduce-scatter input elements modulo group size");
    if (const TensorView* out = Find(block, op, "out"); out != nullptr) {
      MW_EXPECT_EQUAL(out->elements() * n, in.elements(),
                      "reduce-scatter output x group size and input");
      MW_EXPECT_EQUAL(ToString(in.dtype), ToString(out->dtype), "dtypes");
    }
  } else if (op.kind == OpKind::kShift) {
    const TensorView& in = *Find(block, op, "in");
    const TensorView& out = *Find(block, op, "out");
    MW_EXPECT_EQUAL(in.elements(), out.elements(), "shift: elements of input and output");
    MW_EXPECT_EQUAL(ToString(in.dtype), ToString(out.dtype), "dtypes");
  } else if (IsMessage(op.kind)) {
    if (op.attributes.peer < 0 || op.attributes.peer >= n) {
      return ShapeError(
          block, op,
          fmt::format("peer {} is not in a communicator of {} ranks", op.attributes.peer, n));
    }
  }
  return Status::Ok();
}

Status CheckElementwise(const Block& block, const Op& op) {
  const auto same = [&](const char* a, const char* b) -> Status {
    const TensorView* x = Find(block, op, a);
    const TensorView* y = Find(block, op, b);
    if (x == nullptr || y == nullptr) return Status::Ok();
    MW_EXPECT_EQUAL(x->elements(), y->elements(), fmt::format("elements of {} and {}", a, b));
    return Status::Ok();
  };
  switch (op.kind) {
    case OpKind::kNorm:
      MW_RETURN_IF_ERROR(same("r", "delta"));
      MW_RETURN_IF_ERROR(same("delta", "delta_other"));
      MW_RETURN_IF_ERROR(same("r", "r1"));
      return same("r", "n");
    case OpKind::kNormGrad:
      MW_RETURN_IF_ERROR(same("dn", "r1"));
      MW_RETURN_IF_ERROR(same("dr_in", "dr_out"));
      return same("dn", "dr_out");
    case OpKind::kNormApply:
      return same("r1", "n");
    case OpKind::kAdd:
      MW_RETURN_IF_ERROR(same("a", "b"));
      return same("a", "out");
    case OpKind::kCopy:
      return same("a", "out");
    case OpKind::kActivationGrad:
      MW_RETURN_IF_ERROR(same("u", "du"));
      return same("ds", "s");
    case OpKind::kAttentionGrad:
      MW_RETURN_IF_ERROR(same("qkv", "dqkv"));
      return same("o", "do");
    default:
      return Status::Ok();
  }
}

}  // namespace

Status CheckOp(const Block& block, const Op& op, const RankProgram& program) {
  const OpRow& row = RowOf(op.kind);
  if (op.operands.size() != row.operands.size()) {
    return ShapeError(
        block, op,
        fmt::format("{} operands, its row has {}", op.operands.size(), row.operands.size()));
  }
  for (size_t i = 0; i < row.operands.size(); ++i) {
    const Operand& operand = op.operands[i];
    const OperandRow& expected = row.operands[i];
    if (operand.tensor >= static_cast<int32_t>(block.tensors.size())) {
      return ShapeError(block, op,
                        fmt::format("operand {} names tensor {} of {}", expected.name,
                                    operand.tensor, block.tensors.size()));
    }
    if (operand.tensor < 0) {
      if (!expected.optional)
        return ShapeError(block, op, fmt::format("operand {} is missing", expected.name));
      continue;
    }
    if (!AccessAllowed(row, expected, operand.access)) {
      return ShapeError(block, op, fmt::format("operand {} has the wrong access", expected.name));
    }
    const TensorView& t = block.tensors[static_cast<size_t>(operand.tensor)];
    if (t.offset < 0 || t.shape.empty()) {
      return ShapeError(block, op, fmt::format("tensor {} has no place or shape", t.name));
    }
    for (int64_t d : t.shape) {
      if (d <= 0) return ShapeError(block, op, fmt::format("tensor {} has extent {}", t.name, d));
    }
  }
  switch (row.work) {
    case WorkKind::kMatrixProduct:
      return CheckMatrixProduct(block, op);
    case WorkKind::kCollective:
    case WorkKind::kMessage:
      return CheckCollective(block, op, program);
    case WorkKind::kElementwise:
    case WorkKind::kAttention:
      return CheckElementwise(block, op);
    case WorkKind::kHost:
      return Status::Ok();
  }
  return Status::Ok();
}

}  // namespace meshwright::planner
