#include "planner/search/context.h"

#include <algorithm>

#include "planner/lower/communicators.h"
#include "planner/lower/make_plan.h"
#include "planner/lower/stage.h"
#include "planner/predict/predict.h"

namespace meshwright::planner::search {

Context::Context(const ModelSpec& model, const topologies::Cluster& cluster,
                 const cost::CostModel& costs, const SearchOptions& options, int64_t gpus,
                 int64_t sequence)
    : model_(model),
      cluster_(cluster),
      costs_(costs),
      options_(options),
      gpus_(gpus),
      sequence_(sequence) {
  recompute_ = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  if (options.recompute) recompute_ = {*options.recompute};
  const std::vector<int>& layers = module().layers;
  uniform_ = std::all_of(layers.begin(), layers.end(), [&](int k) { return k == layers.front(); });
  for (int64_t d = 0; d < std::min(gpus, cluster.device_count()); ++d) {
    largest_limit_ = std::max(largest_limit_, DeviceMemory(d));
  }
}

int64_t Context::DeviceMemory(int64_t device) const {
  if (options_.memory_limit) return options_.memory_limit->value();
  const int64_t stated = cluster_.Device(static_cast<int>(device)).memory.value();
  // What the driver gives is a little less than what the data sheet says.
  const cost::DeviceProfile& profile = costs_.profile();
  return profile.gpu ? std::min(stated, profile.memory.value.value()) : stated;
}

Plan Context::Skeleton(const Configuration& c) const {
  Plan plan;
  plan.model = model_;
  plan.dtype = options_.dtype;
  plan.optimizer = options_.optimizer;
  plan.device = cluster_.Device(0).kind;
  plan.workspace_bytes = WorkspaceBytes(plan.device);
  plan.deterministic = options_.deterministic && plan.device == topologies::DeviceKind::kGpu;
  plan.sequence = sequence_;
  plan.micro_batch = c.micro_batch;
  plan.micro_batches = c.micro_batches;
  plan.global_batch = options_.global_batch;
  plan.vocab_quantum = options_.vocab_quantum;
  ModulePlan m;
  m.module = module().name;
  m.tp = c.tp;
  m.dp = c.dp;
  m.pp = c.pp;
  m.virtual_stages = c.virtual_stages;
  m.sequence_parallel = c.sequence_parallel();
  m.tensor_chunks = c.tensor_chunks;
  m.sharding = c.sharding;
  m.kv_copies = KeyValueCopies(module(), c.tp);
  m.padded_vocab = lower::RoundUp(module().vocab, options_.vocab_quantum * c.tp);
  m.logits_chunk_bytes = options_.logits_chunk_bytes;
  m.bucket_elements = options_.bucket_elements > 0
                          ? options_.bucket_elements
                          : std::max<int64_t>(40'000'000, 1'000'000 * c.dp);
  plan.modules.push_back(std::move(m));
  return plan;
}

lower::SplitFacts Context::SplitOf(const Plan& skeleton) const {
  lower::SplitFacts split = lower::SplitOf(skeleton, 0, 0);
  split.module = &module();  // the skeleton's own copy does not live as long
  return split;
}

Result<std::shared_ptr<const Placed>> Context::PlacedFor(const Configuration& c) {
  const PlacedKey key{c.tp, c.dp, c.pp, c.order};
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = placed_.find(key); known != placed_.end()) return known->second;
  }
  const Axes axes{c.tp, c.dp, c.pp, KeyValueCopies(module(), c.tp)};
  auto made = [&]() -> Result<std::shared_ptr<const Placed>> {
    MW_ASSIGN_OR_RETURN(Placed placed, Place(cluster_, costs_, axes, c.order, options_.dtype));
    return std::shared_ptr<const Placed>(std::make_shared<Placed>(std::move(placed)));
  }();
  const std::lock_guard lock(mutex_);
  return placed_.emplace(key, std::move(made)).first->second;
}

std::shared_ptr<const ItemCosts> Context::CostsFor(const Configuration& c, const Placed& placed) {
  const std::tuple key{c.tp, c.sequence_parallel(), c.micro_batch, c.pp == 1, c.tensor_chunks};
  const auto find = [&]() -> std::shared_ptr<const ItemCosts> {
    for (const CostsEntry& e : item_costs_) {
      if (e.key == key && e.tensor == placed.tensor && e.kv == placed.kv) return e.costs;
    }
    return nullptr;
  };
  {
    const std::lock_guard lock(mutex_);
    if (auto known = find()) return known;
  }
  auto made =
      std::make_shared<const ItemCosts>(SplitOf(Skeleton(c)), placed.plain, placed, recompute_);
  const std::lock_guard lock(mutex_);
  if (auto known = find()) return known;
  item_costs_.push_back({key, placed.tensor, placed.kv, made});
  return made;
}

std::vector<int64_t> Context::OutsideOf(const Plan& skeleton) const {
  const int64_t pp = skeleton.modules.front().pp;
  const auto outside = [&](int64_t stage) {
    RankProgram program;
    program.communicators = lower::CommunicatorsOf(skeleton, 0, stage).list;
    return OutsideBytes(program, costs_.profile()).value();
  };
  // Stages between the ends have the same communicators.
  std::vector<int64_t> all(static_cast<size_t>(pp), outside(std::min<int64_t>(1, pp - 1)));
  all.front() = outside(0);
  all.back() = outside(pp - 1);
  return all;
}

std::vector<int64_t> Context::LimitsOf(const Configuration& c, const Placed& placed) const {
  std::vector<int64_t> limits(static_cast<size_t>(c.pp), INT64_MAX);
  const auto ranks = static_cast<size_t>(c.tp * c.dp);  // of a stage, one after another
  for (size_t r = 0; r < placed.placement.size(); ++r) {
    int64_t& limit = limits[r / ranks];
    limit = std::min(limit, DeviceMemory(placed.placement[r]));
  }
  return limits;
}

}  // namespace meshwright::planner::search
