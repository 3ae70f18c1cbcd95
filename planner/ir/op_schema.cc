#include "planner/ir/op_schema.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

namespace meshwright::planner {
namespace {

constexpr Access kR = Access::kRead;
constexpr Access kW = Access::kWrite;
constexpr Access kA = Access::kAccumulate;
constexpr Access kRW = Access::kReadWrite;

std::vector<OpRow> MakeRows() {
  using K = OpKind;
  using W = WorkKind;
  return {
      {K::kLoadTokens, "load_tokens", W::kHost, {{"tokens", kW}}},
      {K::kLoadLabels, "load_labels", W::kHost, {{"labels", kW}}},
      {K::kCountTokens, "count_tokens", W::kElementwise, {{"labels", kR}, {"count", kW}}},
      {K::kInvertCount, "invert_count", W::kElementwise, {{"count", kR}, {"inverse", kW}}},
      {K::kEmbed, "embed", W::kElementwise, {{"tokens", kR}, {"weight", kR}, {"y", kW}}},
      {K::kEmbedGrad,
       "embed_grad",
       W::kElementwise,
       {{"tokens", kR}, {"dy", kR}, {"weight_grad", kA}}},
      {K::kAddPositions, "add_positions", W::kElementwise, {{"positions", kR}, {"y", kRW}}},
      {K::kPositionsGrad, "positions_grad", W::kElementwise, {{"dy", kR}, {"positions_grad", kA}}},
      {K::kNorm,
       "norm",
       W::kElementwise,
       {{"r", kR},
        {"delta", kR, true},
        {"gamma", kR},
        {"beta", kR, true},
        {"r1", kW, true},
        {"n", kW},
        {"stat", kW}}},
      {K::kNormApply,
       "norm_apply",
       W::kElementwise,
       {{"r1", kR}, {"stat", kR}, {"gamma", kR}, {"beta", kR, true}, {"n", kW}}},
      {K::kNormGrad,
       "norm_grad",
       W::kElementwise,
       {{"dn", kR},
        {"r1", kR},
        {"stat", kR},
        {"gamma", kR},
        {"dr_in", kR, true},
        {"dr_out", kW},
        {"gamma_grad", kA},
        {"beta_grad", kA, true}}},
      {K::kLinear,
       "linear",
       W::kMatrixProduct,
       {{"x", kR}, {"weight", kR}, {"bias", kR, true}, {"y", kW}}},
      {K::kLinearInputGrad,
       "linear_input_grad",
       W::kMatrixProduct,
       {{"dy", kR}, {"weight", kR}, {"dx", kW}}},
      {K::kLinearWeightGrad,
       "linear_weight_grad",
       W::kMatrixProduct,
       {{"dy", kR}, {"x", kR}, {"weight_grad", kA}}},
      {K::kBiasAdd, "bias_add", W::kElementwise, {{"bias", kR}, {"y", kRW}}},
      {K::kBiasGrad, "bias_grad", W::kElementwise, {{"dy", kR}, {"bias_grad", kA}}},
      {K::kRotary, "rotary", W::kElementwise, {{"qkv", kRW}}},
      {K::kAttention,
       "attention",
       W::kAttention,
       {{"qkv", kR}, {"o", kW}, {"lse", kW}, {"workspace", kW}}},
      {K::kAttentionGrad,
       "attention_grad",
       W::kAttention,
       {{"qkv", kR}, {"o", kR}, {"lse", kR}, {"do", kR}, {"dqkv", kW}, {"workspace", kW}}},
      {K::kActivation, "activation", W::kElementwise, {{"u", kR}, {"s", kW}}},
      {K::kActivationGrad,
       "activation_grad",
       W::kElementwise,
       {{"u", kR}, {"ds", kR}, {"du", kW}, {"s", kW, true}}},
      {K::kAdd, "add", W::kElementwise, {{"a", kR}, {"b", kR}, {"out", kW}}},
      {K::kCopy, "copy", W::kElementwise, {{"a", kR}, {"out", kW}}},
      {K::kSoftmaxStats,
       "softmax_stats",
       W::kElementwise,
       {{"logits", kR}, {"labels", kR}, {"stats", kW}}},
      {K::kCrossEntropyGrad,
       "cross_entropy_grad",
       W::kElementwise,
       {{"stats", kR}, {"labels", kR}, {"logits", kRW}, {"loss", kA}, {"inverse", kR}}},
      {K::kAllReduce, "all_reduce", W::kCollective, {{"buffer", kRW}}},
      {K::kAllGather, "all_gather", W::kCollective, {{"in", kR, true}, {"out", kW}}},
      {K::kReduceScatter, "reduce_scatter", W::kCollective, {{"in", kR}, {"out", kW, true}}},
      {K::kSwap, "swap", W::kCollective, {{"in", kR}, {"out", kW}}},
      {K::kSend, "send", W::kMessage, {{"buffer", kR}}},
      {K::kRecv, "recv", W::kMessage, {{"buffer", kW}}},
      {K::kSquaredNorm, "squared_norm", W::kElementwise, {{"gradient", kR}, {"norm", kA}}},
      {K::kStepStatistics,
       "step_statistics",
       W::kElementwise,
       {{"loss", kR}, {"count", kR}, {"statistics", kRW}}},
      {K::kClipFactor, "clip_factor", W::kElementwise, {{"statistics", kR}, {"clip", kW}}},
      {K::kOptimizerStep,
       "optimizer_step",
       W::kElementwise,
       {{"parameter", kRW},
        {"gradient", kR},
        {"state", kRW, true},
        {"clip", kR},
        {"learning_rate", kR},
        {"step", kR}}},
      {K::kReadBack, "read_back", W::kHost, {{"statistics", kR}, {"clip", kR}}},
  };
}

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

int64_t Rows(const TensorView& t) {
  return t.shape.empty() ? 1 : t.elements() / t.shape.back();
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
  MW_EXPECT_EQUAL(Rows(x), Rows(y), "rows of input and output");
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
  } else if (op.kind == OpKind::kSwap) {
    MW_EXPECT_EQUAL(n, 2, "swap: ranks of the group and 2");
    const TensorView& in = *Find(block, op, "in");
    const TensorView& out = *Find(block, op, "out");
    MW_EXPECT_EQUAL(in.elements(), out.elements(), "swap: elements of input and output");
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

const OpRow& RowOf(OpKind kind) {
  static const std::vector<OpRow> rows = MakeRows();
  const auto index = static_cast<size_t>(kind);
  MW_CHECK(index < rows.size() && rows[index].kind == kind);
  return rows[index];
}

std::string ToString(OpKind kind) {
  return RowOf(kind).name;
}

int OperandIndex(OpKind kind, const char* name) {
  const OpRow& row = RowOf(kind);
  for (size_t i = 0; i < row.operands.size(); ++i) {
    if (std::strcmp(row.operands[i].name, name) == 0) return static_cast<int>(i);
  }
  MW_CHECK(false && "no operand of this name");
  return -1;
}

const TensorView* Find(const Block& block, const Op& op, const char* name) {
  const auto index = static_cast<size_t>(OperandIndex(op.kind, name));
  if (index >= op.operands.size() || op.operands[index].tensor < 0) return nullptr;
  return &block.tensors[static_cast<size_t>(op.operands[index].tensor)];
}

bool IsCollective(OpKind kind) {
  return RowOf(kind).work == WorkKind::kCollective;
}
bool IsMessage(OpKind kind) {
  return RowOf(kind).work == WorkKind::kMessage;
}
bool IsHost(OpKind kind) {
  return RowOf(kind).work == WorkKind::kHost;
}

OpWork WorkOf(const Block& block, const Op& op, const RankProgram& program) {
  OpWork work;
  work.kind = RowOf(op.kind).work;
  for (const Operand& operand : op.operands) {
    if (operand.tensor < 0) continue;
    const TensorView& t = block.tensors[static_cast<size_t>(operand.tensor)];
    if (operand.access != Access::kWrite) work.bytes_read += t.bytes();
    if (operand.access != Access::kRead) work.bytes_written += t.bytes();
    if (t.dtype != DType::kI32 && t.dtype != DType::kI64 && work.m == 0 &&
        work.dtype == DType::kF32) {
      work.dtype = t.dtype;
    }
  }
  const OpAttributes& a = op.attributes;
  switch (work.kind) {
    case WorkKind::kMatrixProduct: {
      const bool weight_grad = op.kind == OpKind::kLinearWeightGrad;
      const TensorView& w = *Find(block, op, weight_grad ? "weight_grad" : "weight");
      const TensorView& y = *Find(block, op, op.kind == OpKind::kLinear ? "y" : "dy");
      const int64_t rows = Rows(y);
      work.dtype = y.dtype;
      if (op.kind == OpKind::kLinear) {
        work.m = rows, work.n = w.shape[0], work.k = w.shape[1];
      } else if (op.kind == OpKind::kLinearInputGrad) {
        work.m = rows, work.n = w.shape[1], work.k = w.shape[0];
      } else {
        work.m = w.shape[0], work.n = w.shape[1], work.k = rows;
      }
      work.flops = 2.0 * static_cast<double>(work.m) * static_cast<double>(work.n) *
                   static_cast<double>(work.k);
      break;
    }
    case WorkKind::kAttention: {
      // Two products forward, five backward (flash form recomputes the scores).
      const double products = op.kind == OpKind::kAttention ? 2.0 : 5.0;
      const double pairs = static_cast<double>(a.sequence) * static_cast<double>(a.sequence) *
                           (a.causal ? 0.5 : 1.0);
      work.flops = products * 2.0 * pairs * static_cast<double>(a.head_dim * a.heads * a.batch);
      work.m = a.sequence, work.n = a.sequence, work.k = a.head_dim;
      work.dtype = Find(block, op, "qkv")->dtype;
      break;
    }
    case WorkKind::kElementwise: {
      // A few operations an element; what counts is the traffic.
      work.flops = static_cast<double>(work.bytes_read + work.bytes_written) /
                   static_cast<double>(SizeOf(work.dtype));
      // Rows gathered from a table: only the rows in use move.
      if (op.kind == OpKind::kEmbed) work.bytes_read = Find(block, op, "y")->bytes();
      if (op.kind == OpKind::kEmbedGrad) {
        work.bytes_read = 2 * Find(block, op, "dy")->bytes();
        const Operand& grad =
            op.operands[static_cast<size_t>(OperandIndex(op.kind, "weight_grad"))];
        work.bytes_written = Find(block, op, "dy")->bytes();
        if (grad.access == Access::kWrite)
          work.bytes_written += Find(block, op, "weight_grad")->bytes();
      }
      break;
    }
    case WorkKind::kCollective: {
      const TensorView* full = op.kind == OpKind::kAllReduce   ? Find(block, op, "buffer")
                               : op.kind == OpKind::kAllGather ? Find(block, op, "out")
                                                               : Find(block, op, "in");
      work.message_bytes = full->bytes();
      work.dtype = full->dtype;
      break;
    }
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
