#include "runtime/cuda/watch_rank.h"

#include <algorithm>
#include <utility>

#include "runtime/issue_order.h"

namespace meshwright::runtime::cuda {
namespace {

std::string GroupName(const WatchedRank& rank, int32_t group) {
  return group < 0 ? "world" : rank.programs.groups[static_cast<size_t>(group)].name;
}

std::string ItemName(const WatchedRank& rank, int64_t item) {
  const std::vector<IssuedOp>& ops = rank.setup.order.ops;
  if (item < 0 || static_cast<size_t>(item) >= ops.size()) return "no op";
  return PlaceOf(ops[static_cast<size_t>(item)]);
}

}  // namespace

Result<std::unique_ptr<Watchdog>> StartWatchdog(const WatchedRank& rank, Store& store,
                                                FlightRecorder& flights, double deadline_s,
                                                const std::string& flight_record) {
  WatchdogOptions watch;
  // Half of the deadline for noticing leaves the other half for naming and ending.
  watch.stuck_s = 0.5 * deadline_s;
  watch.dead_s = std::min(watch.dead_s, std::max(0.25 * deadline_s, 3 * watch.heartbeat_s));
  watch.dump_path = flight_record;
  const FlightNames names = {[rank](int32_t group) { return GroupName(rank, group); },
                             [rank](int64_t item) { return ItemName(rank, item); }};
  WatchdogHooks hooks;
  hooks.check = [rank] { return rank.nccl.CheckAsync(); };
  hooks.progress = [rank] { return rank.tracker.Poll(); };
  hooks.describe = [rank, names](size_t stream, int64_t) {
    return rank.tracker.Describe(stream, names);
  };
  hooks.on_failure = [rank, deadline_s](const Status&) {
    if (rank.copies != nullptr) rank.copies->Release();
    rank.nccl.Abort(0.25 * deadline_s);
  };
  hooks.item = names.item;
  hooks.groups = rank.programs.groups;
  return Watchdog::Start(store, watch, std::move(hooks), &flights);
}

}  // namespace meshwright::runtime::cuda
