// Blocks of one layer item on its own, as the lowering passes make them: where the search gets
// times and sizes from. Nothing here knows a stage.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <vector>

#include "planner/ir/program.h"
#include "planner/lower/item.h"

namespace meshwright::planner::search {

/// Which template of a split. Embedding and head ignore the last three fields.
struct ItemKey {
  lower::ItemKind kind = lower::ItemKind::kLayer;
  int kind_index = 0;           ///< layer kind
  bool first_of_chunk = false;  ///< the residual stream enters without a pending addend
  Recompute recompute = Recompute::kNone;
  friend auto operator<=>(const ItemKey&, const ItemKey&) = default;
};

/// What one item takes on one rank.
struct ItemSizes {
  int64_t main_elements = 0;  ///< parameters whose gradients backward completes
  int64_t late_elements = 0;  ///< parameters that are reduced over the tensor group at step end
  int64_t saved_bytes = 0;    ///< in every slot
  int64_t scratch_bytes = 0;  ///< extent of the rank's scratch area that its blocks use
  friend bool operator==(const ItemSizes&, const ItemSizes&) = default;
};

struct ItemBlocks {
  std::vector<Block> blocks;
  int32_t forward = -1;         ///< index into `blocks`; -1: the item has none (head)
  int32_t backward = -1;        ///< of every micro-batch but the first
  int32_t backward_first = -1;  ///< of the first micro-batch of a step
  lower::ItemParameters parameters;
  ItemSizes sizes;
};

/// Runs the passes on one item. The plan that `split` comes from must pass CheckPlan and
/// CheckSupported.
ItemBlocks LowerItem(const lower::SplitFacts& split, const ItemKey& key);

/// Parameter elements of an item alone, without making blocks.
ItemSizes ParameterSizes(const lower::SplitFacts& split, const ItemKey& key);

}  // namespace meshwright::planner::search
