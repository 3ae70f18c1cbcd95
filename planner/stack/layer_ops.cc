// Attention and dense MLP of a layer, tensor- and context-parallel (Korthikanti et al. 2022 for
// tensor and sequence parallelism and what is kept; parallelism.md section 6 for the exact rules).
#include <algorithm>
#include <optional>
#include <utility>

#include "planner/predict/model_flops.h"
#include "planner/stack/op_list.h"

namespace meshwright::planner::stack {
namespace internal {
namespace {

/// Of an attention on one tensor rank.
struct Widths {
  double q = 0, k = 0, v = 0;  ///< elements of a token on one tensor rank
  int64_t heads = 0;           ///< query heads of one tensor rank
  int64_t qk_dim = 0;
  int64_t v_dim = 0;
};

Widths WidthsOf(const AttentionSpec& a, int64_t tp) {
  Widths w;
  w.heads = std::max<int64_t>(a.heads / tp, 1);
  const int64_t kv_heads = std::max<int64_t>(a.kv_heads / tp, 1);
  w.qk_dim = a.latent ? a.latent->nope_dim + a.latent->rope_dim : a.head_dim;
  w.v_dim = a.latent ? a.latent->value_dim : a.head_dim;
  w.q = static_cast<double>(w.heads * w.qk_dim);
  w.k = static_cast<double>((a.latent ? w.heads : kv_heads) * w.qk_dim);
  w.v = static_cast<double>((a.latent ? w.heads : kv_heads) * w.v_dim);
  return w;
}

void AddNorm(OpList& list, double width, double tokens) {
  const ItemContext& c = list.context();
  const double e = c.element_bytes();
  list.AddNormPass(Phase::kForward, 2 * e * tokens * width);
  list.AddNormPass(Phase::kBackwardInput, 3 * e * tokens * width);
  list.AddPointwise(Phase::kBackwardWeight, 2 * e * width, 1);  // sums of partial results
  list.Save(e * tokens * width);
  list.AddParameters(c.module.norm == NormKind::kLayerNorm ? 2 * width : width);
}

/// In front of column-parallel products: gather under sequence parallelism; gradients go back by
/// all-reduce or reduce-scatter behind the weight gradient.
void EnterTensorRegion(OpList& list) {
  const ItemContext& c = list.context();
  if (c.split.tp == 1) return;
  const double bytes = c.element_bytes() * static_cast<double>(c.tokens() * c.module.hidden);
  const bool hides = c.stack.lowering.hides_tensor_gradients;
  if (c.split.sequence_parallel) {
    list.AddCollective(Phase::kForward, cost::CollectiveKind::kAllGather, bytes, Group::kTensor,
                       c.stack.lowering.overlaps_tensor_exchange);
    list.AddCollective(Phase::kBackwardInput, cost::CollectiveKind::kAllGather, bytes,
                       Group::kTensor, hides);
    list.AddCollective(Phase::kBackwardWeight, cost::CollectiveKind::kReduceScatter, bytes,
                       Group::kTensor, hides);
    list.Transient(bytes);
  } else {
    list.AddCollective(Phase::kBackwardWeight, cost::CollectiveKind::kAllReduce, bytes,
                       Group::kTensor, hides);
  }
}

/// Behind row-parallel products.
void LeaveTensorRegion(OpList& list) {
  const ItemContext& c = list.context();
  if (c.split.tp == 1) return;
  const double bytes = c.element_bytes() * static_cast<double>(c.tokens() * c.module.hidden);
  if (c.split.sequence_parallel) {
    list.AddCollective(Phase::kForward, cost::CollectiveKind::kReduceScatter, bytes, Group::kTensor,
                       false);
    list.AddCollective(Phase::kBackwardInput, cost::CollectiveKind::kAllGather, bytes,
                       Group::kTensor, false);
  } else {
    list.AddCollective(Phase::kForward, cost::CollectiveKind::kAllReduce, bytes, Group::kTensor,
                       false);
  }
}

/// Dropout (or none), bias and residual sum.
void AddResidual(OpList& list, bool bias) {
  const ItemContext& c = list.context();
  const double elements = static_cast<double>(c.outer_tokens() * c.module.hidden);
  const double mask = c.stack.lowering.dropout ? 1 : 0;
  list.AddPointwise(Phase::kForward, elements * (3 * c.element_bytes() + mask));
  list.AddPointwise(Phase::kBackwardInput,
                    elements * ((mask > 0 || bias ? 2 : 0) * c.element_bytes() +
                                (mask > 0 ? 1 : 0) + 3 * c.element_bytes()));
  list.Save(elements * mask);
}

/// Projections to queries, keys and values, latent or not.
void AddProjections(OpList& list, const AttentionSpec& a, const Widths& w) {
  const ItemContext& c = list.context();
  const int64_t n = c.tokens();
  const int64_t h = c.module.hidden;
  const double e = c.element_bytes();
  if (!a.latent) {
    const auto columns = static_cast<int64_t>(w.q + w.k + w.v);
    list.AddLinear({n, columns, h, 1, a.qkv_bias, true});
    list.AddParameters(static_cast<double>(h * columns + (a.qkv_bias ? columns : 0)));
    return;
  }
  const LatentAttentionSpec& l = *a.latent;
  const auto tokens = static_cast<double>(n);
  if (l.q_rank > 0) {
    list.AddLinear({n, l.q_rank, h, 1, a.qkv_bias, true});
    AddNorm(list, static_cast<double>(l.q_rank), tokens);
    list.AddLinear({n, static_cast<int64_t>(w.q), l.q_rank, 1, false, true});
    list.AddParameters(static_cast<double>(h * l.q_rank) + static_cast<double>(l.q_rank) * w.q);
    list.Save(e * tokens * static_cast<double>(l.q_rank));
  } else {
    list.AddLinear({n, static_cast<int64_t>(w.q), h, 1, false, true});
    list.AddParameters(static_cast<double>(h) * w.q);
  }
  const int64_t down = l.kv_rank + l.rope_dim;
  const auto up = static_cast<int64_t>(static_cast<double>(w.heads * l.nope_dim) + w.v);
  list.AddLinear({n, down, h, 1, a.qkv_bias, true});
  AddNorm(list, static_cast<double>(l.kv_rank), tokens);
  list.AddLinear({n, up, l.kv_rank, 1, false, true});
  list.AddParameters(static_cast<double>(h * down + l.kv_rank * up));
  list.Save(e * tokens * static_cast<double>(down));
}

/// Scores, softmax, dropout and values as separate kernels.
void AddUnfusedCore(OpList& list, const AttentionSpec& a, const Widths& w) {
  const ItemContext& c = list.context();
  const int64_t s = c.sequence;
  const int64_t queries = s / c.split.cp;
  const int64_t batch = c.split.micro_batch * w.heads;
  const double e = c.element_bytes();
  const double scores =
      static_cast<double>(batch) * static_cast<double>(queries) * static_cast<double>(s);
  const double mask = c.stack.lowering.dropout ? 1 : 0;
  (void)a;
  list.AddBatchedProduct(Phase::kForward, batch, queries, s, w.qk_dim);
  list.AddScores(Phase::kForward, scores * 2 * e);
  if (mask > 0) list.AddScores(Phase::kForward, scores * (2 * e + 1));
  list.AddBatchedProduct(Phase::kForward, batch, queries, w.v_dim, s);
  list.AddBatchedProduct(Phase::kBackwardInput, batch, queries, s, w.v_dim);
  list.AddBatchedProduct(Phase::kBackwardInput, batch, s, w.v_dim, queries);
  if (mask > 0) list.AddScores(Phase::kBackwardInput, scores * (2 * e + 1));
  list.AddScores(Phase::kBackwardInput, scores * 3 * e);
  list.AddBatchedProduct(Phase::kBackwardInput, batch, queries, w.qk_dim, s);
  list.AddBatchedProduct(Phase::kBackwardInput, batch, s, w.qk_dim, queries);
  for (StackOp& op : list.ops()) {
    if (op.phase != Phase::kForward) op.core = false;
  }
  list.SaveCore(scores * (e + mask * (e + 1)));
  list.Transient(scores * 2 * e);
}

void AddFusedCore(OpList& list, const AttentionSpec& a, const Widths& w) {
  const ItemContext& c = list.context();
  const auto samples = static_cast<double>(c.split.micro_batch);
  const double pairs = AttentionPairs(a, c.sequence) / static_cast<double>(c.split.cp) * samples;
  const double forward =
      2 * pairs * static_cast<double>(w.heads) * static_cast<double>(w.qk_dim + w.v_dim);
  // The backward kernel re-computes scores: five products for two.
  const double backward =
      2 * pairs * static_cast<double>(w.heads) * static_cast<double>(3 * w.qk_dim + 2 * w.v_dim);
  const double tokens = static_cast<double>(c.tokens());
  const double e = c.element_bytes();
  const double traffic = e * tokens * (w.q + w.k + w.v + static_cast<double>(w.heads * w.v_dim));
  const int64_t keys = a.window > 0 ? std::min(a.window, c.sequence) : c.sequence;
  list.AddAttention(Phase::kForward, forward, w.qk_dim, keys, a.causal, traffic);
  list.ops().back().result_bytes = e * tokens * static_cast<double>(w.heads * w.v_dim) +
                                   4 * tokens * static_cast<double>(w.heads);
  list.AddAttention(Phase::kBackwardInput, backward, w.qk_dim, keys, a.causal, 2 * traffic);
  const double statistics = 4 * tokens * static_cast<double>(w.heads);
  list.Save(statistics);
}

/// Up to queries, keys and values.
void EnterAttention(OpList& list, const AttentionSpec& a, const Widths& w) {
  const ItemContext& c = list.context();
  const auto tokens = static_cast<double>(c.tokens());
  const auto h = static_cast<double>(c.module.hidden);
  const double e = c.element_bytes();
  const double saved_input = BitsOf(c.split.format) < 16 ? 1.0 : e;
  AddNorm(list, h, static_cast<double>(c.outer_tokens()));
  EnterTensorRegion(list);
  list.Save(saved_input * static_cast<double>(c.input_tokens()) * h);  // of the projections
  AddProjections(list, a, w);
  if (c.module.positions == PositionKind::kRotary) {
    list.AddPointwise(Phase::kForward, 2 * e * tokens * (w.q + w.k));
    list.AddPointwise(Phase::kBackwardInput, 2 * e * tokens * (w.q + w.k));
  }
  list.Save(e * tokens * (w.q + w.k + w.v));
}

/// Exchange of keys and values, and attention itself.
void AddCore(OpList& list, const AttentionSpec& a, const Widths& w) {
  const ItemContext& c = list.context();
  const auto tokens = static_cast<double>(c.tokens());
  const double e = c.element_bytes();
  if (c.split.cp > 1) {
    // Keys and values travel once round the ring; backward sends them and their gradients.
    const double kv = e * tokens * (w.k + w.v) * static_cast<double>(c.split.cp);
    const bool hides = c.stack.lowering.hides_context_exchange;
    list.AddCollective(Phase::kForward, cost::CollectiveKind::kAllGather, kv, Group::kContext,
                       hides);
    list.AddCollective(Phase::kBackwardInput, cost::CollectiveKind::kAllGather, 2 * kv,
                       Group::kContext, hides);
  }
  if (c.stack.lowering.fused_attention) {
    AddFusedCore(list, a, w);
  } else {
    // Heads and positions change places in copies of q, k, v and the result.
    const double moved = tokens * (w.q + w.k + w.v + static_cast<double>(w.heads * w.v_dim));
    list.AddPointwise(Phase::kForward, 2 * e * moved, 2);
    list.AddPointwise(Phase::kBackwardInput, 2 * e * moved, 2);
    AddUnfusedCore(list, a, w);
  }
}

/// From the result of attention to the residual sum.
void LeaveAttention(OpList& list, const AttentionSpec& a, const Widths& w, bool bias) {
  const ItemContext& c = list.context();
  const auto tokens = static_cast<double>(c.tokens());
  const auto h = static_cast<double>(c.module.hidden);
  const int64_t inner = w.heads * w.v_dim;
  list.Save((BitsOf(c.split.format) < 16 ? 1.0 : c.element_bytes()) * tokens *
            static_cast<double>(inner));
  list.AddLinear({c.tokens(), c.module.hidden, inner, 1, false, true});
  list.AddParameters(static_cast<double>(inner) * h + (a.output_bias ? h : 0));
  LeaveTensorRegion(list);
  AddResidual(list, bias);
}

/// A layer, or one part of it.
void AddLayer(OpList& list, const LayerSpec& layer, std::optional<LayerPart> only, ItemOps* item) {
  const ItemContext& c = list.context();
  const bool rest = !only || *only == LayerPart::kRest;
  const Widths w = WidthsOf(layer.attention, c.split.tp);
  if (rest) EnterAttention(list, layer.attention, w);
  if (!only || *only == LayerPart::kCore) AddCore(list, layer.attention, w);
  if (rest) {
    LeaveAttention(list, layer.attention, w, layer.mlp.bias);
    for (int norms = layer.post_norms ? 3 : 1; norms > 0; --norms) {
      AddNorm(list, static_cast<double>(c.module.hidden), static_cast<double>(c.outer_tokens()));
    }
  }
  if (layer.mlp.moe) {
    if (!only || *only == LayerPart::kExperts) {
      AddExperts(list, layer.mlp, *layer.mlp.moe, item);
    }
    if (rest) AddSharedExperts(list, layer.mlp, *layer.mlp.moe);
  } else if (rest) {
    AddDenseMlp(list, layer.mlp, layer.mlp.ffn);
  }
  if (rest) AddResidual(list, layer.mlp.bias);
}

}  // namespace

void AddDenseMlp(OpList& list, const MlpSpec& mlp, int64_t ffn) {
  const ItemContext& c = list.context();
  const int64_t n = c.tokens();
  const int64_t h = c.module.hidden;
  const int64_t width = std::max<int64_t>(ffn / c.split.tp, 1);
  const int64_t first = mlp.gated ? 2 * width : width;
  const double e = c.element_bytes();
  const auto tokens = static_cast<double>(n);
  const double saved_input = BitsOf(c.split.format) < 16 ? 1.0 : e;
  EnterTensorRegion(list);
  list.Save(saved_input * static_cast<double>(c.input_tokens() * h));
  list.AddLinear({n, first, h, 1, mlp.bias, true});
  list.AddPointwise(Phase::kForward, e * tokens * static_cast<double>(first + width));
  list.AddPointwise(Phase::kBackwardInput, e * tokens * static_cast<double>(2 * first + width));
  list.Save(e * tokens * static_cast<double>(first) +
            saved_input * tokens * static_cast<double>(width));
  list.AddLinear({n, h, width, 1, false, true});
  // The gradient of the last product's input takes the place of that input.
  list.Working(e * static_cast<double>(n * first + c.outer_tokens() * h),
               static_cast<double>(h * width));
  list.AddParameters(static_cast<double>(h * (first + width) + (mlp.bias ? first + h : 0)));
  LeaveTensorRegion(list);
}

}  // namespace internal

namespace {

/// What per-operator checkpointing keeps beside the layer's input: the results of every other
/// product, of attention and of the reduction behind it. The last product's is read by no backward
/// pass: compiled layers drop it, eager ones keep it.
double KeptResults(const ItemContext& context, const LayerSpec& layer, const ItemOps& item) {
  const auto tokens = static_cast<double>(context.tokens());
  const double e = context.element_bytes();
  double products = 0, bytes = 0;
  for (const StackOp& op : item.ops) {
    if (op.phase != Phase::kForward) continue;
    if (op.work.kind == cost::WorkKind::kGemm && !op.core) {
      products += static_cast<double>(op.work.m * op.work.n) * static_cast<double>(op.work.batch);
    } else if (op.work.kind == cost::WorkKind::kAttention) {
      bytes += op.result_bytes;
    }
  }
  if (context.split.tp > 1) {
    bytes += e * static_cast<double>(context.outer_tokens() * context.module.hidden);
  }
  if (layer.attention.latent || layer.mlp.moe) return bytes + 0.5 * e * products;
  // The first, third and fifth: queries, values, the first half of the MLP.
  const internal::Widths w = internal::WidthsOf(layer.attention, context.split.tp);
  const auto width = static_cast<double>(std::max<int64_t>(layer.mlp.ffn / context.split.tp, 1));
  const bool compiled = context.stack.lowering.compiled_norms;
  const auto last = compiled ? 0.0 : static_cast<double>(context.module.hidden);
  return bytes + e * tokens * (w.q + w.v + width + last);
}

}  // namespace

ItemOps LayerOps(const ItemContext& context, const LayerSpec& layer) {
  ItemOps item;
  internal::OpList list(context, &item);
  internal::AddLayer(list, layer, std::nullopt, &item);
  const auto outer = static_cast<double>(context.outer_tokens());
  const auto h = static_cast<double>(context.module.hidden);
  // Full recomputation keeps the layer's input alone.
  item.saved[static_cast<size_t>(LayerMode::kFull)] = context.element_bytes() * outer * h;
  if (context.stack.lowering.selective_keeps_products) {
    item.saved[static_cast<size_t>(LayerMode::kSelective)] =
        item.saved[static_cast<size_t>(LayerMode::kFull)] + KeptResults(context, layer, item);
  }
  return item;
}

std::vector<StackOp> OpsOf(const ItemContext& context, const LayerSpec& layer, LayerPart part) {
  ItemOps item;
  internal::OpList list(context, &item);
  internal::AddLayer(list, layer, part, &item);
  return std::move(item.ops);
}

}  // namespace meshwright::planner::stack
