// What pipeline stages cost: template times added up, and the end of a step. Every time is the
// price of an op that the lowering makes; there are no formulas of the model here.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "planner/lower/item.h"
#include "planner/search/item_blocks.h"
#include "planner/search/memory.h"
#include "planner/search/placed.h"

namespace meshwright::planner::search {

/// Template cost of one item. Times are of the block alone on its rank: its ops on the compute and
/// the tensor stream, waiting for each other as the block says, products slower beside traffic.
/// Blocks of a rank follow one another.
struct ItemCost {
  ItemSizes sizes;
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;        ///< of every micro-batch but the first
  int64_t backward_first_ns = 0;  ///< of the first micro-batch
  int64_t kv_sum_ns = 0;          ///< sum of gradients over copies of key-value heads, once a step
};

/// Time of one block when nothing else runs on its rank, by the simulator of whole steps.
int64_t BlockTime(const Block& block, const Prices& prices, const Paths& tensor);

/// Of one collective or message over the slowest of the distinct paths.
NodePrice CommunicationPrice(CommunicatorKind kind, const Block& block, const Op& op,
                             const Prices& prices, const Paths& paths);

/// A block of one op on whole views, as the step's own ops are.
struct OneOp {
  Block block;
  const Op& op() const { return block.ops.front(); }
};
OneOp MakeOneOp(OpKind kind, const std::vector<std::pair<TensorView, Access>>& operands);

/// Costs of the items of one split (tp, sequence parallelism, micro-batch, tying) on one placement.
class ItemCosts {
 public:
  ItemCosts(const lower::SplitFacts& split, const Prices& prices, const Placed& placed,
            const std::vector<Recompute>& recompute);

  const ItemCost& embedding() const { return embedding_; }
  const ItemCost& head() const { return head_; }
  const ItemCost& layer(int kind, bool first_of_chunk, Recompute recompute) const {
    return layers_[static_cast<size_t>(kind)][first_of_chunk ? 1 : 0]
                  [static_cast<size_t>(recompute)];
  }
  int64_t join_ns() const { return join_ns_; }  ///< sum that leaves a chunk, once a forward pass
  int64_t tokens_ns() const {
    return tokens_ns_;
  }  ///< token ids of the first stage, once a forward

 private:
  ItemCost Price(const ItemKey& key, const Prices& prices, const Placed& placed) const;

  lower::SplitFacts split_;
  ItemCost embedding_, head_;
  std::vector<std::array<std::array<ItemCost, 3>, 2>> layers_;
  int64_t join_ns_ = 0, tokens_ns_ = 0;
};

/// The residual stream of one micro-batch to the next stage, over the slowest edge; 0 with one
/// stage.
int64_t MessageTime(const lower::SplitFacts& split, const Prices& prices, const Placed& placed);

/// Prices of the ops at the end of a step, by bucket size. Not thread-safe.
class StepPrices {
 public:
  StepPrices(const lower::SplitFacts& split, const BucketRules& rules, const Prices& prices,
             const Placed& placed);

  struct Bucket {
    int64_t reduce_ns = 0;  ///< over data-parallel ranks; 0 without
    int64_t slowed_ns = 0;  ///< by which a pass takes longer that the whole of it goes beside
    int64_t norm_ns = 0;
    int64_t norm_first_ns = 0;  ///< of the first bucket, which writes the sum
    int64_t step_ns = 0;
    int64_t gather_ns = 0;      ///< of parameters under ZeRO-1
    int64_t tensor_sum_ns = 0;  ///< over the tensor group, for the late bucket
  };
  const Bucket& Of(int64_t elements);
  const BucketRules& rules() const { return rules_; }
  int64_t tied_sum_ns() const { return tied_sum_ns_; }
  int64_t statistics_ns() const { return statistics_ns_; }  ///< loss, global norm, clip factor

 private:
  const lower::SplitFacts split_;
  const BucketRules rules_;
  const Prices& prices_;
  const Placed& placed_;
  std::map<int64_t, Bucket> buckets_;
  int64_t tied_sum_ns_ = 0, statistics_ns_ = 0;
};

/// An item of a stage, in forward order.
struct StageItem {
  const ItemCost* cost = nullptr;
  int64_t before_ns = 0;  ///< what forward does right before it: tokens, the sum that ends a chunk
  bool begins_chunk = false;
};

struct StepEnd {
  int64_t after_ns = 0;   ///< that a step takes after the last backward pass of a stage
  int64_t slowed_ns = 0;  ///< by which reductions beside them slow that pass, in all its chunks
};

/// Reductions that the last micro-batch's backward does not hide, key-value copies, late and tied
/// sums, norm, optimizer, and what the next forward pass waits for gathered parameters. Buckets
/// leave in the order in which backward completes them; the data stream runs them one after another
/// beside compute. `turns`: micro-batches that pass a chunk before the first of them passes the next
/// one (the interleaved schedule's group; 1 with one chunk), so that traffic has as many passes of
/// time. `single`: the step has one micro-batch, the first and last at once.
StepEnd EndOfStep(const std::vector<StageItem>& items, const BucketSums& sums, StepPrices& prices,
                  int64_t turns, bool single);

}  // namespace meshwright::planner::search
