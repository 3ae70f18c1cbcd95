#include "tools/run_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <optional>

#include "runtime/mpi_communicator.h"
#include "runtime/run.h"
#include "runtime/store_communicator.h"
#include "tools/command_line.h"

namespace meshwright::tools {
namespace {

using planner::Programs;
using planner::TraceRow;
using runtime::RunSummary;

std::optional<int64_t> Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : ParseInt(value);
}

const planner::RankProgram& ProgramOf(const Programs& programs, size_t rank) {
  return programs.programs[static_cast<size_t>(programs.ranks[rank].program)];
}

JobSummary SummaryOf(const RunSummary& first) {
  JobSummary job;
  job.losses = first.losses;
  job.grad_norms = first.grad_norms;
  job.step_times_s = first.step_times_s;
  job.library_bytes = first.library_bytes;
  job.nccl_bytes = first.nccl_bytes;
  job.op_times = first.op_times;
  return job;
}

/// `own` of every rank; all ranks pass equally many.
Result<std::vector<int64_t>> GatherNumbers(runtime::Communicator& world,
                                           const std::vector<int64_t>& own) {
  std::vector<int64_t> all(own.size() * static_cast<size_t>(world.size()));
  MW_RETURN_IF_ERROR(world.AllGather(reinterpret_cast<const std::byte*>(own.data()),
                                     reinterpret_cast<std::byte*>(all.data()),
                                     static_cast<int64_t>(own.size()), planner::DType::kI64));
  return all;
}

/// A row crosses as (step, task, start, end); the rest follows from the program.
constexpr size_t kNumbersOfRow = 4;

Result<std::vector<TraceRow>> GatherTrace(runtime::Communicator& world, const Programs& programs,
                                          const std::vector<TraceRow>& own, int64_t most_rows) {
  std::vector<int64_t> numbers;
  numbers.reserve(static_cast<size_t>(most_rows) * kNumbersOfRow);
  for (const TraceRow& row : own)
    numbers.insert(numbers.end(), {row.step, row.task, row.start_ns, row.end_ns});
  numbers.resize(static_cast<size_t>(most_rows) * kNumbersOfRow, -1);
  MW_ASSIGN_OR_RETURN(const std::vector<int64_t> all, GatherNumbers(world, numbers));
  std::vector<TraceRow> rows;
  for (size_t i = 0; i < all.size(); i += kNumbersOfRow) {
    if (all[i] < 0) continue;
    const size_t rank = i / numbers.size();
    const planner::RankProgram& program = ProgramOf(programs, rank);
    const auto task = static_cast<int32_t>(all[i + 1]);
    rows.push_back(planner::MakeTraceRow(static_cast<int32_t>(rank), all[i], task,
                                         program.tasks[static_cast<size_t>(task)], program));
    rows.back().start_ns = all[i + 2];
    rows.back().end_ns = all[i + 3];
  }
  return rows;
}

/// An op crosses as (start, end); the rest follows from the program.
Result<std::vector<planner::OpTraceRow>> GatherOpTrace(
    runtime::Communicator& world, const Programs& programs, const runtime::RunOptions& options,
    const std::vector<planner::OpTraceRow>& own) {
  std::vector<std::vector<planner::OpTraceRow>> rows;
  size_t most = 0;
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    rows.push_back(planner::MakeOpTraceRows(programs, static_cast<int32_t>(r),
                                            runtime::FirstTracedStep(options), options.steps));
    most = std::max(most, rows.back().size());
  }
  std::vector<int64_t> numbers;
  for (const planner::OpTraceRow& row : own) {
    numbers.insert(numbers.end(), {row.start_ns, row.end_ns});
  }
  numbers.resize(2 * most);
  MW_ASSIGN_OR_RETURN(const std::vector<int64_t> all, GatherNumbers(world, numbers));
  std::vector<planner::OpTraceRow> merged;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < rows[r].size(); ++i) {
      rows[r][i].start_ns = all[2 * (r * most + i)];
      rows[r][i].end_ns = all[2 * (r * most + i) + 1];
    }
    merged.insert(merged.end(), rows[r].begin(), rows[r].end());
  }
  return merged;
}

/// The summary of the whole job on every rank.
Result<JobSummary> GatherJob(runtime::Communicator& world, const Programs& programs,
                             const runtime::RunOptions& options, const RunSummary& own) {
  JobSummary job = SummaryOf(own);
  const auto ns = [](double seconds) { return static_cast<int64_t>(std::llround(seconds * 1e9)); };
  const std::vector<int64_t> facts = {
      own.planned_bytes,        own.arena_bytes,
      own.device_bytes,         static_cast<int64_t>(own.trace.size()),
      ns(own.limit.products_s), ns(own.limit.attention_s),
      ns(own.limit.memory_s)};
  MW_ASSIGN_OR_RETURN(const std::vector<int64_t> all, GatherNumbers(world, facts));
  int64_t most_rows = 0;
  for (size_t i = 0; i < all.size(); i += facts.size()) {
    job.planned_bytes = std::max(job.planned_bytes, all[i]);
    job.arena_bytes = std::max(job.arena_bytes, all[i + 1]);
    job.device_bytes = std::max(job.device_bytes, all[i + 2]);
    job.trace_rows += all[i + 3];
    most_rows = std::max(most_rows, all[i + 3]);
    const auto seconds = [&](size_t at) { return static_cast<double>(all[i + at]) * 1e-9; };
    const runtime::OwnLimit limit{seconds(4), seconds(5), seconds(6)};
    if (limit.total_s() > job.limit.total_s()) job.limit = limit;
  }
  if (most_rows > 0) {
    MW_ASSIGN_OR_RETURN(job.trace, GatherTrace(world, programs, own.trace, most_rows));
  }
  if (options.trace_ops) {
    MW_ASSIGN_OR_RETURN(job.op_trace, GatherOpTrace(world, programs, options, own.op_trace));
    job.communication = runtime::HiddenCommunication(job.op_trace);
  }
  return job;
}

}  // namespace

Launcher FindLauncher() {
  struct Known {
    const char* name;
    const char* size;
    const char* rank;
    bool mpi;
  };
  constexpr Known kKnown[] = {{"Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", true},
                              {"PMI", "PMI_SIZE", "PMI_RANK", true},
                              {"torchrun", "WORLD_SIZE", "RANK", false},
                              {"Slurm", "SLURM_NTASKS", "SLURM_PROCID", false}};
  const bool pmix = std::getenv("PMIX_RANK") != nullptr;
  for (const Known& known : kKnown) {
    const auto size = Variable(known.size);
    const auto rank = Variable(known.rank);
    if (size && rank) return {known.name, known.size, *rank, *size, known.mpi || pmix};
  }
  if (pmix) return {"PMIx", "PMIX_RANK", Variable("PMIX_RANK").value_or(0), 0, true};
  return {};
}

int64_t TraceRowsOf(const Programs& programs, int64_t steps) {
  int64_t rows = 0;
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    rows += static_cast<int64_t>(ProgramOf(programs, r).tasks.size());
  }
  return rows * steps;
}

Result<JobSummary> RunThreadsJob(const Programs& programs, runtime::DataSource& data,
                                 const runtime::RunOptions& options) {
  MW_ASSIGN_OR_RETURN(std::vector<RunSummary> ranks,
                      runtime::RunOnThreads(programs, data, options));
  JobSummary job = SummaryOf(ranks.front());
  for (RunSummary& rank : ranks) {
    job.planned_bytes = std::max(job.planned_bytes, rank.planned_bytes);
    job.arena_bytes = std::max(job.arena_bytes, rank.arena_bytes);
    job.trace.insert(job.trace.end(), std::make_move_iterator(rank.trace.begin()),
                     std::make_move_iterator(rank.trace.end()));
    rank.trace.clear();
    job.op_trace.insert(job.op_trace.end(), rank.op_trace.begin(), rank.op_trace.end());
  }
  if (options.trace_ops) job.communication = runtime::HiddenCommunication(job.op_trace);
  job.trace_rows = static_cast<int64_t>(job.trace.size());
  return job;
}

Result<JobSummary> RunMpiJob(const Programs& programs, runtime::DataSource& data,
                             const runtime::RunOptions& options) {
  MW_ASSIGN_OR_RETURN(const auto session, runtime::MpiSession::Start({options.deadline_s}));
  runtime::Communicator& world = session->world();
  if (static_cast<size_t>(world.size()) != programs.ranks.size()) {
    return InvalidInput(
        fmt::format("the job has {} processes, the plan {} ranks; start it with mpirun -n {}",
                    world.size(), programs.ranks.size(), programs.ranks.size()));
  }
  MW_ASSIGN_OR_RETURN(const RunSummary own, runtime::RunOnMpi(*session, programs, data, options));
  return GatherJob(world, programs, options, own);
}

Result<JobSummary> RunGpuJob(const runtime::LaunchFacts& facts, const Programs& programs,
                             runtime::DataSource& data, const runtime::RunOptions& options,
                             runtime::GpuOptions gpu) {
  if (static_cast<size_t>(facts.world) != programs.ranks.size()) {
    return InvalidInput(fmt::format(
        "the job has {} processes, the plan {} ranks; start {} of them, or one without a launcher "
        "and let it start the others",
        facts.world, programs.ranks.size(), programs.ranks.size()));
  }
  MW_ASSIGN_OR_RETURN(const int visible, runtime::VisibleGpus());
  MW_ASSIGN_OR_RETURN(gpu.device, runtime::DeviceOrdinal(facts, visible));
  // NCCL pays for it: only where there is no other way.
  gpu.share_devices = gpu.share_devices && visible < facts.local_world;
  MW_ASSIGN_OR_RETURN(const auto store, runtime::OpenStore(facts));
  const auto world = runtime::MakeStoreWorld(*store, {options.deadline_s});
  MW_ASSIGN_OR_RETURN(const RunSummary own,
                      runtime::ExecuteOnGpu(programs, *store, *world, data, options, gpu));
  return GatherJob(*world, programs, options, own);
}

}  // namespace meshwright::tools
