#include "runtime/rank_cores.h"

#include <hwloc.h>

#include <climits>
#include <vector>

namespace meshwright::runtime {

struct RankCores::Places {
  hwloc_topology_t topology = nullptr;
  std::vector<hwloc_cpuset_t> sets;

  ~Places() {
    for (hwloc_cpuset_t set : sets) hwloc_bitmap_free(set);
    if (topology != nullptr) hwloc_topology_destroy(topology);
  }

  bool Distribute(int ranks) {
    if (hwloc_topology_init(&topology) != 0) return false;
    // What the process may not use, by a cgroup or its own binding, is left out.
    if (hwloc_topology_load(topology) != 0) return false;
    hwloc_cpuset_t own = hwloc_bitmap_alloc();
    if (hwloc_get_cpubind(topology, own, HWLOC_CPUBIND_THREAD) == 0) {
      hwloc_topology_restrict(topology, own, 0);
    }
    hwloc_bitmap_free(own);
    if (hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU) < ranks) return false;
    sets.resize(static_cast<size_t>(ranks), nullptr);
    hwloc_obj_t root = hwloc_get_root_obj(topology);
    return hwloc_distrib(topology, &root, 1, sets.data(), static_cast<unsigned>(ranks), INT_MAX,
                         0) == 0;
  }
};

RankCores::RankCores(int ranks) {
  if (ranks < 2) return;
  auto places = std::make_unique<Places>();
  if (places->Distribute(ranks)) places_ = std::move(places);
}

RankCores::~RankCores() = default;

void RankCores::BindThisThread(int rank) const {
  if (places_ == nullptr) return;
  hwloc_set_cpubind(places_->topology, places_->sets[static_cast<size_t>(rank)],
                    HWLOC_CPUBIND_THREAD);
}

}  // namespace meshwright::runtime
