#include "runtime/rank_cores.h"

#include <hwloc.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <utility>

#include "planner/ir/core_places.h"

namespace meshwright::runtime {

struct RankCores::Places {
  hwloc_topology_t topology = nullptr;
  std::vector<hwloc_cpuset_t> sets;

  ~Places() {
    for (hwloc_cpuset_t set : sets) hwloc_bitmap_free(set);
    if (topology != nullptr) hwloc_topology_destroy(topology);
  }

  /// Processing units that the calling thread may use; 0 when nobody can tell.
  int Load() {
    if (hwloc_topology_init(&topology) != 0 || hwloc_topology_load(topology) != 0) return 0;
    hwloc_cpuset_t own = hwloc_bitmap_alloc();
    const bool bound = hwloc_get_cpubind(topology, own, HWLOC_CPUBIND_THREAD) == 0;
    if (bound) hwloc_topology_restrict(topology, own, 0);
    hwloc_bitmap_free(own);
    return bound ? hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU) : 0;
  }

  bool Distribute(size_t places) {
    sets.resize(places, nullptr);
    hwloc_obj_t root = hwloc_get_root_obj(topology);
    return hwloc_distrib(topology, &root, 1, sets.data(), static_cast<unsigned>(places), INT_MAX,
                         0) == 0;
  }
};

RankCores::RankCores(const std::vector<planner::RankBinding>& ranks) {
  if (ranks.size() < 2) return;
  auto places = std::make_unique<Places>();
  const int64_t cores = places->Load();
  if (cores < 2) return;
  const auto count = static_cast<int64_t>(ranks.size());
  int64_t dp = 1;
  int64_t tp = 1;
  for (const planner::RankBinding& r : ranks) {
    dp = std::max(dp, r.dp_index + 1);
    tp = std::max(tp, r.tp_index + 1);
  }
  const planner::CorePlaces kind = planner::CorePlacesOf(count, tp, dp, cores);
  if (kind == planner::CorePlaces::kAny) return;
  const bool own = kind == planner::CorePlaces::kOwn;
  for (int64_t r = 0; r < count; ++r) {
    const planner::RankBinding& rank = ranks[static_cast<size_t>(r)];
    const int64_t pipeline = rank.dp_index * tp + rank.tp_index;
    place_of_.push_back(static_cast<int>(own ? r : pipeline * cores / (dp * tp)));
  }
  if (places->Distribute(static_cast<size_t>(own ? count : cores))) places_ = std::move(places);
}

RankCores::~RankCores() = default;

void RankCores::BindThisThread(int rank) const {
  if (places_ == nullptr) return;
  const auto place = static_cast<size_t>(place_of_[static_cast<size_t>(rank)]);
  hwloc_set_cpubind(places_->topology, places_->sets[place], HWLOC_CPUBIND_THREAD);
}

}  // namespace meshwright::runtime
