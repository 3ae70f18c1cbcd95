// Whole runs on GPUs from a test: ranks are processes that leave what they found in shared memory.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "planner/ir/load_model.h"
#include "planner/lower/lower.h"
#include "planner/lower/make_plan.h"
#include "runtime/data_source.h"
#include "runtime/gpu_run.h"
#include "runtime/self_start.h"
#include "runtime/store_communicator.h"
#include "tests/runtime/cuda/count_gpus.h"
#include "tests/runtime/gradients.h"
#include "tests/runtime/processes.h"
#include "tests/runtime/shared_memory.h"

namespace meshwright::testing {

/// Of a clock that all processes of the machine share.
inline double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// What a rank leaves behind.
struct RankNote {
  bool ended = false;
  int64_t steps = 0;
  double losses[512] = {};
  double grad_norms[512] = {};
  int64_t arena_bytes = 0, trace_rows = 0;
  double limit_s = 0.0, step_s = 0.0;  ///< own limit; the last step
  double timed_s = 0.0;                ///< sum over the ops of the last step
  int64_t timed_ops = 0;
  int64_t op_rows = 0;  ///< with times
  /// When it began to issue the first step, finished its last step, and had its result;
  /// SteadySeconds.
  double began_s = 0.0, last_step_s = 0.0, ended_s = 0.0;
  char error[4096] = {};
};

struct GpuJob {
  std::vector<RankNote> ranks;
  GlobalGradients gradients;  ///< of the first step
  std::vector<std::string> disagreements;
  int exit_code = 0;
  std::string what;  ///< how the first rank that failed ended
};

struct GpuJobOptions {
  int64_t steps = 1;
  double learning_rate = 1e-3;
  double deadline_s = 60.0;
  bool deterministic = false;
  bool trace = false;
  bool tune = false;
  bool time_ops = false;
  runtime::PeerCopyOptions peer_copies;
  bool graphs = true;
  std::string data = "mock";
  /// On rank `rank`, after each step.
  std::function<void(int rank, int64_t step)> after_step;
};

inline runtime::DataOptions DataOf(const planner::Programs& programs, const std::string& path) {
  runtime::DataOptions data;
  data.path = path;
  data.vocab = programs.facts.vocab;
  data.sequence = programs.facts.sequence;
  data.global_batch = programs.facts.global_batch;
  return data;
}

/// Notes when the first sample is asked for.
class NotedSource final : public runtime::DataSource {
 public:
  NotedSource(runtime::DataSource& source, double* first_s) : source_(source), first_s_(first_s) {}
  Status Read(int64_t step, int64_t sample, int64_t sequence, int32_t* tokens) override {
    if (*first_s_ == 0.0) *first_s_ = SteadySeconds();
    return source_.Read(step, sample, sequence, tokens);
  }

 private:
  runtime::DataSource& source_;
  double* const first_s_;
};

inline GpuJob RunOnGpus(const planner::Programs& programs, const GpuJobOptions& o) {
  const size_t ranks = programs.ranks.size();
  const auto program_of = [&](size_t r) -> const planner::RankProgram& {
    return programs.programs[static_cast<size_t>(programs.ranks[r].program)];
  };
  std::vector<size_t> at;
  size_t bytes = ranks * sizeof(RankNote);
  for (size_t r = 0; r < ranks; ++r) {
    at.push_back(bytes);
    bytes += static_cast<size_t>(program_of(r).arena.memory.gradients);
  }
  const SharedMemory shared(bytes);
  const auto note_of = [&](size_t r) { return reinterpret_cast<RankNote*>(shared.data()) + r; };
  const auto body = [&](const runtime::LaunchFacts& facts) {
    const auto rank = static_cast<size_t>(facts.rank);
    RankNote& note = *note_of(rank);
    const auto run = [&]() -> Status {
      MW_ASSIGN_OR_RETURN(const auto data, runtime::OpenDataSource(DataOf(programs, o.data)));
      MW_ASSIGN_OR_RETURN(const auto store, runtime::OpenStore(facts));
      const auto world = runtime::MakeStoreWorld(*store, {o.deadline_s});
      runtime::RunOptions options;
      options.steps = o.steps;
      options.seed = 7;
      options.lr.peak = o.learning_rate;
      options.deadline_s = o.deadline_s;
      options.trace = o.trace;
      options.trace_ops = o.trace;
      options.on_gradients = [&](const runtime::ArenaView& view) {
        if (view.step != 0) return;
        const auto& arena = view.program.arena;
        std::memcpy(shared.data() + at[rank], view.arena + arena.gradients,
                    static_cast<size_t>(arena.memory.gradients));
      };
      options.on_step = [&](const runtime::StepReport& report) {
        note.last_step_s = SteadySeconds();
        if (o.after_step) o.after_step(report.rank, report.step);
      };
      runtime::GpuOptions gpu;
      // With fewer GPUs than ranks they share them, which is slow but has the same results.
      MW_ASSIGN_OR_RETURN(const int visible, runtime::VisibleGpus());
      MW_ASSIGN_OR_RETURN(gpu.device, runtime::DeviceOrdinal(facts, visible));
      gpu.share_devices = visible < facts.world;
      gpu.deterministic = o.deterministic;
      gpu.tune = o.tune;
      gpu.time_ops = o.time_ops;
      gpu.peer_copies = o.peer_copies;
      gpu.graphs = o.graphs;
      NotedSource noted(*data, &note.began_s);
      auto executed = runtime::ExecuteOnGpu(programs, *store, *world, noted, options, gpu);
      note.ended_s = SteadySeconds();
      MW_ASSIGN_OR_RETURN(const runtime::RunSummary summary, std::move(executed));
      note.steps = static_cast<int64_t>(summary.losses.size());
      for (size_t i = 0; i < summary.losses.size() && i < 512; ++i) {
        note.losses[i] = summary.losses[i];
        note.grad_norms[i] = summary.grad_norms[i];
      }
      note.limit_s = summary.limit.total_s();
      note.step_s = summary.step_times_s.back();
      for (const runtime::OpTime& op : summary.op_times) {
        note.timed_s += op.seconds;
        note.timed_ops += op.count;
      }
      note.arena_bytes = summary.arena_bytes;
      note.trace_rows = static_cast<int64_t>(summary.trace.size());
      for (const planner::OpTraceRow& row : summary.op_trace) {
        // A receive may start before the first op does, from which times count.
        if (row.end_ns >= row.start_ns && row.end_ns != 0) ++note.op_rows;
      }
      return Status::Ok();
    };
    const Status status = run();
    note.ended = true;
    std::strncpy(note.error, status.message().c_str(), sizeof(note.error) - 1);
    return ExitCode(status);
  };
  GpuJob job;
  const auto outcome =
      runtime::StartRanks({static_cast<int>(ranks), o.deadline_s + 30.0, 5.0}, body);
  if (!outcome.ok()) {
    job.exit_code = 3;
    job.what = outcome.status().message();
    return job;
  }
  job.exit_code = outcome->exit_code;
  job.what = outcome->what;
  GradientCollector collector(programs);
  for (size_t r = 0; r < ranks; ++r) {
    job.ranks.push_back(*note_of(r));
    const planner::RankProgram& program = program_of(r);
    // The view's arena lies where its gradients are the bytes that the rank copied.
    std::byte* arena = shared.data() + at[r] - program.arena.gradients;
    collector.Add({static_cast<int>(r), 0, program, programs.ranks[r], arena});
  }
  job.gradients = collector.Take();
  job.disagreements = collector.disagreements();
  return job;
}

}  // namespace meshwright::testing
