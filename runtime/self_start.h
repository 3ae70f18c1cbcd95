// `--nproc N`: this process starts the ranks of a run as its own copies.
#pragma once

#include <functional>
#include <string>

#include "runtime/launch.h"
#include "topologies/status.h"

namespace meshwright::runtime {

struct SelfStartOptions {
  int ranks = 1;  ///< 1..1024
  /// After the first failure the others have this long to find out and say so themselves, before
  /// they are told to end. Seconds, >= 0.
  double notice_s = 10.0;
  /// From SIGTERM to SIGKILL. Seconds, >= 0.
  double grace_s = 5.0;
};

/// How the ranks ended.
struct SelfStartOutcome {
  int exit_code = 0;  ///< of the rank that failed first, 0 when none did; 3 when a signal ended it
  int rank = -1;      ///< which one failed first
  std::string what;   ///< "rank 1 was ended by signal 9 (Killed)"; empty when none failed
};

/// Forks `ranks` copies of this process and waits for them. Each gets the variables that torchrun
/// would set, and runs `body` on facts that say kSelf; what it returns is the copy's exit code.
/// Call it from a process with one thread and before anything of CUDA, which does not survive a
/// fork.
///
/// Once a rank fails, the others are ended (notice_s, SIGTERM, grace_s, SIGKILL). SIGINT, SIGTERM
/// and SIGHUP to this process go to all ranks, then the same holds; the exit code is then 128 +
/// signal. When this process dies, the ranks get SIGTERM.
///
/// Errors: kInvalidInput for options, kRunFailed when a process or socket cannot be made; no rank
/// runs on then.
Result<SelfStartOutcome> StartRanks(const SelfStartOptions& options,
                                    const std::function<int(const LaunchFacts&)>& body);

}  // namespace meshwright::runtime
