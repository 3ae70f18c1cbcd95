#include "runtime/executor.h"

#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>

#include "planner/ir/op_schema.h"
#include "runtime/arena.h"
#include "runtime/initialize.h"
#include "runtime/issue_order.h"
#include "runtime/op_runner.h"
#include "runtime/step_recorder.h"
#include "runtime/stream.h"

namespace meshwright::runtime {
namespace {

using planner::EventId;
using planner::OpKind;
using planner::Scalar;
using planner::StreamId;

/// Everything one rank holds while it runs.
class RankRun {
 public:
  RankRun(const planner::Programs& programs, int rank, Communicator& world,
          const KernelTable& kernels, DataSource& data, const RunOptions& options)
      : programs_(programs),
        rank_(rank),
        world_(world),
        kernels_(kernels),
        data_(data),
        options_(options) {}

  Status SetUp();
  Status RunSteps();
  Result<RunSummary> Finish();

 private:
  Status CheckLocally();
  Status CompareFingerprints();
  Status MakeCommunicators();
  Status MakeMemory();
  void MarkScalarReaders();
  void Issue(int64_t step);
  void IssueBegin(int64_t step);
  void IssueGradientHook(const IssuedOp& before, int64_t step);
  void RunItem(const StreamWork& work);
  Status RunOp(const IssuedOp& op, int64_t step);
  void Fail(const std::string& where, const Status& status);
  ArenaView View(int64_t step) const {
    return {rank_, step, *context_.program, *context_.binding, arena_->data()};
  }

  const planner::Programs& programs_;
  const int rank_;
  Communicator& world_;
  const KernelTable& kernels_;
  DataSource& data_;
  const RunOptions& options_;

  RankContext context_;
  IssueOrder order_;
  std::vector<bool> reads_scalars_;  ///< by op: uses what WriteStepScalars wrote
  bool any_reads_scalars_ = false;
  std::vector<std::unique_ptr<Communicator>> groups_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<StepRecorder> recorder_;
  std::unique_ptr<OpRunner> runner_;
  std::unique_ptr<Shadow> shadow_;
  std::atomic<bool> failed_{false};
  // Items of the streams that are no ops of the program.
  const int begin_item_ = 0;
  const int hook_item_ = 0;
  std::unique_ptr<StreamSet> streams_;  ///< last: its workers use all of the above
};

// Events of our own, behind those of the program.
enum OwnEvent : EventId { kScalarsWritten, kHookDone, kStreamEnd /* + stream */ };

Status RankRun::CheckLocally() {
  const size_t ranks = programs_.ranks.size();
  if (rank_ < 0 || static_cast<size_t>(rank_) >= ranks ||
      static_cast<size_t>(world_.size()) != ranks || world_.rank() != rank_) {
    return InvalidInput(
        fmt::format("the program is for {} ranks, the run has {} (this is rank {}); "
                    "start as many ranks as the plan has",
                    ranks, world_.size(), world_.rank()));
  }
  if (options_.steps < 0) {
    return InvalidInput(fmt::format("{} steps: must be >= 0", options_.steps));
  }
  MW_RETURN_IF_ERROR(CheckLrOptions(options_.lr));
  const planner::RankBinding& binding = programs_.ranks[static_cast<size_t>(rank_)];
  context_.program = &programs_.programs[static_cast<size_t>(binding.program)];
  context_.binding = &binding;
  context_.facts = programs_.facts;
  context_.grid = programs_.modules[static_cast<size_t>(context_.program->module)];
  context_.optimizer = options_.optimizer;
  MW_ASSIGN_OR_RETURN(order_, MakeIssueOrder(*context_.program));
  MW_RETURN_IF_ERROR(OpRunner::CheckKinds(order_, kernels_));
  MarkScalarReaders();
  return Status::Ok();
}

void RankRun::MarkScalarReaders() {
  const int64_t begin =
      context_.program->arena.io + 8 * static_cast<int64_t>(Scalar::kLearningRate);
  const int64_t end = begin + 16;  // learning rate and step number
  for (const IssuedOp& op : order_.ops) {
    bool reads = false;
    for (size_t i = 0; i < op.op->operands.size(); ++i) {
      const ByteRange range = RangeOf(op, i);
      reads = reads || (range.begin < end && range.end > begin);
    }
    reads_scalars_.push_back(reads);
    any_reads_scalars_ = any_reads_scalars_ || reads;
  }
}

Status RankRun::CompareFingerprints() {
  const auto mine = static_cast<int64_t>(planner::Fingerprint(programs_));
  std::vector<int64_t> all(static_cast<size_t>(world_.size()));
  MW_RETURN_IF_ERROR(world_.AllGather(reinterpret_cast<const std::byte*>(&mine),
                                      reinterpret_cast<std::byte*>(all.data()), 1,
                                      planner::DType::kI64));
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    return InvalidInput(fmt::format(
        "rank 0 has program {:016x}, rank {} has {:016x}; start all ranks with the same plan and "
        "the same version",
        static_cast<uint64_t>(all[0]), r, static_cast<uint64_t>(all[r])));
  }
  return Status::Ok();
}

Status RankRun::MakeCommunicators() {
  MW_ASSIGN_OR_RETURN(groups_, CreateGroups(world_, programs_.groups));
  const auto& infos = context_.program->communicators;
  const auto& bound = context_.binding->groups;
  for (size_t i = 0; i < infos.size(); ++i) {
    const bool exists = i < bound.size() && bound[i] >= 0 &&
                        static_cast<size_t>(bound[i]) < groups_.size() &&
                        groups_[static_cast<size_t>(bound[i])] != nullptr;
    if (exists && groups_[static_cast<size_t>(bound[i])]->size() == infos[i].size) continue;
    return Infeasible(
        fmt::format("communicator {} of {} ranks is not bound to a group that has "
                    "rank {} in it; lower the plan again",
                    infos[i].name, infos[i].size, rank_));
  }
  return Status::Ok();
}

Status RankRun::MakeMemory() {
  const int64_t planned = context_.program->arena.size;
  if (options_.arena_bytes > 0 && options_.arena_bytes < planned) {
    return Infeasible(fmt::format("the arena may have {} bytes, the plan needs {}; allow {} more",
                                  options_.arena_bytes, planned, planned - options_.arena_bytes));
  }
  arena_ = std::make_unique<Arena>(planned, options_.shadow ? Arena::kAlignment : 0);
  if (arena_->data() == nullptr) {
    return RunFailed(fmt::format("the machine has no {} bytes for the arena", planned));
  }
  const planner::ArenaLayout& layout = context_.program->arena;
  if (any_reads_scalars_ && layout.io + planner::kScalarBytes > planned) {
    return Infeasible("the io area has no room for the step scalars; lower the plan again");
  }
  InitializeParameters(context_, options_.seed, arena_->data());
  if (options_.shadow) {
    shadow_ = std::make_unique<Shadow>(*context_.program, order_, arena_->data(), arena_->guard(),
                                       options_.steps, rank_, *options_.shadow);
  }
  return Status::Ok();
}

Status RankRun::SetUp() {
  MW_RETURN_IF_ERROR(CheckLocally());
  MW_RETURN_IF_ERROR(CompareFingerprints());
  MW_RETURN_IF_ERROR(MakeCommunicators());
  MW_RETURN_IF_ERROR(MakeMemory());
  std::vector<Communicator*> communicators;
  for (int32_t g : context_.binding->groups) {
    communicators.push_back(groups_[static_cast<size_t>(g)].get());
  }
  recorder_ = std::make_unique<StepRecorder>(programs_, rank_, options_);
  runner_ = std::make_unique<OpRunner>(context_, kernels_, data_, options_, *recorder_,
                                       arena_->data(), std::move(communicators));
  const int events =
      context_.program->events + kStreamEnd + static_cast<int>(order_.streams_used.size());
  streams_ = std::make_unique<StreamSet>(
      order_.streams_used, events, [this](StreamId, const StreamWork& work) { RunItem(work); });
  MW_RETURN_IF_ERROR(world_.Barrier());
  // One origin of time where ranks share a clock: those of one host do.
  const int64_t own = StepRecorder::SteadyNow();
  int64_t origin = own;
  MW_RETURN_IF_ERROR(
      world_.Broadcast(reinterpret_cast<std::byte*>(&origin), 1, planner::DType::kI64, 0));
  constexpr int64_t kSameClockNs = 1'000'000'000;
  recorder_->SetOrigin(std::abs(origin - own) < kSameClockNs ? origin : own);
  return Status::Ok();
}

void RankRun::IssueBegin(int64_t step) {
  const EventId own = context_.program->events;
  if (any_reads_scalars_) {
    // The step before reads the scalars until its last reader on each stream.
    for (size_t s = 0; s < order_.streams_used.size(); ++s) {
      streams_->Wait(planner::kComputeStream, own + kStreamEnd + static_cast<EventId>(s));
    }
    streams_->Launch(planner::kComputeStream, {&begin_item_, step});
    streams_->Record(planner::kComputeStream, own + kScalarsWritten);
  }
}

/// Runs the callback once everything issued so far is done; `before` and its like wait for it.
void RankRun::IssueGradientHook(const IssuedOp& before, int64_t step) {
  const EventId own = context_.program->events;
  const StreamId stream = before.op->stream;
  for (size_t s = 0; s < order_.streams_used.size(); ++s) {
    if (!order_.streams_used[s]) continue;
    const EventId end = own + kStreamEnd + static_cast<EventId>(s);
    streams_->Record(static_cast<StreamId>(s), end);
    streams_->Wait(stream, end);
  }
  streams_->Launch(stream, {&hook_item_, step});
  streams_->Record(stream, own + kHookDone);
}

void RankRun::Issue(int64_t step) {
  const EventId own = context_.program->events;
  bool hook_pending = static_cast<bool>(options_.on_gradients);
  IssueBegin(step);
  for (const IssuedOp& issued : order_.ops) {
    const planner::Op& op = *issued.op;
    const bool optimizer = op.kind == OpKind::kOptimizerStep;
    if (optimizer && hook_pending) {
      IssueGradientHook(issued, step);
      hook_pending = false;
    }
    if (issued.first_of_instance) {
      for (EventId e : issued.instance->waits) streams_->Wait(op.stream, e);
    }
    for (EventId e : op.waits) streams_->Wait(op.stream, e);
    const bool reads_scalars = reads_scalars_[static_cast<size_t>(issued.index)];
    if (reads_scalars) streams_->Wait(op.stream, own + kScalarsWritten);
    if (optimizer && options_.on_gradients) streams_->Wait(op.stream, own + kHookDone);
    streams_->Launch(op.stream, {&issued, step});
    if (op.signal >= 0) streams_->Record(op.stream, op.signal);
    if (issued.last_of_instance) {
      for (EventId e : issued.instance->signals) streams_->Record(op.stream, e);
    }
    if (reads_scalars) streams_->Record(op.stream, own + kStreamEnd + op.stream);
  }
}

Status RankRun::RunSteps() {
  const auto finish = [this](int64_t step) {
    const StepReport report = recorder_->Finish(step);
    if (options_.on_step) options_.on_step(report);
  };
  for (int64_t step = 0; step < options_.steps && !failed_; ++step) {
    recorder_->Begin(step);
    Issue(step);
    streams_->Fence(StepRecorder::kStepsInFlight - 1);
    if (step > 0 && !failed_) finish(step - 1);
  }
  streams_->Synchronize();
  if (options_.steps > 0 && !failed_) finish(options_.steps - 1);
  MW_RETURN_IF_ERROR(world_.abort_reason());
  return world_.Barrier();
}

Result<RunSummary> RankRun::Finish() {
  if (options_.on_finish) options_.on_finish(View(options_.steps));
  RunSummary summary = recorder_->TakeSummary();
  summary.arena_bytes = arena_->size();
  if (shadow_ != nullptr) {
    MW_RETURN_IF_ERROR(shadow_->CheckGuards());
    summary.shadow = shadow_->TakeReport();
  }
  return summary;
}

void RankRun::Fail(const std::string& where, const Status& status) {
  failed_ = true;
  world_.Abort(status.WithContext(where));
  streams_->Cancel();
}

Status RankRun::RunOp(const IssuedOp& op, int64_t step) {
  const int64_t start = recorder_->Now();
  if (shadow_ != nullptr) MW_RETURN_IF_ERROR(shadow_->Before(op, step));
  MW_RETURN_IF_ERROR(runner_->Run(op, step));
  if (shadow_ != nullptr) shadow_->After(op, step);
  recorder_->OnOp(op, step, start, recorder_->Now());
  return Status::Ok();
}

void RankRun::RunItem(const StreamWork& work) {
  const auto where = [&] { return fmt::format("rank {}, step {}", rank_, work.step); };
  try {
    if (work.item == &begin_item_) return runner_->WriteStepScalars(work.step);
    if (work.item == &hook_item_) return options_.on_gradients(View(work.step));
    const auto& op = *static_cast<const IssuedOp*>(work.item);
    const Status status = RunOp(op, work.step);
    if (status.ok()) return;
    Fail(fmt::format("{}, task {} ({}), op {} ({})", where(), op.task, Label(*op.task_ptr),
                     op.index, planner::ToString(op.op->kind)),
         status);
  } catch (const std::exception& e) {
    Fail(where(), RunFailed(fmt::format("exception: {}", e.what())));
  } catch (...) {
    Fail(where(), RunFailed("exception of unknown type"));
  }
}

}  // namespace

Result<RunSummary> Execute(const planner::Programs& programs, int rank, Communicator& world,
                           const KernelTable& kernels, DataSource& data,
                           const RunOptions& options) {
  Status status;
  try {
    RankRun run(programs, rank, world, kernels, data, options);
    status = run.SetUp();
    if (status.ok()) status = run.RunSteps();
    if (status.ok()) {
      Result<RunSummary> summary = run.Finish();
      if (summary.ok()) return summary;
      status = summary.status();
    }
  } catch (const std::exception& e) {  // out of memory, or a hook of the caller
    status = RunFailed(fmt::format("exception: {}", e.what()));
  }
  // The first failure of all ranks is the one that everybody reports.
  world.Abort(status.WithContext(fmt::format("rank {}", rank)));
  return world.abort_reason();
}

}  // namespace meshwright::runtime
