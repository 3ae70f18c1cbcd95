#include "planner/lower/stage.h"

#include <fmt/format.h>

#include <algorithm>

namespace meshwright::planner::lower {
namespace {

const ModuleSpec& SpecOf(const Plan& plan, const ModulePlan& m) {
  for (const ModuleSpec& spec : plan.model.modules) {
    if (spec.name == m.module) return spec;
  }
  MW_CHECK(false && "plan names a module that the model lacks");
  return plan.model.modules.front();
}

/// Opens, fills and closes buckets; sizes are multiples of 64 x dp so that shards are aligned.
class BucketLayout {
 public:
  explicit BucketLayout(Stage& stage) : stage_(stage) {}

  int64_t Append(int64_t elements) {
    const int64_t base = at_;
    at_ += elements;
    return base;
  }
  int64_t OpenElements() const { return at_ - begin_; }
  int32_t Next() const { return static_cast<int32_t>(stage_.buckets.size()); }
  void Close() {
    if (at_ == begin_) return;
    const int64_t elements = RoundUp(at_ - begin_, kElementAlignment * stage_.dp);
    stage_.buckets.push_back({begin_, elements, 0});
    begin_ += elements;
    at_ = begin_;
  }
  int64_t total() const { return begin_; }

 private:
  Stage& stage_;
  int64_t begin_ = 0;
  int64_t at_ = 0;
};

void PlaceParameters(Stage& stage, int64_t bucket_elements) {
  BucketLayout layout(stage);
  // Late bucket: what is partial over the tensor group, of all items.
  for (StageItem& item : stage.items) {
    if (item.kind == ItemKind::kHead && stage.split.tied_here) continue;
    item.late_base = layout.Append(stage.ParametersOf(item).late_elements);
  }
  if (layout.OpenElements() > 0) stage.late_bucket = layout.Next();
  layout.Close();
  // Main buckets in the order in which backward completes them.
  for (size_t i = stage.items.size(); i-- > 0;) {
    StageItem& item = stage.items[i];
    if (item.kind == ItemKind::kHead && stage.split.tied_here) continue;
    const int64_t elements = stage.ParametersOf(item).main_elements;
    if (elements == 0) continue;
    const bool tied = stage.split.tied_across && item.kind != ItemKind::kLayer;
    if (tied) layout.Close();  // a tied weight is reduced once more: it has a bucket of its own
    item.bucket = layout.Next();
    item.main_base = layout.Append(elements);
    if (tied) stage.tied_bucket = item.bucket;
    if (tied || layout.OpenElements() >= bucket_elements) layout.Close();
  }
  layout.Close();
  stage.parameter_elements = layout.total();
  if (stage.split.tied_here) {
    StageItem& head = stage.items.back();
    const StageItem& embedding = stage.items.front();
    head.main_base = embedding.main_base;
    head.late_base = embedding.late_base;
    head.bucket = embedding.bucket;
  }
}

void PlaceOptimizer(Stage& stage) {
  const int64_t element_bytes = stage.OptimizerStates() * SizeOf(stage.split.dtypes.moment);
  int64_t at = 0;
  for (Bucket& b : stage.buckets) {
    b.optimizer_offset = at;
    at = RoundUp(at + stage.OwnedElements(b) * element_bytes, kByteAlignment);
  }
  stage.optimizer_bytes = at;
}

}  // namespace

SplitFacts SplitOf(const Plan& plan, size_t module, int64_t stage, int64_t position) {
  const ModulePlan& m = plan.modules[module];
  SplitFacts split;
  split.module = &SpecOf(plan, m);
  split.tp = m.tp;
  split.sequence_parallel = m.sequence_parallel && m.tp > 1;
  split.tensor_chunks = m.tensor_chunks;
  split.tensor_position = position;
  split.kv_copies = m.kv_copies;
  split.padded_vocab = m.padded_vocab;
  split.logits_chunk_bytes = m.logits_chunk_bytes;
  split.sequence = plan.sequence;
  split.micro_batch = plan.micro_batch;
  split.dtypes = PolicyOf(plan.dtype);
  split.device = plan.device;
  split.deterministic = plan.deterministic;
  split.tied_here = split.module->tied_embeddings && m.pp == 1;
  split.tied_across =
      split.module->tied_embeddings && m.pp > 1 && (stage == 0 || stage == m.pp - 1);
  split.residual_layers = split.module->layer_count();
  return split;
}

Stage BuildStage(const Plan& plan, size_t module, int64_t stage_index, int64_t position) {
  const ModulePlan& m = plan.modules[module];
  Stage stage;
  stage.split = SplitOf(plan, module, stage_index, position);
  stage.stage = stage_index;
  stage.dp = m.dp;
  stage.sharding = m.dp > 1 ? m.sharding : Sharding::kNone;
  stage.recompute = m.recompute[static_cast<size_t>(stage_index)];
  stage.optimizer = plan.optimizer;

  std::map<std::pair<ItemKind, int>, int> sets;
  const auto add = [&](ItemKind kind, int kind_index, int64_t layer, int32_t chunk, bool first) {
    const auto [it, added] =
        sets.emplace(std::pair{kind, kind_index}, static_cast<int>(stage.parameter_sets.size()));
    if (added) stage.parameter_sets.push_back(lower::ParametersOf(kind, kind_index, stage.split));
    StageItem item;
    item.kind = kind;
    item.kind_index = kind_index;
    item.layer = layer;
    item.chunk = chunk;
    item.parameters = it->second;
    item.first_of_chunk = first;
    stage.items.push_back(item);
  };
  for (int64_t c = 0; c < m.virtual_stages; ++c) {
    const LayerRange& range = m.chunks[static_cast<size_t>(c * m.pp + stage_index)];
    const auto chunk = static_cast<int32_t>(c);
    if (stage_index == 0 && c == 0) add(ItemKind::kEmbedding, 0, -1, chunk, true);
    for (int64_t l = 0; l < range.layer_count; ++l) {
      const int64_t layer = range.first_layer + l;
      add(ItemKind::kLayer, stage.split.module->layers[static_cast<size_t>(layer)], layer, chunk,
          l == 0);
    }
    if (stage_index == m.pp - 1 && c == m.virtual_stages - 1) {
      add(ItemKind::kHead, 0, -1, chunk, false);
    }
  }
  PlaceParameters(stage, std::max<int64_t>(m.bucket_elements, 1));
  PlaceOptimizer(stage);
  stage.head_chunks = HeadRowChunks(stage.split);
  return stage;
}

std::vector<ParameterEntry> EntriesOf(const Stage& stage, const std::string& module) {
  std::vector<ParameterEntry> entries;
  const std::string prefix = module + ".";
  for (const StageItem& item : stage.items) {
    if (item.kind == ItemKind::kHead && stage.split.tied_here) continue;
    for (const ItemParameter& p : stage.ParametersOf(item).list) {
      ParameterEntry e;
      e.name = item.layer >= 0 ? fmt::format("{}layers.{}.{}", prefix, item.layer, p.name)
                               : prefix + p.name;
      e.layer = item.layer;
      e.global_shape = p.global_shape;
      e.local_shape = p.local_shape;
      e.axis = p.axis;
      e.parts = p.parts;
      e.offset = (p.late_area ? item.late_base : item.main_base) + p.offset;
      e.bucket = p.late_area ? stage.late_bucket : item.bucket;
      e.late = p.late;
      e.tied_copy = p.late == LateReduction::kTied && item.kind == ItemKind::kHead;
      e.decay = p.decay;
      e.init = p.init;
      e.init_std = p.init_std;
      e.valid_rows = p.valid_rows;
      entries.push_back(std::move(e));
    }
  }
  return entries;
}

Templates::Templates(const Stage& stage, std::vector<Block>& blocks) : stage_(stage) {
  for (const StageItem& item : stage.items) {
    if (!entries_.contains(KeyOf(item))) Add(item, blocks);
  }
}

int32_t Templates::AddBlock(Graph& graph, const std::string& name, std::vector<Block>& blocks) {
  BlockOptions options;
  // The residual stream and its pending addend, at the start of the scratch area.
  options.scratch_begin = 2 * RoundUp(stage_.split.residual_bytes(), kByteAlignment);
  options.tensor_stream = tensor_stream();
  graph.name = name;
  OverlapTensorTraffic(graph, stage_.split);
  Block block = PlaceAndAllocate(graph, options);
  scratch_bytes_ = std::max(scratch_bytes_, block.scratch_bytes);
  for (const Op& op : block.ops) {
    events_ = std::max(events_, op.signal + 1);
  }
  blocks.push_back(std::move(block));
  return static_cast<int32_t>(blocks.size()) - 1;
}

void Templates::Add(const StageItem& item, std::vector<Block>& blocks) {
  const SplitFacts& split = stage_.split;
  const ItemParameters& parameters = stage_.ParametersOf(item);
  Entry entry;
  if (item.kind == ItemKind::kHead) {
    entry.saved = RoundUp(split.residual_bytes(), kByteAlignment);
    for (int first = 0; first < 2; ++first) {
      Graph step = BuildHeadStep(split, parameters, first == 1, stage_.head_chunks);
      entry.backward[first] =
          AddBlock(step, fmt::format("head/backward{}", first ? "/first" : ""), blocks);
    }
    entries_.emplace(KeyOf(item), entry);
    return;
  }
  const bool layer = item.kind == ItemKind::kLayer;
  Graph forward = layer ? BuildLayer(split, item.kind_index, parameters, !item.first_of_chunk)
                        : BuildEmbedding(split, parameters);
  Shard(forward, split);
  Fuse(forward);
  const Recompute mode = layer ? stage_.recompute : Recompute::kNone;
  const std::string base =
      layer ? fmt::format("layer.{}{}", item.kind_index, item.first_of_chunk ? ".entry" : "")
            : "embedding";
  for (int first = 0; first < 2; ++first) {
    Graph backward = Differentiate(forward, split, parameters, {first == 1, split.tied_here});
    ApplyRecompute(forward, backward, mode);
    entry.saved = AllocateSaved(forward, &backward);
    entry.backward[first] = AddBlock(
        backward, fmt::format("{}/backward/{}{}", base, ToString(mode), first ? "/first" : ""),
        blocks);
    blocks.back().saved_bytes = entry.saved;
  }
  entry.forward = AddBlock(forward, fmt::format("{}/forward/{}", base, ToString(mode)), blocks);
  blocks.back().saved_bytes = entry.saved;
  const GraphTensor& out = forward.tensor(forward.output);
  if (out.saved) entry.saved_output = out.view.offset;
  entries_.emplace(KeyOf(item), entry);
}

int32_t Templates::Forward(const StageItem& item) const {
  return entries_.at(KeyOf(item)).forward;
}
int32_t Templates::Backward(const StageItem& item, bool first) const {
  return entries_.at(KeyOf(item)).backward[first ? 1 : 0];
}
int64_t Templates::SavedBytes(const StageItem& item) const {
  return entries_.at(KeyOf(item)).saved;
}
int64_t Templates::SavedOutput(const StageItem& item) const {
  return entries_.at(KeyOf(item)).saved_output;
}

}  // namespace meshwright::planner::lower
