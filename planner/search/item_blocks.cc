#include "planner/search/item_blocks.h"

#include <algorithm>

#include "planner/lower/stage.h"

namespace meshwright::planner::search {

ItemBlocks LowerItem(const lower::SplitFacts& split, const ItemKey& key) {
  lower::Stage stage;  // of this one item
  stage.split = split;
  stage.recompute = key.recompute;
  stage.head_chunks = lower::HeadRowChunks(split);
  stage.parameter_sets.push_back(lower::ParametersOf(key.kind, key.kind_index, split));
  lower::StageItem item;
  item.kind = key.kind;
  item.kind_index = key.kind_index;
  item.first_of_chunk = key.first_of_chunk || key.kind == lower::ItemKind::kEmbedding;
  stage.items.push_back(item);

  ItemBlocks result;
  const lower::Templates templates(stage, result.blocks);
  result.forward = templates.Forward(item);
  result.backward = templates.Backward(item, false);
  result.backward_first = templates.Backward(item, true);
  result.parameters = stage.parameter_sets.front();
  result.sizes.main_elements = result.parameters.main_elements;
  result.sizes.late_elements = result.parameters.late_elements;
  result.sizes.saved_bytes = templates.SavedBytes(item);
  result.sizes.scratch_bytes = templates.scratch_bytes();
  return result;
}

ItemSizes ParameterSizes(const lower::SplitFacts& split, const ItemKey& key) {
  const lower::ItemParameters parameters = lower::ParametersOf(key.kind, key.kind_index, split);
  ItemSizes sizes;
  sizes.main_elements = parameters.main_elements;
  sizes.late_elements = parameters.late_elements;
  return sizes;
}

}  // namespace meshwright::planner::search
