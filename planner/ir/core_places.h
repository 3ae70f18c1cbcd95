// Where CPU ranks that are threads of one machine run; the runtime binds them so and predictions
// count on it.
#pragma once

#include <cstdint>

namespace meshwright::planner {

/// The scheduler of the kernel moves a thread that is woken to the core of who woke it; ranks that
/// talk often then end up on one core while another idles, and a step may take twice as long.
enum class CorePlaces : uint8_t {
  kOwn,       ///< every rank has cores of its own
  kReplica,   ///< a core has whole data parallel replicas, whose ranks talk most
  kPipeline,  ///< a core has whole pipelines, whose stages are busy at different times, and not
              ///< their tensor groups
  kAny,       ///< nothing is bound: the scheduler balances better than uneven fixed places do
};

/// Of `ranks` ranks in a grid of tp x dp pipelines on `cores` cores, all >= 1.
constexpr CorePlaces CorePlacesOf(int64_t ranks, int64_t tp, int64_t dp, int64_t cores) {
  if (ranks <= cores) return CorePlaces::kOwn;
  if (dp % cores == 0) return CorePlaces::kReplica;
  return tp * dp % cores == 0 ? CorePlaces::kPipeline : CorePlaces::kAny;
}

}  // namespace meshwright::planner
