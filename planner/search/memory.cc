#include "planner/search/memory.h"

#include <algorithm>
#include <map>

#include "planner/lower/schedule.h"
#include "planner/lower/stage.h"

namespace meshwright::planner::search {
namespace {

using lower::kByteAlignment;
using lower::kElementAlignment;
using lower::RoundUp;

/// Items of a stage in forward order with their templates.
struct KeyedItem {
  ItemKey key;
  int64_t chunk = 0;
};

std::vector<KeyedItem> ItemsOf(const ModulePlan& m, const ModuleSpec& spec, int64_t stage) {
  std::vector<KeyedItem> items;
  const Recompute recompute = m.recompute[static_cast<size_t>(stage)];
  for (int64_t c = 0; c < m.virtual_stages; ++c) {
    const LayerRange& range = m.chunks[static_cast<size_t>(c * m.pp + stage)];
    if (stage == 0 && c == 0) items.push_back({{lower::ItemKind::kEmbedding}, c});
    for (int64_t l = 0; l < range.layer_count; ++l) {
      const int kind = spec.layers[static_cast<size_t>(range.first_layer + l)];
      items.push_back({{lower::ItemKind::kLayer, kind, l == 0, recompute}, c});
    }
    if (stage == m.pp - 1 && c == m.virtual_stages - 1) {
      items.push_back({{lower::ItemKind::kHead}, c});
    }
  }
  return items;
}

}  // namespace

int64_t PassesInFlight(int64_t pp, int64_t virtual_stages, int64_t micro_batches, int64_t stage) {
  if (virtual_stages == 1) return std::min(micro_batches, pp - stage);
  const int64_t total = virtual_stages * micro_batches;
  const int64_t group = lower::InterleavingGroup(pp, micro_batches);
  return std::min(2 * (pp - stage - 1) + (virtual_stages - 1) * group + 1, total);
}

BucketRules BucketRulesOf(const Plan& plan, const ModulePlan& module,
                          const lower::SplitFacts& split) {
  BucketRules rules;
  rules.dp = module.dp;
  rules.sharded = module.dp > 1 && module.sharding == Sharding::kZero1;
  rules.target_elements = std::max<int64_t>(module.bucket_elements, 1);
  rules.tied_here = split.tied_here;
  rules.tied_across = split.tied_across;
  rules.states = (plan.optimizer == OptimizerKind::kAdamW ? 2 : 0) + (split.dtypes.master ? 1 : 0);
  rules.state_bytes = SizeOf(split.dtypes.moment);
  return rules;
}

BucketSums SumBuckets(const BucketRules& rules, const std::vector<BucketItem>& items) {
  BucketSums sums;
  sums.bucket_of_item.assign(items.size(), -1);
  const auto shares_embedding = [&](const BucketItem& item) {
    return rules.tied_here && item.kind == lower::ItemKind::kHead;
  };
  int64_t open = 0;
  const auto close = [&] {
    if (open == 0) return;
    const int64_t padded = RoundUp(open, kElementAlignment * rules.dp);
    const int64_t owned = rules.sharded ? padded / rules.dp : padded;
    sums.buckets.push_back(padded);
    sums.elements += padded;
    sums.optimizer_bytes =
        RoundUp(sums.optimizer_bytes + rules.states * owned * rules.state_bytes, kByteAlignment);
    open = 0;
  };
  for (const BucketItem& item : items) {
    if (!shares_embedding(item)) open += item.late_elements;
  }
  if (open > 0) sums.late_bucket = 0;
  close();
  for (size_t i = items.size(); i-- > 0;) {
    const BucketItem& item = items[i];
    if (shares_embedding(item) || item.main_elements == 0) continue;
    const bool tied = rules.tied_across && item.kind != lower::ItemKind::kLayer;
    if (tied) close();
    sums.bucket_of_item[i] = static_cast<int32_t>(sums.buckets.size());
    if (tied) sums.tied_bucket = sums.bucket_of_item[i];
    open += item.main_elements;
    if (tied || open >= rules.target_elements) close();
  }
  close();
  if (!items.empty() && shares_embedding(items.back())) {
    sums.bucket_of_item.back() = sums.bucket_of_item.front();
  }
  return sums;
}

int64_t CommunicationBytes(int64_t pp, int64_t virtual_stages, int64_t micro_batches, int64_t stage,
                           int64_t residual_bytes) {
  if (pp == 1) return 0;
  int64_t buffers = 0;
  if (virtual_stages == 1) {
    // Two a direction and class, but no more than there are messages in a step.
    buffers =
        2 * std::min<int64_t>(2, micro_batches) * ((stage > 0 ? 1 : 0) + (stage < pp - 1 ? 1 : 0));
  } else {
    buffers = 8;
    // The wrap-around edges hold what arrives while earlier chunks still run.
    const int64_t more = lower::InterleavingGroup(pp, micro_batches) - pp;
    if (stage == 0) buffers += 2 * more;
    if (stage == pp - 1) buffers += 2 * more;
  }
  return buffers * RoundUp(residual_bytes, kByteAlignment);
}

int64_t IoBytes(bool has_head, int64_t sequence, int64_t micro_batch, int64_t micro_batches) {
  const int64_t labels =
      has_head ? micro_batches * sequence * micro_batch * SizeOf(DType::kI32) : 0;
  return RoundUp(RoundUp(kScalarBytes, kByteAlignment) + labels, kByteAlignment);
}

MemoryBreakdown PlannedMemory(const Plan& plan, size_t module, int64_t stage) {
  const ModulePlan& m = plan.modules[module];
  const lower::SplitFacts split = lower::SplitOf(plan, module, stage);
  const std::vector<KeyedItem> items = ItemsOf(m, *split.module, stage);
  std::map<ItemKey, ItemSizes> sizes;
  std::vector<BucketItem> bucket_items;
  std::vector<int64_t> chunk_bytes(static_cast<size_t>(m.virtual_stages), 0);
  MemoryBreakdown memory;
  for (const KeyedItem& item : items) {
    auto known = sizes.find(item.key);
    if (known == sizes.end()) {
      known = sizes.emplace(item.key, LowerItem(split, item.key).sizes).first;
    }
    const ItemSizes& s = known->second;
    bucket_items.push_back({item.key.kind, s.main_elements, s.late_elements});
    chunk_bytes[static_cast<size_t>(item.chunk)] += s.saved_bytes;
    memory.scratch = std::max(memory.scratch, s.scratch_bytes);
  }
  const BucketSums sums = SumBuckets(BucketRulesOf(plan, m, split), bucket_items);
  const bool has_head = stage == m.pp - 1;
  memory.slots = PassesInFlight(m.pp, m.virtual_stages, plan.micro_batches, stage);
  memory.parameters = RoundUp(sums.elements * SizeOf(split.dtypes.compute), kByteAlignment);
  memory.gradients = RoundUp(sums.elements * SizeOf(split.dtypes.gradient), kByteAlignment);
  memory.optimizer = RoundUp(sums.optimizer_bytes, kByteAlignment);
  memory.saved = RoundUp(memory.slots * *std::max_element(chunk_bytes.begin(), chunk_bytes.end()),
                         kByteAlignment);
  memory.scratch =
      RoundUp(memory.scratch, kByteAlignment) + RoundUp(plan.workspace_bytes, kByteAlignment);
  memory.communication =
      CommunicationBytes(m.pp, m.virtual_stages, plan.micro_batches, stage, split.residual_bytes());
  memory.io = IoBytes(has_head, plan.sequence, plan.micro_batch, plan.micro_batches);
  return memory;
}

}  // namespace meshwright::planner::search
