// What the watchdog of a GPU rank looks at, how it names it, and how it ends what is in flight.
#pragma once

#include <memory>
#include <string>

#include "planner/ir/program.h"
#include "runtime/cuda/flight_tracker.h"
#include "runtime/cuda/nccl_world.h"
#include "runtime/cuda/peer_copies.h"
#include "runtime/flight_recorder.h"
#include "runtime/rank_setup.h"
#include "runtime/store.h"
#include "runtime/watchdog.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// All of it outlives the watchdog.
struct WatchedRank {
  const planner::Programs& programs;
  const RankSetup& setup;
  FlightTracker& tracker;
  NcclWorld& nccl;
  const std::unique_ptr<PeerCopies>& copies;  ///< nullptr: NCCL carries everything
};

/// Called by all ranks. A fault is noticed, named and ended on all of them within `deadline_s`;
/// then the records of `flights` go to the file `flight_record` (empty: nowhere).
Result<std::unique_ptr<Watchdog>> StartWatchdog(const WatchedRank& rank, Store& store,
                                                FlightRecorder& flights, double deadline_s,
                                                const std::string& flight_record);

}  // namespace meshwright::runtime::cuda
