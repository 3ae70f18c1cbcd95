#include "planner/search/placed.h"

#include <algorithm>
#include <array>

namespace meshwright::planner::search {
namespace {

/// Adds the paths of groups, each distinct one once.
class PathCollector {
 public:
  PathCollector(const Prices& prices, const Axes& axes) : prices_(prices), axes_(axes) {}

  int32_t Rank(int64_t tp, int64_t dp, int64_t pp) const {
    return static_cast<int32_t>(tp + axes_.tp * (dp + axes_.dp * pp));
  }

  Status Add(const std::vector<int32_t>& ranks, Paths& paths) const {
    MW_ASSIGN_OR_RETURN(const cost::PathFacts path, prices_.PathOf(ranks));
    if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
    return Status::Ok();
  }

  Status Tensor(Paths& paths, int64_t size) const {
    for (int64_t pp = 0; pp < axes_.pp; ++pp) {
      for (int64_t dp = 0; dp < axes_.dp; ++dp) {
        for (int64_t begin = 0; begin < axes_.tp; begin += size) {
          std::vector<int32_t> ranks;
          for (int64_t tp = begin; tp < begin + size; ++tp) ranks.push_back(Rank(tp, dp, pp));
          MW_RETURN_IF_ERROR(Add(ranks, paths));
        }
      }
    }
    return Status::Ok();
  }

  Status Data(Paths& paths) const {
    for (int64_t pp = 0; pp < axes_.pp; ++pp) {
      for (int64_t tp = 0; tp < axes_.tp; ++tp) {
        std::vector<int32_t> ranks;
        for (int64_t dp = 0; dp < axes_.dp; ++dp) ranks.push_back(Rank(tp, dp, pp));
        MW_RETURN_IF_ERROR(Add(ranks, paths));
      }
    }
    return Status::Ok();
  }

  /// Pairs of ranks that differ in the stage only: neighbours, or first and last.
  Status Stages(Paths& paths, bool ends) const {
    for (int64_t pp = 0; pp + 1 < (ends ? 2 : axes_.pp); ++pp) {
      const int64_t other = ends ? axes_.pp - 1 : pp + 1;
      for (int64_t dp = 0; dp < axes_.dp; ++dp) {
        for (int64_t tp = 0; tp < axes_.tp; ++tp) {
          MW_RETURN_IF_ERROR(Add({Rank(tp, dp, pp), Rank(tp, dp, other)}, paths));
        }
      }
    }
    return Status::Ok();
  }

 private:
  const Prices& prices_;
  const Axes& axes_;
};

/// Devices of the ranks: nested blocks, the inner ones on the widest links.
Result<topologies::Placement> Order(const topologies::Cluster& cluster, const Axes& axes,
                                    PlacementOrder order) {
  const bool data_inside = order == PlacementOrder::kDataInside;
  const std::array<int, 3> sizes = {static_cast<int>(axes.tp),
                                    static_cast<int>(data_inside ? axes.dp : axes.pp),
                                    static_cast<int>(data_inside ? axes.pp : axes.dp)};
  return cluster.BestOrder(sizes);
}

}  // namespace

Result<Placed> Place(const topologies::Cluster& cluster, const cost::CostModel& model,
                     const Axes& axes, PlacementOrder order, DType dtype) {
  MW_ASSIGN_OR_RETURN(const topologies::Placement devices, Order(cluster, axes, order));
  Plan plan;  // what MakePrices reads of one
  plan.dtype = dtype;
  ModulePlan module;
  module.tp = axes.tp;
  module.dp = axes.dp;
  module.pp = axes.pp;
  plan.modules = {module};
  plan.placement.resize(static_cast<size_t>(module.ranks()));
  for (int64_t pp = 0; pp < axes.pp; ++pp) {
    for (int64_t dp = 0; dp < axes.dp; ++dp) {
      for (int64_t tp = 0; tp < axes.tp; ++tp) {
        const int64_t rank = tp + axes.tp * (dp + axes.dp * pp);
        const int64_t place =
            order == PlacementOrder::kDataInside ? rank : tp + axes.tp * (pp + axes.pp * dp);
        plan.placement[static_cast<size_t>(rank)] =
            devices.device_of_rank[static_cast<size_t>(place)];
      }
    }
  }
  MW_ASSIGN_OR_RETURN(Prices plain, MakePrices(plan, cluster, model));
  Placed placed{plan.placement, devices.reasons, {}, {}, {}, {}, {}, {}, std::move(plain), {}};
  if (axes.dp > 1) {
    plan.modules.front().sharding = Sharding::kZero1;
    MW_ASSIGN_OR_RETURN(placed.sharded, MakePrices(plan, cluster, model));
  }
  const PathCollector collect(placed.plain, axes);
  if (axes.tp > 1) MW_RETURN_IF_ERROR(collect.Tensor(placed.tensor, axes.tp));
  if (axes.kv_copies > 1) MW_RETURN_IF_ERROR(collect.Tensor(placed.kv, axes.kv_copies));
  if (axes.dp > 1) MW_RETURN_IF_ERROR(collect.Data(placed.data));
  if (axes.pp > 1) {
    MW_RETURN_IF_ERROR(collect.Stages(placed.edge, false));
    MW_RETURN_IF_ERROR(collect.Stages(placed.tied, true));
  }
  std::vector<int32_t> all(plan.placement.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
  MW_RETURN_IF_ERROR(collect.Add(all, placed.world));
  return placed;
}

}  // namespace meshwright::planner::search
