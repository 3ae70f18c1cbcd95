// Whole runs: all ranks as threads of this process, or this process as one rank of an MPI job.
#pragma once

#include <vector>

#include "planner/ir/program.h"
#include "runtime/data_source.h"
#include "runtime/executor.h"
#include "runtime/mpi_communicator.h"
#include "topologies/status.h"

namespace meshwright::runtime {

/// Runs all ranks of `programs` as threads on CPU kernels; one summary a rank. Errors as Execute.
Result<std::vector<RunSummary>> RunOnThreads(const planner::Programs& programs, DataSource& data,
                                             const RunOptions& options);

/// Runs this process's rank of an MPI job on CPU kernels; every process of the job calls it. May be
/// called again, with the same or other programs, unless a run failed.
Result<RunSummary> RunOnMpi(MpiSession& session, const planner::Programs& programs,
                            DataSource& data, const RunOptions& options);

}  // namespace meshwright::runtime
