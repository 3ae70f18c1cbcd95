#include "planner/search/stage_cost.h"

#include <algorithm>

#include "cost_models/simulate.h"
#include "cost_models/task_graph.h"
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

NodePrice CommunicationPrice(CommunicatorKind kind, const Block& block, const Op& op,
                             const Prices& prices, const Paths& paths) {
  NodePrice slowest;
  for (const cost::PathFacts& path : paths) {
    const NodePrice price = prices.PriceCommunication(FirstModule(), kind, block, op, path);
    if (price.time > slowest.time) slowest = price;
  }
  return slowest;
}

int64_t BlockTime(const Block& block, const Prices& prices, const Paths& tensor) {
  cost::TaskGraph graph;
  const std::array<cost::QueueId, 2> streams = {graph.AddQueue(), graph.AddQueue()};
  const cost::ResourceId device = graph.AddResource(1000);
  std::vector<cost::NodeId> recorded;  // an event that the block has not recorded yet is over
  for (const Op& op : block.ops) {
    const NodePrice price = IsCollective(op.kind) ? CommunicationPrice(CommunicatorKind::kTensor,
                                                                       block, op, prices, tensor)
                                                  : prices.PriceOp(FirstModule(), block, op);
    const cost::NodeId node = graph.AddNode(price.time);
    graph.Enqueue(streams[static_cast<size_t>(op.stream)], node);
    graph.AddDemand(node, device, price.device_milli);
    for (const EventId e : op.waits) {
      if (static_cast<size_t>(e) >= recorded.size()) continue;
      const cost::NodeId before = recorded[static_cast<size_t>(e)];
      if (before >= 0) graph.AddDependency(before, node);
    }
    if (op.signal < 0) continue;
    recorded.resize(std::max(recorded.size(), static_cast<size_t>(op.signal) + 1), -1);
    recorded[static_cast<size_t>(op.signal)] = node;
  }
  const auto timeline = cost::Simulate(graph);
  MW_CHECK(timeline.ok());
  return timeline->makespan.value();
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
  join_ns_ = OpTime(
      MakeOneOp(OpKind::kAdd,
                {{residual, Access::kRead}, {residual, Access::kRead}, {residual, Access::kWrite}}),
      prices);
  const TensorView tokens = View(DType::kI32, {split.sequence, split.micro_batch});
  tokens_ns_ = OpTime(MakeOneOp(OpKind::kLoadTokens, {{tokens, Access::kWrite}}), prices);
}

int64_t MessageTime(const lower::SplitFacts& split, const Prices& prices, const Placed& placed) {
  const TensorView residual = Residual(split);
  const OneOp send = MakeOneOp(OpKind::kSend, {{residual, Access::kRead}});
  return CommunicationPrice(CommunicatorKind::kEdge, send.block, send.op(), prices, placed.edge)
      .time.value();
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
    const OneOp sum = MakeOneOp(
        OpKind::kAllReduce, {{View(split_.dtypes.gradient, {rows, width}), Access::kReadWrite}});
    cost.kv_sum_ns += CommunicationPrice(CommunicatorKind::kKeyValueCopies, sum.block, sum.op(),
                                         prices, placed.kv)
                          .time.value();
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
      OpTime(MakeOneOp(
                 OpKind::kStepStatistics,
                 {{cell, Access::kRead}, {cell, Access::kRead}, {statistics, Access::kReadWrite}}),
             prices) +
      CommunicationPrice(CommunicatorKind::kWorld, sum.block, sum.op(), prices, placed.world)
          .time.value() +
      OpTime(MakeOneOp(OpKind::kClipFactor, {{statistics, Access::kRead}, {cell, Access::kWrite}}),
             prices);
  if (split.tied_across) {
    const TensorView weight =
        View(split.dtypes.gradient, {split.padded_vocab / split.tp, split.module->hidden});
    const OneOp tied = MakeOneOp(OpKind::kAllReduce, {{weight, Access::kReadWrite}});
    tied_sum_ns_ =
        CommunicationPrice(CommunicatorKind::kTied, tied.block, tied.op(), prices, placed.tied)
            .time.value();
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
    const NodePrice price = CommunicationPrice(CommunicatorKind::kData, reduce.block, reduce.op(),
                                               prices_, placed_.data);
    b.reduce_ns = price.time.value();
    // Both advance at 1 / (1 + share) while they run beside each other.
    b.slowed_ns = b.reduce_ns * price.device_milli / 1000;
  }
  if (rules_.sharded) {
    const OneOp gather =
        MakeOneOp(OpKind::kAllGather, {{kAbsent, Access::kRead}, {parameter, Access::kReadWrite}});
    b.gather_ns = CommunicationPrice(CommunicatorKind::kData, gather.block, gather.op(), prices_,
                                     placed_.data)
                      .time.value();
  }
  const OneOp sum = MakeOneOp(OpKind::kAllReduce, {{gradient, Access::kReadWrite}});
  b.tensor_sum_ns =
      CommunicationPrice(CommunicatorKind::kTensor, sum.block, sum.op(), prices_, placed_.tensor)
          .time.value();
  const auto norm = [&](Access sum_access) {
    return OpTime(MakeOneOp(OpKind::kSquaredNorm, {{gradient, Access::kRead}, {cell, sum_access}}),
                  prices_);
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

}  // namespace meshwright::planner::search
