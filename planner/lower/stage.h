// What one pipeline stage is made of: items in order, where their parameters lie, and the block
// templates of every variant the schedule needs.
#pragma once

#include <map>
#include <tuple>

#include "planner/lower/item.h"
#include "planner/lower/passes.h"

namespace meshwright::planner::lower {

struct StageItem {
  ItemKind kind = ItemKind::kLayer;
  int kind_index = 0;       ///< layer kind
  int64_t layer = -1;       ///< global layer index
  int32_t chunk = 0;
  int parameters = 0;       ///< index into Stage::parameter_sets
  int64_t main_base = 0;    ///< elements; start of the item's main parameters
  int64_t late_base = 0;    ///< elements; start of its late parameters
  int32_t bucket = -1;      ///< bucket of the main parameters; -1: it has none
  int64_t saved_offset = 0;  ///< bytes from the start of the slot
  bool first_of_chunk = false;  ///< the residual stream enters without a pending addend
};

/// Items, parameter placement and sizes of one stage.
struct Stage {
  SplitFacts split;
  int64_t stage = 0;
  int64_t dp = 1;
  Sharding sharding = Sharding::kNone;
  Recompute recompute = Recompute::kNone;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  std::vector<StageItem> items;  ///< forward order, chunk by chunk
  std::vector<ItemParameters> parameter_sets;
  std::vector<Bucket> buckets;
  int32_t late_bucket = -1;  ///< reduced over the tensor group first; -1: none
  int32_t tied_bucket = -1;  ///< reduced over first and last stage first; -1: none
  int64_t parameter_elements = 0;
  int64_t optimizer_bytes = 0;
  int64_t head_chunks = 1;

  const ItemParameters& ParametersOf(const StageItem& item) const {
    return parameter_sets[static_cast<size_t>(item.parameters)];
  }
  /// Values that the optimizer keeps for each parameter: moments, master weight.
  int64_t OptimizerStates() const {
    return (optimizer == OptimizerKind::kAdamW ? 2 : 0) + (split.dtypes.master ? 1 : 0);
  }
  /// Elements of a bucket that one rank's optimizer owns.
  int64_t OwnedElements(const Bucket& b) const {
    return sharding == Sharding::kZero1 ? b.elements / dp : b.elements;
  }
};

/// Facts of the split of module `module` of the plan, as tensor rank `position` of its stage
/// `stage` sees them.
SplitFacts SplitOf(const Plan& plan, size_t module, int64_t stage, int64_t position = 0);

/// Items and parameter placement of stage `stage` of module `module`.
Stage BuildStage(const Plan& plan, size_t module, int64_t stage, int64_t position = 0);

/// The parameters of the stage as its program lists them; `module` is in front of their names.
std::vector<ParameterEntry> EntriesOf(const Stage& stage, const std::string& module);

/// Blocks of a stage by variant. Forward blocks do not depend on `first`.
class Templates {
 public:
  Templates(const Stage& stage, std::vector<Block>& blocks);

  int32_t Forward(const StageItem& item) const;
  int32_t Backward(const StageItem& item, bool first) const;
  /// Bytes an item keeps in the slot.
  int64_t SavedBytes(const StageItem& item) const;
  /// Where the residual stream leaves a layer: offset in the item's saved area; -1: in Out0.
  int64_t SavedOutput(const StageItem& item) const;
  int64_t scratch_bytes() const { return scratch_bytes_; }
  /// First event register that blocks do not use.
  EventId events() const { return events_; }
  bool tensor_stream() const { return stage_.split.tp > 1; }

 private:
  struct Entry {
    int32_t forward = -1;
    int32_t backward[2] = {-1, -1};  ///< later micro-batches, first micro-batch
    int64_t saved = 0;
    int64_t saved_output = -1;
  };
  using Key = std::tuple<ItemKind, int, bool>;  ///< kind, layer kind, first of chunk
  static Key KeyOf(const StageItem& item) {
    return {item.kind, item.kind_index, item.first_of_chunk};
  }
  void Add(const StageItem& item, std::vector<Block>& blocks);
  int32_t AddBlock(Graph& graph, const std::string& name, std::vector<Block>& blocks);

  const Stage& stage_;
  std::map<Key, Entry> entries_;
  int64_t scratch_bytes_ = 0;
  EventId events_ = kFirstEvent;
};

}  // namespace meshwright::planner::lower
