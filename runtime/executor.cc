#include "runtime/executor.h"

#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>

#include "runtime/arena.h"
#include "runtime/initialize.h"
#include "runtime/issue_order.h"
#include "runtime/op_runner.h"
#include "runtime/rank_setup.h"
#include "runtime/step_issuer.h"
#include "runtime/step_recorder.h"
#include "runtime/stream.h"

namespace meshwright::runtime {
namespace {

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
  Status MakeCommunicators();
  Status MakeMemory();
  void RunItem(const StreamWork& work);
  Status RunOp(const IssuedOp& op, int64_t step);
  void Fail(const std::string& where, const Status& status);
  ArenaView View(int64_t step) const {
    return {rank_, step, *setup_.context.program, *setup_.context.binding, arena_->data()};
  }

  const planner::Programs& programs_;
  const int rank_;
  Communicator& world_;
  const KernelTable& kernels_;
  DataSource& data_;
  const RunOptions& options_;

  RankSetup setup_;
  std::unique_ptr<StepIssuer> issuer_;
  std::vector<std::unique_ptr<Communicator>> groups_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<StepRecorder> recorder_;
  std::unique_ptr<OpRunner> runner_;
  std::unique_ptr<Shadow> shadow_;
  std::atomic<bool> failed_{false};
  std::unique_ptr<StreamSet> streams_;  ///< last: its workers use all of the above
};

Status RankRun::MakeCommunicators() {
  MW_ASSIGN_OR_RETURN(groups_, CreateGroups(world_, programs_.groups));
  std::vector<int> sizes;
  for (const auto& group : groups_) sizes.push_back(group == nullptr ? 0 : group->size());
  return CheckGroups(setup_.context, rank_, sizes);
}

Status RankRun::MakeMemory() {
  const planner::RankProgram& program = *setup_.context.program;
  const int64_t planned = program.arena.size;
  arena_ = std::make_unique<Arena>(planned, options_.shadow ? Arena::kAlignment : 0);
  if (arena_->data() == nullptr) {
    return RunFailed(fmt::format("the machine has no {} bytes for the arena", planned));
  }
  InitializeParameters(setup_.context, options_.seed, arena_->data());
  if (options_.shadow) {
    shadow_ = std::make_unique<Shadow>(program, setup_.order, arena_->data(), arena_->guard(),
                                       options_.steps, rank_, *options_.shadow);
  }
  return Status::Ok();
}

Status RankRun::SetUp() {
  MW_ASSIGN_OR_RETURN(setup_, SetUpRank(programs_, rank_, world_, kernels_, options_));
  MW_RETURN_IF_ERROR(CompareFingerprints(programs_, world_));
  MW_RETURN_IF_ERROR(MakeCommunicators());
  MW_RETURN_IF_ERROR(MakeMemory());
  std::vector<Communicator*> communicators;
  for (int32_t g : setup_.context.binding->groups) {
    communicators.push_back(groups_[static_cast<size_t>(g)].get());
  }
  recorder_ = std::make_unique<StepRecorder>(programs_, rank_, options_);
  runner_ = std::make_unique<OpRunner>(setup_.context, kernels_, data_, options_, *recorder_,
                                       arena_->data(), std::move(communicators));
  issuer_ = std::make_unique<StepIssuer>(setup_, static_cast<bool>(options_.on_gradients));
  streams_ =
      std::make_unique<StreamSet>(setup_.order.streams_used, issuer_->events(),
                                  [this](StreamId, const StreamWork& work) { RunItem(work); });
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

Status RankRun::RunSteps() {
  const auto finish = [this](int64_t step) {
    const StepReport report = recorder_->Finish(step);
    if (options_.on_step) options_.on_step(report);
  };
  for (int64_t step = 0; step < options_.steps && !failed_; ++step) {
    recorder_->Begin(step);
    issuer_->Issue(step, *streams_);
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
    if (work.item == issuer_->write_scalars()) return runner_->WriteStepScalars(work.step);
    if (work.item == issuer_->gradient_hook()) return options_.on_gradients(View(work.step));
    const auto& op = *static_cast<const IssuedOp*>(work.item);
    const Status status = RunOp(op, work.step);
    if (status.ok()) return;
    Fail(fmt::format("{}, {}", where(), PlaceOf(op)), status);
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
