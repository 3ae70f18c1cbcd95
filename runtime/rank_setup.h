// What a rank finds out about its program before it issues anything; the same for CPU and GPU
// ranks.
#pragma once

#include <vector>

#include "planner/ir/program.h"
#include "runtime/communicator.h"
#include "runtime/executor.h"
#include "runtime/issue_order.h"
#include "runtime/kernels.h"
#include "topologies/status.h"

namespace meshwright::runtime {

struct RankSetup {
  RankContext context;
  IssueOrder order;
  std::vector<bool> reads_scalars;  ///< by op: uses learning rate or step number
  bool any_reads_scalars = false;
};

/// Program, order of issue and options of rank `rank`, checked. Errors: kInvalidInput for another
/// number of ranks than the program has or options out of range; those of MakeIssueOrder;
/// kUnsupported for an op without a kernel in `kernels`; kInfeasible for an arena that may be
/// smaller than planned or has no room for the step scalars.
Result<RankSetup> SetUpRank(const planner::Programs& programs, int rank, const Communicator& world,
                            const KernelTable& kernels, const RunOptions& options);

/// kInvalidInput, naming two ranks, unless all ranks have the same programs. Called by all.
Status CompareFingerprints(const planner::Programs& programs, Communicator& world);

/// kInfeasible unless group `i` of the binding has the size that communicator `i` of the program
/// states; `size_of` gives the size of a group, 0 for one that the rank is not in.
Status CheckGroups(const RankContext& context, int rank, const std::vector<int>& size_of);

}  // namespace meshwright::runtime
