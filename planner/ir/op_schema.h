// The op schema: one row a kind. Operand order, access, shape rule and work of every op; the
// kernels, the verifier and the cost models read the same rows.
#pragma once

#include <string>
#include <vector>

#include "planner/ir/program.h"
#include "topologies/status.h"

namespace meshwright::planner {

/// Operand of a kind: name, access (kAccumulate may be kWrite on the first micro-batch), optional.
struct OperandRow {
  const char* name;
  Access access;
  bool optional = false;
};

enum class WorkKind : uint8_t { kMatrixProduct, kAttention, kElementwise, kCollective, kMessage, kHost };

struct OpRow {
  OpKind kind;
  const char* name;
  WorkKind work;
  std::vector<OperandRow> operands;
};
const OpRow& RowOf(OpKind kind);

/// Index of the operand called `name` in the row of `kind`; aborts when the row has none.
int OperandIndex(OpKind kind, const char* name);

/// Tensor of the operand called `name`, or nullptr when the optional operand is absent. Optional
/// operands keep their place: an absent one has tensor -1.
const TensorView* Find(const Block& block, const Op& op, const char* name);

/// Floating-point operations and bytes of memory traffic of one op on one rank.
/// Matrix products count 2 m n k; causal attention counts half of the square.
struct OpWork {
  WorkKind kind = WorkKind::kElementwise;
  double flops = 0.0;
  int64_t m = 0, n = 0, k = 0;  ///< of a matrix product
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  int64_t message_bytes = 0;  ///< collectives: bytes of the full (gathered) message; shifts, messages: payload
  DType dtype = DType::kF32;
};
OpWork WorkOf(const Block& block, const Op& op, const RankProgram& program);

/// Shapes, dtypes, operand count and access of one op against its row; names op and operand.
Status CheckOp(const Block& block, const Op& op, const RankProgram& program);

bool IsCollective(OpKind kind);  ///< kAllReduce, kAllGather, kReduceScatter, kShift
bool IsMessage(OpKind kind);     ///< kSend, kRecv
bool IsHost(OpKind kind);        ///< reads or writes host data

}  // namespace meshwright::planner
