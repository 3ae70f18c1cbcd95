// What all configurations of one search share: model, cluster, prices, and memoised templates.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "planner/search/configuration.h"
#include "planner/search/stage_cost.h"

namespace meshwright::planner::search {

/// Methods may be called from many threads.
class Context {
 public:
  Context(const ModelSpec& model, const topologies::Cluster& cluster, const cost::CostModel& costs,
          const SearchOptions& options, int64_t gpus, int64_t sequence);

  const ModelSpec& model() const { return model_; }
  const ModuleSpec& module() const { return model_.modules.front(); }
  const topologies::Cluster& cluster() const { return cluster_; }
  const cost::CostModel& costs() const { return costs_; }
  const SearchOptions& options() const { return options_; }
  int64_t gpus() const { return gpus_; }
  int64_t sequence() const { return sequence_; }
  /// Recomputation modes that stages may choose from.
  const std::vector<Recompute>& recompute() const { return recompute_; }
  /// All layers are of one kind, so that only counts of layers matter.
  bool uniform() const { return uniform_; }

  /// Facts of the split; `tied_*` as its end stages see them.
  lower::SplitFacts SplitOf(const Plan& skeleton) const;

  /// Memoised. Place's errors.
  Result<std::shared_ptr<const Placed>> PlacedFor(const Configuration& c);
  /// Memoised by what shapes templates and by the tensor groups' paths.
  std::shared_ptr<const ItemCosts> CostsFor(const Configuration& c, const Placed& placed);

  /// Bytes of the smallest device of every stage.
  std::vector<int64_t> LimitsOf(const Configuration& c, const Placed& placed) const;
  /// OutsideBytes of every stage.
  std::vector<int64_t> OutsideOf(const Plan& skeleton) const;
  /// Bytes of the largest device.
  int64_t LargestLimit() const { return largest_limit_; }

  /// The plan of a configuration without layer ranges, recomputation and placement.
  Plan Skeleton(const Configuration& c) const;

 private:
  using PlacedKey = std::tuple<int64_t, int64_t, int64_t, PlacementOrder>;
  struct CostsEntry {
    /// tp, sp, micro-batch, pp = 1, tensor chunks.
    std::tuple<int64_t, bool, int64_t, bool, int64_t> key;
    Paths tensor, kv;
    std::shared_ptr<const ItemCosts> costs;
  };
  int64_t DeviceMemory(int64_t device) const;

  const ModelSpec& model_;
  const topologies::Cluster& cluster_;
  const cost::CostModel& costs_;
  const SearchOptions& options_;
  const int64_t gpus_;
  const int64_t sequence_;
  std::vector<Recompute> recompute_;
  bool uniform_ = true;
  int64_t largest_limit_ = 0;
  std::mutex mutex_;
  std::map<PlacedKey, Result<std::shared_ptr<const Placed>>> placed_;  // guarded by mutex_
  std::vector<CostsEntry> item_costs_;                                 // guarded by mutex_
};

}  // namespace meshwright::planner::search
