// Watchdog of a rank: notices that a rank is dead, that something is stuck or that a library
// reports an error, and ends the run on all ranks with one named reason.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "planner/ir/program.h"
#include "runtime/flight_recorder.h"
#include "runtime/store.h"
#include "topologies/status.h"

namespace meshwright::runtime {

struct WatchdogOptions {
  double poll_s = 0.1;       ///< between looks at hooks and at the abort key. Seconds, > 0
  double heartbeat_s = 0.5;  ///< between signs of life. Seconds, > 0
  /// A rank without a sign of life for this long is dead. Seconds, >= 3 heartbeats.
  double dead_s = 10.0;
  /// Outstanding work without any progress for this long is stuck. Seconds, > 0.
  double stuck_s = 50.0;
  /// For the flight records of the others, once something is stuck. Seconds, >= 0.
  double gather_s = 3.0;
  /// Where the flight records of this rank go on failure, as JSON lines; empty: nowhere.
  std::string dump_path;
};

/// How far one stream of a rank has come.
struct StreamProgress {
  int64_t enqueued = 0;
  int64_t completed = 0;  ///< the next one to complete has this number
};

/// What the watchdog asks of the executor. Each may be empty; all are called on its threads.
struct WatchdogHooks {
  /// An error that a library has found in the background.
  std::function<Status()> check;
  std::function<std::vector<StreamProgress>()> progress;
  /// Where work `number` of stream `stream` stands: "step 3, task 7 (Forward(0,3)), op 12
  /// (all_reduce), communicator 'dp 0,1', operation 5".
  std::function<std::string(size_t stream, int64_t number)> describe;
  /// Called once when the run has failed, with the reason that holds for all ranks: ends what is in
  /// flight.
  std::function<void(const Status&)> on_failure;
  /// Label of an item of a flight record, and the groups of the run, for the records.
  std::function<std::string(int64_t item)> item;
  std::vector<planner::Group> groups;
};

/// Watches from its start until Stop. All ranks of `store` have one.
///
/// Reasons (kRunFailed) name the rank: one that is gone or silent; one whose work is stuck, with
/// the place and, where the records of all ranks tell, the communicator and sequence number at
/// which they do not meet and who has left it out; one that reports an error. The first that is
/// written to kAbortKey is the reason of all ranks.
class Watchdog {
 public:
  /// `store` and `recorder` outlive it; `recorder` may be nullptr. kInvalidInput for options out of
  /// range, kRunFailed when there is no thread.
  static Result<std::unique_ptr<Watchdog>> Start(Store& store, const WatchdogOptions& options,
                                                 WatchdogHooks hooks, FlightRecorder* recorder);
  ~Watchdog();  ///< as Stop
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Ends the run with an error of this rank, unless it has ended. Any thread; does not wait.
  void Fail(const Status& reason);
  /// The reason of the run's end; ok while there is none. Any thread.
  Status failure() const;
  /// Waits until on_failure has returned, at most `deadline_s`; false when there was no failure by
  /// then.
  bool WaitForFailure(double deadline_s) const;
  /// Ends the watch, telling the others that silence is no death. Returns `failure()`. A hook that
  /// does not return is left behind with its thread.
  Status Stop();

 private:
  class Core;
  explicit Watchdog(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  std::shared_ptr<Core> core_;  ///< shared with a thread that may hang in a hook
};

}  // namespace meshwright::runtime
