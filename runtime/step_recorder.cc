#include "runtime/step_recorder.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace meshwright::runtime {
namespace {

constexpr int64_t kNotStarted = std::numeric_limits<int64_t>::max();

const planner::RankProgram& ProgramOf(const planner::Programs& programs, int rank) {
  const planner::RankBinding& binding = programs.ranks[static_cast<size_t>(rank)];
  return programs.programs[static_cast<size_t>(binding.program)];
}

void Lower(std::atomic<int64_t>& value, int64_t to) {
  int64_t now = value.load(std::memory_order_relaxed);
  while (to < now && !value.compare_exchange_weak(now, to, std::memory_order_relaxed)) {
  }
}

void Raise(std::atomic<int64_t>& value, int64_t to) {
  int64_t now = value.load(std::memory_order_relaxed);
  while (to > now && !value.compare_exchange_weak(now, to, std::memory_order_relaxed)) {
  }
}

}  // namespace

StepRecorder::StepRecorder(const planner::Programs& programs, int rank, const RunOptions& options)
    : program_(ProgramOf(programs, rank)),
      options_(options),
      rank_(rank),
      tokens_per_step_(static_cast<double>(programs.facts.global_batch) *
                       static_cast<double>(programs.facts.sequence)) {
  for (StepTimes& step : steps_) step.tasks = std::make_unique<TaskTimes[]>(program_.tasks.size());
  summary_.rank = rank;
  summary_.planned_bytes = program_.arena.memory.arena();
  if (!options.trace_ops || options.steps <= 0) return;
  const int64_t first = FirstTracedStep(options);
  summary_.op_trace = planner::MakeOpTraceRows(programs, rank, first, options.steps);
  ops_ = summary_.op_trace.size() / static_cast<size_t>(options.steps - first);
}

int64_t StepRecorder::SteadyNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void StepRecorder::SetOrigin(int64_t origin_ns) {
  origin_ns_ = origin_ns;
  last_end_ns_ = Now();
}

int64_t StepRecorder::Now() const {
  return SteadyNow() - origin_ns_;
}

void StepRecorder::Begin(int64_t step) {
  StepTimes& times = At(step);
  for (size_t i = 0; i < program_.tasks.size(); ++i) {
    times.tasks[i].start.store(kNotStarted, std::memory_order_relaxed);
    times.tasks[i].end.store(0, std::memory_order_relaxed);
  }
  for (auto& busy : times.busy_ns) busy.store(0, std::memory_order_relaxed);
  times.read_back = false;
}

void StepRecorder::OnTask(int32_t task, int64_t step, int64_t start_ns, int64_t end_ns) {
  StepTimes& times = At(step);
  TaskTimes& whole = times.tasks[static_cast<size_t>(task)];
  Lower(whole.start, start_ns);
  Raise(whole.end, end_ns);
  const auto kind = static_cast<size_t>(program_.tasks[static_cast<size_t>(task)].kind);
  times.busy_ns[kind].fetch_add(end_ns - start_ns, std::memory_order_relaxed);
}

void StepRecorder::OnReadBack(int64_t step, double loss, double grad_norm) {
  StepTimes& times = At(step);
  times.read_back = true;
  times.loss = loss;
  times.grad_norm = grad_norm;
}

void StepRecorder::AddTrace(int64_t step, StepTimes& times) {
  for (size_t i = 0; i < program_.tasks.size(); ++i) {
    planner::TraceRow row =
        planner::MakeTraceRow(rank_, step, static_cast<int32_t>(i), program_.tasks[i], program_);
    const int64_t start = times.tasks[i].start.load(std::memory_order_relaxed);
    if (start != kNotStarted) {
      row.start_ns = start;
      row.end_ns = times.tasks[i].end.load(std::memory_order_relaxed);
    }
    summary_.trace.push_back(std::move(row));
  }
}

StepReport StepRecorder::Finish(int64_t step) {
  StepTimes& times = At(step);
  StepReport report;
  report.rank = rank_;
  report.step = step;
  report.loss = std::numeric_limits<double>::quiet_NaN();
  report.grad_norm = report.loss;
  if (times.read_back) {
    report.loss = times.loss;
    report.grad_norm = times.grad_norm;
    summary_.losses.push_back(times.loss);
    summary_.grad_norms.push_back(times.grad_norm);
  }
  report.learning_rate = LearningRate(options_.lr, step + 1);
  int64_t end = last_end_ns_;
  for (size_t i = 0; i < program_.tasks.size(); ++i) {
    end = std::max(end, times.tasks[i].end.load(std::memory_order_relaxed));
  }
  report.step_time_s = static_cast<double>(end - last_end_ns_) / 1e9;
  last_end_ns_ = end;
  report.tokens_per_s = report.step_time_s > 0 ? tokens_per_step_ / report.step_time_s : 0.0;
  for (size_t k = 0; k < kTaskKindCount; ++k) {
    report.busy_s[k] = static_cast<double>(times.busy_ns[k].load(std::memory_order_relaxed)) / 1e9;
    summary_.busy_s[k] += report.busy_s[k];
  }
  summary_.step_times_s.push_back(report.step_time_s);
  if (options_.trace) AddTrace(step, times);
  return report;
}

RunSummary StepRecorder::TakeSummary() {
  const auto& times = summary_.step_times_s;
  const size_t skip = times.size() > 1 ? 1 : 0;
  double total = 0.0;
  for (size_t i = skip; i < times.size(); ++i) total += times[i];
  const auto steps = static_cast<double>(times.size() - std::min(skip, times.size()));
  if (total > 0) summary_.tokens_per_s = tokens_per_step_ * steps / total;
  return std::move(summary_);
}

}  // namespace meshwright::runtime
