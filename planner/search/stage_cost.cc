#include "planner/search/stage_cost.h"

#include <algorithm>

#include "planner/ir/op_schema.h"

namespace meshwright::planner::search {
namespace {

/// Prices depend on a program only by its module, and the search plans one module.
const RankProgram& FirstModule() {
  static const RankProgram program;
  return program;
}

int64_t OpTime(const OneOp& one, const Prices& prices) {
  return prices.PriceOp(FirstModule(), one.block, one.op()).time.value();
}

TensorView View(DType dtype, std::vector<int64_t> shape, Region region = Region::kScratch) {
  return {"", dtype, std::move(shape), region, 0};
}

TensorView Residual(const lower::SplitFacts& split) {
  return View(split.dtypes.compute,
              {split.local_sequence(), split.micro_batch, split.module->hidden});
}

const TensorView kAbsent{"", DType::kF32, {}, Region::kScratch, 0};

}  // namespace

OneOp MakeOneOp(OpKind kind, const std::vector<std::pair<TensorView, Access>>& operands) {
  OneOp one;
  Op op;
  op.kind = kind;
  for (const auto& [view, access] : operands) {
    if (view.shape.empty()) {
      op.operands.push_back({-1, access});
      continue;
    }
    op.operands.push_back({static_cast<int32_t>(one.block.tensors.size()), access});
    one.block.tensors.push_back(view);
  }
  one.block.ops.push_back(std::move(op));
  return one;
}

int64_t CommunicationTime(const Block& block, const Op& op, const Prices& prices,
                          const Paths& paths) {
  int64_t slowest = 0;
  for (const cost::PathFacts& path : paths) {
    slowest = std::max(
        slowest, prices.PriceCommunication(FirstModule(), block, op, path).time.value());
  }
  return slowest;
}

int64_t BlockTime(const Block& block, const Prices& prices, const Paths& tensor) {
  std::array<int64_t, 2> free_at{0, 0};  // compute and tensor stream
  std::vector<int64_t> event_at;         // an event that the block has not recorded yet is over
  int64_t end = 0;
  for (const Op& op : block.ops) {
    int64_t& stream = free_at[static_cast<size_t>(op.stream)];
    for (const EventId e : op.waits) {
      if (static_cast<size_t>(e) < event_at.size()) {
        stream = std::max(stream, event_at[static_cast<size_t>(e)]);
      }
    }
    stream += IsCollective(op.kind) ? CommunicationTime(block, op, prices, tensor)
                                    : prices.PriceOp(FirstModule(), block, op).time.value();
    end = std::max(end, stream);
    if (op.signal < 0) continue;
    if (static_cast<size_t>(op.signal) >= event_at.size()) {
      event_at.resize(static_cast<size_t>(op.signal) + 1, 0);
    }
    event_at[static_cast<size_t>(op.signal)] = stream;
  }
  return end;
}

ItemCosts::ItemCosts(const lower::SplitFacts& split, const Prices& prices, const Placed& placed,
                     const std::vector<Recompute>& recompute)
    : split_(split) {
  embedding_ = Price({lower::ItemKind::kEmbedding}, prices, placed);
  head_ = Price({lower::ItemKind::kHead}, prices, placed);
  layers_.resize(split.module->layer_kinds.size());
  for (size_t kind = 0; kind < layers_.size(); ++kind) {
    for (const bool first : {false, true}) {
      for (const Recompute mode : recompute) {
        layers_[kind][first ? 1 : 0][static_cast<size_t>(mode)] =
            Price({lower::ItemKind::kLayer, static_cast<int>(kind), first, mode}, prices, placed);
      }
    }
  }
  const TensorView residual = Residual(split);
  join_ns_ = OpTime(MakeOneOp(OpKind::kAdd, {{residual, Access::kRead},
                                             {residual, Access::kRead},
                                             {residual, Access::kWrite}}),
                    prices);
  const TensorView tokens = View(DType::kI32, {split.sequence, split.micro_batch});
  tokens_ns_ = OpTime(MakeOneOp(OpKind::kLoadTokens, {{tokens, Access::kWrite}}), prices);
}

int64_t MessageTime(const lower::SplitFacts& split, const Prices& prices, const Placed& placed) {
  const TensorView residual = Residual(split);
  const OneOp send = MakeOneOp(OpKind::kSend, {{residual, Access::kRead}});
  return CommunicationTime(send.block, send.op(), prices, placed.edge);
}

ItemCost ItemCosts::Price(const ItemKey& key, const Prices& prices, const Placed& placed) const {
  const ItemBlocks item = LowerItem(split_, key);
  ItemCost cost;
  cost.sizes = item.sizes;
  const auto time = [&](int32_t block) {
    return block < 0 ? 0
                     : BlockTime(item.blocks[static_cast<size_t>(block)], prices, placed.tensor);
  };
  cost.forward_ns = time(item.forward);
  cost.backward_ns = time(item.backward);
  cost.backward_first_ns = time(item.backward_first);
  for (const lower::ItemParameter& p : item.parameters.list) {
    if (p.late != LateReduction::kKeyValueCopies) continue;
    // Rows behind the query part are the copied ones.
    const int64_t width = p.local_shape.size() > 1 ? p.local_shape[1] : 1;
    const int64_t rows = p.local_shape[0] - p.parts.front().extent / split_.tp;
    const OneOp sum = MakeOneOp(OpKind::kAllReduce,
                                {{View(split_.dtypes.gradient, {rows, width}), Access::kReadWrite}});
    cost.kv_sum_ns += CommunicationTime(sum.block, sum.op(), prices, placed.kv);
  }
  return cost;
}

StepPrices::StepPrices(const lower::SplitFacts& split, const BucketRules& rules,
                       const Prices& prices, const Placed& placed)
    : split_(split), rules_(rules), prices_(prices), placed_(placed) {
  const TensorView cell = View(DType::kF64, {1}, Region::kScalar);
  const TensorView statistics = View(DType::kF64, {3}, Region::kScalar);
  const OneOp sum = MakeOneOp(OpKind::kAllReduce, {{statistics, Access::kReadWrite}});
  statistics_ns_ =
      OpTime(MakeOneOp(OpKind::kStepStatistics, {{cell, Access::kRead},
                                                 {cell, Access::kRead},
                                                 {statistics, Access::kReadWrite}}),
             prices) +
      CommunicationTime(sum.block, sum.op(), prices, placed.world) +
      OpTime(MakeOneOp(OpKind::kClipFactor, {{statistics, Access::kRead}, {cell, Access::kWrite}}),
             prices);
  if (split.tied_across) {
    const TensorView weight = View(split.dtypes.gradient,
                                   {split.padded_vocab / split.tp, split.module->hidden});
    const OneOp tied = MakeOneOp(OpKind::kAllReduce, {{weight, Access::kReadWrite}});
    tied_sum_ns_ = CommunicationTime(tied.block, tied.op(), prices, placed.tied);
  }
}

const StepPrices::Bucket& StepPrices::Of(int64_t elements) {
  const auto known = buckets_.find(elements);
  if (known != buckets_.end()) return known->second;
  const DTypePolicy& d = split_.dtypes;
  const TensorView gradient = View(d.gradient, {elements}, Region::kGradient);
  const TensorView parameter = View(d.compute, {elements}, Region::kParameter);
  const TensorView cell = View(DType::kF64, {1}, Region::kScalar);
  const TensorView number = View(DType::kI64, {1}, Region::kScalar);
  Bucket b;
  if (rules_.dp > 1) {
    std::vector<std::pair<TensorView, Access>> operands = {{gradient, Access::kReadWrite}};
    if (rules_.sharded) operands.emplace_back(kAbsent, Access::kWrite);
    const OneOp reduce =
        MakeOneOp(rules_.sharded ? OpKind::kReduceScatter : OpKind::kAllReduce, operands);
    b.reduce_ns = CommunicationTime(reduce.block, reduce.op(), prices_, placed_.data);
  }
  if (rules_.sharded) {
    const OneOp gather = MakeOneOp(
        OpKind::kAllGather, {{kAbsent, Access::kRead}, {parameter, Access::kReadWrite}});
    b.gather_ns = CommunicationTime(gather.block, gather.op(), prices_, placed_.data);
  }
  const OneOp sum = MakeOneOp(OpKind::kAllReduce, {{gradient, Access::kReadWrite}});
  b.tensor_sum_ns = CommunicationTime(sum.block, sum.op(), prices_, placed_.tensor);
  const auto norm = [&](Access sum_access) {
    return OpTime(
        MakeOneOp(OpKind::kSquaredNorm, {{gradient, Access::kRead}, {cell, sum_access}}), prices_);
  };
  b.norm_ns = norm(Access::kAccumulate);
  b.norm_first_ns = norm(Access::kWrite);
  TensorView state = kAbsent;
  if (rules_.states > 0) {
    state = View(d.moment, {rules_.states, rules_.sharded ? elements / rules_.dp : elements},
                 Region::kOptimizer);
  }
  b.step_ns = OpTime(MakeOneOp(OpKind::kOptimizerStep, {{parameter, Access::kReadWrite},
                                                        {gradient, Access::kRead},
                                                        {state, Access::kReadWrite},
                                                        {cell, Access::kRead},
                                                        {cell, Access::kRead},
                                                        {number, Access::kRead}}),
                     prices_);
  return buckets_.emplace(elements, b).first->second;
}

int64_t EndOfStep(const std::vector<StageItem>& items, const BucketSums& sums, StepPrices& prices,
                  bool single) {
  const size_t count = sums.buckets.size();
  std::vector<const StepPrices::Bucket*> bucket(count);
  for (size_t b = 0; b < count; ++b) bucket[b] = &prices.Of(sums.buckets[b]);

  // The last micro-batch's backward pass: when each bucket is complete, from its begin.
  std::vector<int64_t> ready(count, 0);
  std::vector<size_t> order;
  int64_t backward = 0;
  int64_t kv = 0;
  std::vector<int64_t> left(count, 0);
  for (const int32_t b : sums.bucket_of_item) {
    if (b >= 0) ++left[static_cast<size_t>(b)];
  }
  for (size_t i = items.size(); i-- > 0;) {
    const ItemCost& cost = *items[i].cost;
    backward += single ? cost.backward_first_ns : cost.backward_ns;
    kv += cost.kv_sum_ns;
    if (sums.bucket_of_item[i] < 0) continue;
    const auto b = static_cast<size_t>(sums.bucket_of_item[i]);
    if (--left[b] > 0) continue;
    ready[b] = backward;
    order.push_back(b);
  }

  // Sums over the tensor group's ranks, then over data-parallel ranks, on their two streams.
  const int64_t kv_done = kv > 0 ? backward + kv : 0;
  int64_t data = 0;
  std::vector<int64_t> reduced(count, 0);
  const bool alone = prices.rules().dp == 1;  // no data-parallel ops
  const auto reduce = [&](size_t b, int64_t from) {
    reduced[b] = alone ? from : data = std::max(data, from) + bucket[b]->reduce_ns;
  };
  for (const size_t b : order) {
    if (static_cast<int32_t>(b) != sums.tied_bucket) reduce(b, std::max(ready[b], kv_done));
  }
  if (sums.late_bucket >= 0) {
    const auto b = static_cast<size_t>(sums.late_bucket);
    reduce(b, std::max(backward, kv_done) + bucket[b]->tensor_sum_ns);
  }
  if (sums.tied_bucket >= 0) {
    const auto b = static_cast<size_t>(sums.tied_bucket);
    data = std::max(data, ready[b]) + prices.tied_sum_ns();
    reduce(b, std::max(data, kv_done));
  }

  // Norm and optimizer on the compute stream; then parameters come back, in forward order.
  int64_t now = backward;
  if (alone) {  // the norm begins when all sums are there
    for (const int64_t done : reduced) now = std::max(now, done);
  }
  for (size_t b = 0; b < count; ++b) {
    now = std::max(now, reduced[b]) + (b == 0 ? bucket[b]->norm_first_ns : bucket[b]->norm_ns);
  }
  now += prices.statistics_ns();
  std::vector<int64_t> stepped(count, 0);
  for (size_t b = 0; b < count; ++b) stepped[b] = now += bucket[b]->step_ns;
  if (!prices.rules().sharded) return now - backward;
  std::vector<int64_t> gathered(count, -1);
  const auto gather = [&](int32_t which) {
    if (which < 0 || gathered[static_cast<size_t>(which)] >= 0) return;
    const auto b = static_cast<size_t>(which);
    data = std::max(data, stepped[b]) + bucket[b]->gather_ns;
    gathered[b] = data;
  };
  gather(sums.late_bucket);
  for (const int32_t b : sums.bucket_of_item) gather(b);
  // What the next forward pass waits for its parameters.
  const int64_t end = now;
  int64_t next = end;
  int64_t forward = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    next += items[i].before_ns;
    if (i == 0 && sums.late_bucket >= 0) {
      next = std::max(next, gathered[static_cast<size_t>(sums.late_bucket)]);
    }
    if (sums.bucket_of_item[i] >= 0) {
      next = std::max(next, gathered[static_cast<size_t>(sums.bucket_of_item[i])]);
    }
    next += items[i].cost->forward_ns;
    forward += items[i].before_ns + items[i].cost->forward_ns;
  }
  return next - forward - backward;
}

}  // namespace meshwright::planner::search
