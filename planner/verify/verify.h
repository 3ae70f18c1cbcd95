// The verifier: is a set of programs safe to run? Messages meet their partners, nothing deadlocks,
// no two unordered ops touch the same bytes, every rank's groups are right, and everything fits.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/ir/program.h"
#include "topologies/status.h"

namespace meshwright::planner {

/// What the machines allow. Zero or empty: not limited.
struct VerifyLimits {
  /// Bytes of device memory of each rank (one entry a rank; a single entry holds for all ranks).
  std::vector<int64_t> device_bytes;
  /// Communicators a rank may be a member of; each one costs device memory.
  int64_t max_communicators = 0;
  /// Streams of a rank: more would share a hardware queue (CUDA_DEVICE_MAX_CONNECTIONS <= 32).
  int64_t max_streams = 32;
  /// Verify one representative of every class of ranks instead of all ranks (see fold.h). The
  /// verdict is the same; the group tables of all ranks are checked in any case.
  bool fold = true;
  int threads = 1;  ///< the verdict does not depend on it
};

/// Ok, or kInfeasible with the first thing found wrong: ranks, tasks, ops, what is allowed and what
/// to do. Cost: linear in the tasks of all classes.
Status Verify(const Programs& programs, const VerifyLimits& limits);

}  // namespace meshwright::planner
