// Embedding, head and loss.
#include "planner/stack/op_list.h"

namespace meshwright::planner::stack {

int64_t ItemContext::padded_vocab() const {
  const int64_t quantum = 128 * (stack.lowering.vocabulary_parallel ? split.tp : 1);
  return (module.vocab + quantum - 1) / quantum * quantum;
}

ItemOps EmbeddingOps(const ItemContext& context) {
  ItemOps item;
  if (context.module.vocab == 0) return item;
  internal::OpList list(context, &item);
  const double e = context.element_bytes();
  const auto h = static_cast<double>(context.module.hidden);
  const double whole = static_cast<double>(context.tokens()) * h;
  const double outer = static_cast<double>(context.outer_tokens()) * h;
  list.AddPointwise(Phase::kForward, 2 * e * whole, 2);
  list.AddPointwise(Phase::kBackwardWeight, whole * (e + 2 * context.stack.state.gradients), 2);
  if (context.split.tp > 1) {
    const bool sequence = context.split.sequence_parallel;
    list.AddCollective(
        Phase::kForward,
        sequence ? cost::CollectiveKind::kReduceScatter : cost::CollectiveKind::kAllReduce,
        e * whole, Group::kTensor, false);
    if (sequence) {
      list.AddCollective(Phase::kBackwardInput, cost::CollectiveKind::kAllGather, e * whole,
                         Group::kTensor, false);
    }
  }
  if (context.stack.lowering.dropout) {
    list.AddPointwise(Phase::kForward, outer * (2 * e + 1));
    list.AddPointwise(Phase::kBackwardInput, outer * (2 * e + 1));
    list.Save(outer);
  }
  const double rows =
      static_cast<double>(context.padded_vocab()) / static_cast<double>(context.split.tp);
  list.AddParameters(rows * h);
  if (context.module.positions == PositionKind::kLearned) {
    list.AddParameters(static_cast<double>(context.module.max_positions) * h);
    list.AddPointwise(Phase::kForward, 3 * e * outer);
    list.AddPointwise(Phase::kBackwardWeight, 2 * e * outer);
  }
  item.saved[static_cast<size_t>(LayerMode::kFull)] =
      item.saved[static_cast<size_t>(LayerMode::kKeep)];
  return item;
}

ItemOps HeadOps(const ItemContext& context) {
  ItemOps item;
  const ModuleSpec& module = context.module;
  if (!module.head) return item;
  internal::OpList list(context, &item);
  const double e = context.element_bytes();
  const auto h = static_cast<double>(module.hidden);
  const double outer = static_cast<double>(context.outer_tokens()) * h;
  list.AddNormPass(Phase::kForward, 2 * e * outer);
  list.AddNormPass(Phase::kBackwardInput, 3 * e * outer);
  const double whole = e * static_cast<double>(context.tokens()) * h;
  if (context.split.tp > 1) {
    if (context.split.sequence_parallel) {
      list.AddCollective(Phase::kForward, cost::CollectiveKind::kAllGather, whole, Group::kTensor,
                         false);
      list.AddCollective(Phase::kBackwardWeight, cost::CollectiveKind::kReduceScatter, whole,
                         Group::kTensor, context.stack.lowering.hides_tensor_gradients);
    } else {
      list.AddCollective(Phase::kBackwardWeight, cost::CollectiveKind::kAllReduce, whole,
                         Group::kTensor, context.stack.lowering.hides_tensor_gradients);
    }
  }
  const int64_t columns = context.padded_vocab() / context.split.tp;
  list.AddLinear({context.tokens(), columns, module.hidden, 1, module.head_bias, false});
  const double logits = static_cast<double>(context.tokens()) * static_cast<double>(columns);
  const double bytes = logits * context.stack.factors.loss_bytes_per_logit;
  const int kernels = context.stack.lowering.fused_loss ? 2 : 6;
  list.AddPointwise(Phase::kForward, bytes * 0.6, kernels);
  list.AddPointwise(Phase::kBackwardInput, bytes * 0.4, kernels / 2);
  if (context.split.tp > 1) {
    for (int reduction = 0; reduction < 3; ++reduction) {
      list.AddCollective(Phase::kForward, cost::CollectiveKind::kAllReduce,
                         4 * static_cast<double>(context.tokens()), Group::kTensor, false);
    }
  }
  list.AddParameters(module.norm == NormKind::kLayerNorm ? 2 * h : h);
  // Tied weights live on the first stage too, and their gradients are summed: a stage with both
  // ends holds them once.
  if (!module.tied_embeddings || context.split.pp > 1) {
    list.AddParameters(static_cast<double>(columns) * h);
  }
  list.Save(e * (outer + static_cast<double>(context.input_tokens()) * h));
  const StackAllocator& allocator = context.stack.allocator;
  list.Transient(logits * 4 *
                 (context.split.tp > 1 ? allocator.split_logit_copies : allocator.logit_copies));
  for (double& saved : item.saved) saved = item.saved[static_cast<size_t>(LayerMode::kKeep)];
  return item;
}

}  // namespace meshwright::planner::stack
