// One training job: CPU ranks as threads of this process, or this process as one rank of an MPI or
// GPU job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/ir/program.h"
#include "planner/ir/trace.h"
#include "runtime/data_source.h"
#include "runtime/executor.h"
#include "runtime/gpu_run.h"
#include "runtime/hidden_communication.h"
#include "runtime/launch.h"
#include "topologies/status.h"

namespace meshwright::tools {

/// A launcher that started this process, by the variable that says so.
struct Launcher {
  std::string name;      ///< "Open MPI"; empty: none
  std::string variable;  ///< "OMPI_COMM_WORLD_SIZE"
  int64_t rank = 0;
  int64_t size = 1;
  bool mpi = false;  ///< MPI_Init finds the job
};
Launcher FindLauncher();

/// What a job did, of all ranks.
struct JobSummary {
  std::vector<double> losses, grad_norms, step_times_s;  ///< a step each, of rank 0
  int64_t planned_bytes = 0, arena_bytes = 0;            ///< largest of the ranks
  int64_t device_bytes = 0;                              ///< largest; 0: CPU ranks
  int64_t library_bytes = 0, nccl_bytes = 0;             ///< parts of device_bytes, rank 0
  std::vector<runtime::OpTime> op_times;                 ///< rank 0
  runtime::OwnLimit limit;                               ///< of the rank whose own limit is highest
  int64_t trace_rows = 0;                                ///< recorded on all ranks
  std::vector<planner::TraceRow> trace;                  ///< of all ranks, by rank
  std::vector<planner::OpTraceRow> op_trace;  ///< of all ranks; when the options asked for it
  /// Of the first traced step, all ranks; when the options asked for rows of ops.
  std::optional<std::vector<runtime::CommunicationTime>> communication;
};

/// Rows of a trace of all ranks and `steps` steps.
int64_t TraceRowsOf(const planner::Programs& programs, int64_t steps);

/// All ranks as threads. With options.trace, the trace of all ranks is in the summary.
Result<JobSummary> RunThreadsJob(const planner::Programs& programs, runtime::DataSource& data,
                                 const runtime::RunOptions& options);

/// This process's rank; all processes return the summary of the whole job. kInvalidInput when the
/// job has another number of processes than the programs have ranks.
Result<JobSummary> RunMpiJob(const planner::Programs& programs, runtime::DataSource& data,
                             const runtime::RunOptions& options);

/// This process's rank on its GPU, as `facts` say; all processes return the summary of the whole
/// job.
Result<JobSummary> RunGpuJob(const runtime::LaunchFacts& facts, const planner::Programs& programs,
                             runtime::DataSource& data, const runtime::RunOptions& options,
                             runtime::GpuOptions gpu);

}  // namespace meshwright::tools
