#include "planner/space/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "planner/space/axes.h"

namespace meshwright::planner::space {
namespace {

using stack::RankOrder;
using stack::Schedule;
using stack::ShardingLevel;
using stack::Split;

/// Splits of one shape, one axis after the other.
class Walk {
 public:
  Walk(const std::vector<DeviceGroup>& groups, const SpaceOptions& options, int64_t gpus,
       const Shape& shape, const std::function<void(const Split&)>& visit)
      : options_(options),
        devices_(DevicesOf(groups, gpus)),
        layers_(groups.front().costs->module().layer_count()),
        experts_(Divisibility(groups.front().costs->module(), groups.front().costs->sequence())
                     .experts()),
        shape_(shape),
        visit_(visit) {
    split_.tp = shape.tp;
    split_.cp = shape.cp;
    split_.ep = shape.ep;
    split_.expert_tp = shape.expert_tp;
    split_.micro_batch = shape.micro_batch;
    split_.sequence_parallel = shape.sequence_parallel;
    split_.format = shape.format;
  }

  void Run() {
    const int64_t ranks = shape_.tp * shape_.cp;
    if (devices_.common % ranks != 0) return;
    for (const int64_t dp : DivisorsOf(devices_.common / ranks)) {
      const int64_t pp = devices_.total / (ranks * dp);
      if (!Open(options_.held.dp, options_.excluded.dp, dp)) continue;
      if (!Open(options_.held.pp, options_.excluded.pp, pp)) continue;
      if (pp > layers_ || (options_.even_layers && layers_ % pp != 0)) continue;
      if (options_.global_batch % (dp * shape_.micro_batch) != 0) continue;
      if ((ranks * dp) % (shape_.ep * shape_.expert_tp) != 0) continue;
      split_.dp = dp;
      split_.pp = pp;
      split_.micro_batches = options_.global_batch / (dp * shape_.micro_batch);
      Sharding();
    }
  }

 private:
  void Sharding() {
    const bool replicas = split_.dp * split_.cp > 1 || (experts_ && split_.expert_dp() > 1);
    if (!replicas) return Order(ShardingLevel::kNone);
    for (const ShardingLevel level : options_.sharding) {
      if (split_.pp > 1 && level > options_.most_sharding_in_pipelines) continue;
      Order(level);
    }
  }

  void Order(ShardingLevel level) {
    if (!Open(options_.held.sharding, options_.excluded.sharding, level)) return;
    split_.sharding = level;
    // With one replica or one stage both orders are the same ranks.
    if (split_.pp == 1 || split_.dp == 1) return Schedules(RankOrder::kDataInside);
    for (const RankOrder order : options_.orders) Schedules(order);
  }

  void Schedules(RankOrder order) {
    if (!Open(options_.held.order, options_.excluded.order, order)) return;
    split_.order = order;
    for (const Schedule schedule : options_.schedules) {
      if (!Open(options_.held.schedule, options_.excluded.schedule, schedule)) continue;
      split_.schedule = schedule;
      if (schedule != Schedule::kInterleaved) {
        if (schedule == Schedule::kZeroBubbleH1 && split_.pp == 1) continue;
        Virtual(1);
        continue;
      }
      if (split_.pp == 1 || split_.micro_batches % split_.pp != 0) continue;
      for (int64_t v = 2; v * split_.pp <= layers_; ++v) {
        if (!Within(v, options_.most_virtual_stages)) break;
        if (options_.even_layers && layers_ % (v * split_.pp) != 0) continue;
        Virtual(v);
      }
    }
  }

  void Virtual(int64_t v) {
    if (!Open(options_.held.virtual_stages, options_.excluded.virtual_stages, v)) return;
    split_.virtual_stages = v;
    visit_(split_);
  }

  const SpaceOptions& options_;
  Devices devices_;
  int64_t layers_ = 0;
  bool experts_ = false;
  const Shape& shape_;
  const std::function<void(const Split&)>& visit_;
  Split split_;
};

void CheckGroups(const std::vector<DeviceGroup>& groups, std::vector<std::string>& problems) {
  if (groups.empty()) {
    problems.emplace_back("devices: none given; give at least one group");
    return;
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    const DeviceGroup& group = groups[g];
    const std::string where = fmt::format("device group {} '{}'", g, group.name);
    if (group.costs == nullptr) {
      problems.push_back(where + ": no costs; give the prices of a stack on this device");
      continue;
    }
    if (group.costs->module().layer_count() < 1) {
      problems.push_back(where + ": the module has no layers; splits need at least one");
    }
    if (!std::isfinite(group.memory_bytes) || group.memory_bytes <= 0) {
      problems.push_back(
          fmt::format("{}: memory {} bytes; give a positive number", where, group.memory_bytes));
    }
    if (groups.size() > 1 && group.gpus < 1) {
      problems.push_back(
          fmt::format("{}: {} GPUs; a group of several states 1 or more", where, group.gpus));
    }
    if (g > 0 && groups[0].costs != nullptr &&
        (!(group.costs->module() == groups[0].costs->module()) ||
         group.costs->sequence() != groups[0].costs->sequence())) {
      problems.push_back(where + ": other module or sequence than group 0; they must be the same");
    }
  }
}

}  // namespace

Status CheckSpace(const std::vector<DeviceGroup>& groups, const SpaceOptions& options) {
  std::vector<std::string> problems;
  CheckGroups(groups, problems);
  constexpr int64_t kMostGpus = int64_t{1} << 24;
  constexpr int64_t kMostBatch = int64_t{1} << 32;
  if (groups.size() == 1 && options.gpus.empty()) {
    problems.emplace_back("gpus: no count given; give at least one");
  }
  if (groups.size() > 1 && !options.gpus.empty()) {
    problems.emplace_back("gpus: the groups of a mixed cluster are used whole; leave it empty");
  }
  for (const int64_t n : options.gpus) {
    if (n < 1 || n > kMostGpus) {
      problems.push_back(fmt::format("gpus: found {}; 1 to {} are allowed", n, kMostGpus));
    }
  }
  for (const DeviceGroup& g : groups) {
    if (g.gpus > kMostGpus) {
      problems.push_back(fmt::format("device group '{}': {} GPUs; 1 to {} are allowed", g.name,
                                     g.gpus, kMostGpus));
    }
  }
  constexpr size_t kMostGroups = 6;  // all orders of the groups are tried
  if (groups.size() > kMostGroups) {
    problems.push_back(
        fmt::format("devices: {} groups; at most {} are allowed", groups.size(), kMostGroups));
  }
  if (options.global_batch < 1 || options.global_batch > kMostBatch) {
    problems.push_back(fmt::format("global batch: found {} samples; 1 to {} are allowed",
                                   options.global_batch, kMostBatch));
  }
  if (options.top < 1) problems.emplace_back("top: found 0; ask for at least one split");
  if (options.schedules.empty() || options.formats.empty() || options.sharding.empty() ||
      options.orders.empty() ||
      std::none_of(options.modes.begin(), options.modes.end(), [](bool b) { return b; })) {
    problems.emplace_back(
        "space: schedules, formats, sharding levels, rank orders and layer modes each need one "
        "member or more");
  }
  if (problems.empty()) return Status::Ok();
  std::string text = "search: ";
  for (size_t i = 0; i < problems.size(); ++i) text += (i > 0 ? "; " : "") + problems[i];
  return InvalidInput(std::move(text));
}

Divisibility::Divisibility(const ModuleSpec& module, int64_t sequence)
    : module_(module), sequence_(sequence) {
  for (const LayerSpec& l : module.layer_kinds) experts_ = experts_ || l.mlp.moe.has_value();
}

bool Divisibility::Tensor(int64_t tp) const {
  for (const LayerSpec& l : module_.layer_kinds) {
    const AttentionSpec& a = l.attention;
    if (a.heads % tp != 0) return false;
    if (a.kv_heads > 0 && a.kv_heads % tp != 0 && tp % a.kv_heads != 0) return false;
    const int64_t width = l.mlp.moe ? l.mlp.moe->shared_ffn : l.mlp.ffn;
    if (width % tp != 0) return false;
  }
  return true;
}

bool Divisibility::Expert(int64_t ep, int64_t expert_tp) const {
  if (!experts_) return ep == 1 && expert_tp == 1;
  for (const LayerSpec& l : module_.layer_kinds) {
    if (!l.mlp.moe) continue;
    if (l.mlp.moe->experts % ep != 0 || l.mlp.moe->expert_ffn % expert_tp != 0) return false;
  }
  return true;
}

void ForEachSplit(const std::vector<DeviceGroup>& groups, const SpaceOptions& options, int64_t gpus,
                  const Shape& shape, const std::function<void(const Split&)>& visit) {
  Walk(groups, options, gpus, shape, visit).Run();
}

std::vector<int64_t> StagesOfGroups(const std::vector<DeviceGroup>& groups, const Split& split) {
  if (groups.size() == 1) return {split.pp};
  std::vector<int64_t> stages;
  const int64_t ranks = split.tp * split.cp * split.dp;
  for (const DeviceGroup& g : groups) {
    if (g.gpus % ranks != 0) return {};
    stages.push_back(g.gpus / ranks);
  }
  return stages;
}

std::vector<int32_t> GroupOfStages(const std::vector<DeviceGroup>& groups, const Tuple& tuple) {
  const std::vector<int64_t> stages = StagesOfGroups(groups, tuple.split);
  MW_CHECK(!stages.empty());
  std::vector<int32_t> order(groups.size());
  std::iota(order.begin(), order.end(), 0);
  for (int32_t i = 0; i < tuple.group_order; ++i) std::next_permutation(order.begin(), order.end());
  std::vector<int32_t> of;
  for (const int32_t g : order) {
    of.insert(of.end(), static_cast<size_t>(stages[static_cast<size_t>(g)]), g);
  }
  return of;
}

int32_t GroupOrders(const std::vector<DeviceGroup>& groups) {
  int32_t orders = 1;
  for (size_t g = 2; g <= groups.size(); ++g) orders *= static_cast<int32_t>(g);
  return orders;
}

}  // namespace meshwright::planner::space
