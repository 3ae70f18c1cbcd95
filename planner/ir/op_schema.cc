#include "planner/ir/op_schema.h"

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
        {"stat", kW},
        {"delta_other", kR, true}}},
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
      {K::kShift, "shift", W::kCollective, {{"in", kR}, {"out", kW}}},
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

}  // namespace meshwright::planner
