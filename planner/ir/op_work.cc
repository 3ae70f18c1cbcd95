#include "planner/ir/op_schema.h"

namespace meshwright::planner {
namespace {

/// Bytes by the access of every operand, and the dtype of the first that holds numbers.
void CountOperands(const Block& block, const Op& op, OpWork& work) {
  for (const Operand& operand : op.operands) {
    if (operand.tensor < 0) continue;
    const TensorView& t = block.tensors[static_cast<size_t>(operand.tensor)];
    if (operand.access != Access::kWrite) work.bytes_read += t.bytes();
    if (operand.access != Access::kRead) work.bytes_written += t.bytes();
    if (t.dtype != DType::kI32 && t.dtype != DType::kI64 && work.dtype == DType::kF32) {
      work.dtype = t.dtype;
    }
  }
}

void CountMatrixProduct(const Block& block, const Op& op, OpWork& work) {
  const bool weight_grad = op.kind == OpKind::kLinearWeightGrad;
  const TensorView& w = *Find(block, op, weight_grad ? "weight_grad" : "weight");
  const TensorView& y = *Find(block, op, op.kind == OpKind::kLinear ? "y" : "dy");
  work.dtype = y.dtype;
  if (op.kind == OpKind::kLinear) {
    work.m = y.rows(), work.n = w.shape[0], work.k = w.shape[1];
  } else if (op.kind == OpKind::kLinearInputGrad) {
    work.m = y.rows(), work.n = w.shape[1], work.k = w.shape[0];
  } else {
    work.m = w.shape[0], work.n = w.shape[1], work.k = y.rows();
  }
  work.flops =
      2.0 * static_cast<double>(work.m) * static_cast<double>(work.n) * static_cast<double>(work.k);
}

void CountAttention(const Block& block, const Op& op, OpWork& work) {
  const OpAttributes& a = op.attributes;
  // Two products forward, five backward (flash form recomputes the scores).
  const double products = op.kind == OpKind::kAttention ? 2.0 : 5.0;
  const double pairs =
      static_cast<double>(a.sequence) * static_cast<double>(a.sequence) * (a.causal ? 0.5 : 1.0);
  work.flops = products * 2.0 * pairs * static_cast<double>(a.head_dim * a.heads * a.batch);
  work.m = a.sequence, work.n = a.sequence, work.k = a.head_dim;
  work.dtype = Find(block, op, "qkv")->dtype;
}

void CountElementwise(const Block& block, const Op& op, OpWork& work) {
  // A few operations an element; what counts is the traffic.
  work.flops = static_cast<double>(work.bytes_read + work.bytes_written) /
               static_cast<double>(SizeOf(work.dtype));
  // Rows gathered from a table: only the rows in use move.
  if (op.kind == OpKind::kEmbed) work.bytes_read = Find(block, op, "y")->bytes();
  if (op.kind == OpKind::kEmbedGrad) {
    work.bytes_read = 2 * Find(block, op, "dy")->bytes();
    const Operand& grad = op.operands[static_cast<size_t>(OperandIndex(op.kind, "weight_grad"))];
    work.bytes_written = Find(block, op, "dy")->bytes();
    if (grad.access == Access::kWrite) {
      work.bytes_written += Find(block, op, "weight_grad")->bytes();
    }
  }
}

void CountCollective(const Block& block, const Op& op, OpWork& work) {
  const TensorView* full = op.kind == OpKind::kAllReduce   ? Find(block, op, "buffer")
                           : op.kind == OpKind::kAllGather ? Find(block, op, "out")
                                                           : Find(block, op, "in");
  work.message_bytes = full->bytes();
  work.dtype = full->dtype;
}

}  // namespace

OpWork WorkOf(const Block& block, const Op& op, const RankProgram& program) {
  OpWork work;
  work.kind = RowOf(op.kind).work;
  CountOperands(block, op, work);
  switch (work.kind) {
    case WorkKind::kMatrixProduct:
      CountMatrixProduct(block, op, work);
      break;
    case WorkKind::kAttention:
      CountAttention(block, op, work);
      break;
    case WorkKind::kElementwise:
      CountElementwise(block, op, work);
      break;
    case WorkKind::kCollective:
      CountCollective(block, op, work);
      break;
    case WorkKind::kMessage:
      work.message_bytes = Find(block, op, "buffer")->bytes();
      work.dtype = Find(block, op, "buffer")->dtype;
      break;
    case WorkKind::kHost:
      break;
  }
  (void)program;
  return work;
}

}  // namespace meshwright::planner
