#include "runtime/gpu_run.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "planner/ir/op_schema.h"
#include "runtime/cuda/communicate.h"
#include "runtime/cuda/compute_graphs.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/flight_tracker.h"
#include "runtime/cuda/gemm.h"
#include "runtime/cuda/gpu_memory.h"
#include "runtime/cuda/gpu_streams.h"
#include "runtime/cuda/host_lanes.h"
#include "runtime/cuda/initialize_cuda.h"
#include "runtime/cuda/measure_own_limit.h"
#include "runtime/cuda/nccl_world.h"
#include "runtime/cuda/op_timer.h"
#include "runtime/cuda/peer_copies.h"
#include "runtime/cuda/prepare_kernels.h"
#include "runtime/cuda/step_tables.h"
#include "runtime/cuda/task_ranges.h"
#include "runtime/cuda/task_timer.h"
#include "runtime/cuda/watch_rank.h"
#include "runtime/micro_batch.h"
#include "runtime/rank_setup.h"
#include "runtime/step_issuer.h"
#include "runtime/watchdog.h"

namespace meshwright::runtime {
namespace cuda {
namespace {

using planner::OpKind;
using planner::StreamId;

constexpr int64_t kLanes = StepRecorder::kStepsInFlight;

/// Everything one GPU rank holds while it runs.
class GpuRun {
 public:
  GpuRun(const planner::Programs& programs, Store& store, Communicator& world, DataSource& data,
         const RunOptions& options, const GpuOptions& gpu)
      : programs_(programs),
        rank_(world.rank()),
        store_(store),
        world_(world),
        data_(data),
        options_(options),
        gpu_(gpu),
        flights_(kFlightRecords) {}

  Status SetUp();
  Status RunSteps();
  Result<RunSummary> Finish();
  /// The reason of the run's end as all ranks see it, once this rank has found `own`.
  Status Fail(const Status& own);

 private:
  static constexpr size_t kFlightRecords = 4096;
  static constexpr size_t kFlightsInFlight = 4096;

  Status OpenDevice();
  Status MakeCommunicators();
  Status MakeMemory();
  Status ConnectPeers();
  Status Enqueue(StreamId stream, const StreamWork& work);
  Status EnqueueOp(const IssuedOp& op, int64_t step);
  Status Load(const OpCall& call, const IssuedOp& op, int64_t step);
  Status ReadBack(const OpCall& call, int64_t step);
  Status WriteScalars(int64_t step);
  Status Communicate(const OpCall& call, const IssuedOp& op, int64_t step);
  Status ShowArena(const std::function<void(const ArenaView&)>& show, int64_t step);
  Status Await(int64_t step);
  Status FinishStep(int64_t step);
  OpCall CallOf(const IssuedOp& op) const {
    return {setup_.context, *op.block, *op.op, *op.instance, *op.task_ptr, arena_.data()};
  }

  const planner::Programs& programs_;
  const int rank_;
  Store& store_;
  Communicator& world_;
  DataSource& data_;
  const RunOptions& options_;
  const GpuOptions& gpu_;

  RankSetup setup_;
  FlightRecorder flights_;
  std::unique_ptr<FlightTracker> tracker_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<NcclWorld> nccl_;
  DeviceMemory arena_;
  std::unique_ptr<PeerCopies> copies_;  ///< nullptr: NCCL carries everything
  HostLanes lanes_;
  std::vector<int32_t> ids_;
  TaskTimer timer_;
  OpTimer op_timer_;
  ComputeGraphs graphs_;
  TaskRanges ranges_;
  std::unique_ptr<StepIssuer> issuer_;
  std::unique_ptr<GpuStreams> streams_;
  std::unique_ptr<StepRecorder> recorder_;
  std::unique_ptr<Watchdog> watchdog_;  ///< last: its threads use the above
  int64_t library_bytes_ = 0, nccl_bytes_ = 0;
};

Status GpuRun::OpenDevice() {
  const planner::ArenaLayout& layout = setup_.context.program->arena;
  MW_CUDA_CALL(cudaSetDevice(gpu_.device));
  CudaDeviceOptions options;
  options.ordinal = gpu_.device;
  options.deterministic = gpu_.deterministic;
  options.workspace_bytes = layout.workspace_bytes;
  options.own_workspaces = false;
  options.tuning_file = gpu_.tuning_file;
  MW_ASSIGN_OR_RETURN(device_, CudaDevice::Open(options, setup_.order.streams_used));
  setup_.context.device = device_.get();
  return Status::Ok();
}

Status GpuRun::MakeCommunicators() {
  NcclOptions nccl;
  nccl.deadline_s = options_.deadline_s;
  nccl.tensor_ctas = gpu_.tensor_ctas;
  nccl.data_ctas = gpu_.data_ctas;
  nccl.edge_ctas = gpu_.edge_ctas;
  nccl.share_devices = gpu_.share_devices;
  MW_ASSIGN_OR_RETURN(tracker_, FlightTracker::Create(flights_, kFlightsInFlight));
  nccl.observer = tracker_.get();
  MW_ASSIGN_OR_RETURN(const int64_t before, UsedBytes());
  MW_ASSIGN_OR_RETURN(nccl_, NcclWorld::Create(store_, nccl, gpu_.device));
  const auto channel = [&](size_t g) { return copies_ ? copies_->channel(g) : nullptr; };
  const auto by_nccl = [&](size_t g, const GroupUse& use) {
    return channel(g) == nullptr || !channel(g)->Takes(use.kind, use.bytes, use.dtype);
  };
  MW_RETURN_IF_ERROR(nccl_->MakeGroups(programs_.groups, UsesOfGroups(programs_, by_nccl)));
  for (size_t g = 0; g < programs_.groups.size(); ++g) {
    if (channel(g) != nullptr) nccl_->group(g)->UsePeerChannel(channel(g));
  }
  MW_ASSIGN_OR_RETURN(const int64_t after, UsedBytes());
  nccl_bytes_ = after - before;
  std::vector<int> sizes;
  for (size_t g = 0; g < programs_.groups.size(); ++g) {
    const DeviceCommunicator* group = nccl_->group(g);
    sizes.push_back(group == nullptr ? 0 : group->size());
  }
  return CheckGroups(setup_.context, rank_, sizes);
}

Status GpuRun::MakeMemory() {
  const planner::ArenaLayout& layout = setup_.context.program->arena;
  MW_ASSIGN_OR_RETURN(library_bytes_, UsedBytes());
  size_t free = 0, total = 0;
  MW_CUDA_CALL(cudaMemGetInfo(&free, &total));
  if (static_cast<size_t>(layout.size) > free) {
    return Infeasible(
        fmt::format("the arena needs {} bytes, GPU {} has {} free of {}; end other programs on it, "
                    "or plan with less memory (recomputation, micro-batch, more GPUs)",
                    layout.size, gpu_.device, free, total));
  }
  MW_RETURN_IF_ERROR(arena_.Allocate(layout.size));
  const cudaStream_t compute = device_->stream(planner::kComputeStream);
  MW_CUDA_CALL(cudaMemsetAsync(arena_.data(), 0, static_cast<size_t>(layout.size), compute));
  device_->BindWorkspace(planner::kComputeStream, arena_.data() + layout.workspace);
  MW_RETURN_IF_ERROR(InitializeOnGpu(setup_.context, options_.seed, arena_.data(), compute));
  MW_CUDA_CALL(cudaDeviceSynchronize());
  return Status::Ok();
}

Status GpuRun::ConnectPeers() {
  if (!gpu_.peer_copies.any() || world_.size() == 1) return Status::Ok();
  MW_ASSIGN_OR_RETURN(copies_, PeerCopies::Connect(world_, programs_, gpu_.device, arena_.data(),
                                                   gpu_.peer_copies));
  return Status::Ok();
}

Status GpuRun::SetUp() {
  MW_ASSIGN_OR_RETURN(setup_, SetUpRank(programs_, rank_, world_, CudaKernels(), options_));
  MW_RETURN_IF_ERROR(CompareFingerprints(programs_, world_));
  MW_RETURN_IF_ERROR(OpenDevice());
  device_->gemm().set_tune(gpu_.tune);
  MW_RETURN_IF_ERROR(PrepareKernels(programs_, setup_, store_, *device_));
  MW_RETURN_IF_ERROR(MakeMemory());
  MW_RETURN_IF_ERROR(ConnectPeers());
  MW_RETURN_IF_ERROR(MakeCommunicators());
  MW_RETURN_IF_ERROR(lanes_.Create(setup_, kLanes));
  recorder_ = std::make_unique<StepRecorder>(programs_, rank_, options_);
  MW_RETURN_IF_ERROR(timer_.Create(setup_, *device_, options_.trace));
  if (options_.steps > 0 && (gpu_.time_ops || options_.trace_ops)) {
    const int64_t first = options_.trace_ops ? FirstTracedStep(options_) : options_.steps - 1;
    MW_RETURN_IF_ERROR(op_timer_.Create(setup_, *device_, first, options_.steps));
  }
  issuer_ = std::make_unique<StepIssuer>(setup_, static_cast<bool>(options_.on_gradients));
  streams_ = std::make_unique<GpuStreams>(
      *device_, [this](StreamId s, const StreamWork& work) { return Enqueue(s, work); });
  MW_RETURN_IF_ERROR(streams_->Create(issuer_->events()));
  if (world_.size() > 1) {
    const WatchedRank rank = {programs_, setup_, *tracker_, *nccl_, copies_};
    MW_ASSIGN_OR_RETURN(
        watchdog_, StartWatchdog(rank, store_, flights_, options_.deadline_s, gpu_.flight_record));
  }
  MW_RETURN_IF_ERROR(world_.Barrier());
  const int64_t own = StepRecorder::SteadyNow();
  int64_t origin = own;
  MW_RETURN_IF_ERROR(
      world_.Broadcast(reinterpret_cast<std::byte*>(&origin), 1, planner::DType::kI64, 0));
  constexpr int64_t kSameClockNs = 1'000'000'000;
  recorder_->SetOrigin(std::abs(origin - own) < kSameClockNs ? origin : own);
  return timer_.SetOrigin(recorder_->Now());
}

Status GpuRun::Enqueue(StreamId stream, const StreamWork& work) {
  if (work.item == issuer_->write_scalars()) return WriteScalars(work.step);
  if (work.item == issuer_->gradient_hook()) {
    // Everything before is on the streams that `stream` waits for.
    MW_CUDA_CALL(cudaStreamSynchronize(device_->stream(stream)));
    return ShowArena(options_.on_gradients, work.step);
  }
  const auto& op = *static_cast<const IssuedOp*>(work.item);
  ranges_.Enter(op.task, *op.task_ptr);
  const auto run = [&]() -> Status {
    MW_RETURN_IF_ERROR(timer_.Before(op, work.step));
    MW_RETURN_IF_ERROR(op_timer_.Before(op, work.step));
    const auto enqueue = [&] { return EnqueueOp(op, work.step); };
    MW_RETURN_IF_ERROR(
        op_timer_.times(work.step) ? enqueue() : graphs_.Put(op, device_->stream(stream), enqueue));
    MW_RETURN_IF_ERROR(op_timer_.After(op, work.step));
    return timer_.After(op, work.step);
  };
  const Status status = run();
  if (status.ok()) return status;
  return status.WithContext(fmt::format("rank {}, step {}, {}", rank_, work.step, PlaceOf(op)));
}

Status GpuRun::EnqueueOp(const IssuedOp& op, int64_t step) {
  const OpCall call = CallOf(op);
  const OpKind kind = op.op->kind;
  if (kind == OpKind::kLoadTokens || kind == OpKind::kLoadLabels) return Load(call, op, step);
  if (kind == OpKind::kReadBack) return ReadBack(call, step);
  if (planner::IsCollective(kind) || planner::IsMessage(kind)) return Communicate(call, op, step);
  return CudaKernels().kernels[static_cast<size_t>(kind)](call);
}

Status GpuRun::WriteScalars(int64_t step) {
  std::byte* to = arena_.data() + setup_.context.program->arena.io +
                  8 * static_cast<int64_t>(planner::Scalar::kLearningRate);
  return lanes_.WriteScalars(step, LearningRate(options_.lr, step + 1), to,
                             device_->stream(planner::kComputeStream));
}

Status GpuRun::Load(const OpCall& call, const IssuedOp& op, int64_t step) {
  int32_t* const ids = lanes_.Ids(op.index, step);
  MW_RETURN_IF_ERROR(ReadMicroBatch(call, step, data_, options_, &ids_, ids));
  MW_CUDA_CALL(cudaMemcpyAsync(call.Address(0), ids, static_cast<size_t>(call.View(0)->bytes()),
                               cudaMemcpyHostToDevice, device_->stream(op.op->stream)));
  return Status::Ok();
}

Status GpuRun::ReadBack(const OpCall& call, int64_t step) {
  return lanes_.ReadBack(step, call.Address(0), device_->stream(call.op.stream));
}

Status GpuRun::Communicate(const OpCall& call, const IssuedOp& op, int64_t step) {
  const auto communicator = static_cast<size_t>(call.op.attributes.communicator);
  const int32_t group = setup_.context.binding->groups[communicator];
  tracker_->SetPlace(step, op.index);
  return cuda::Communicate(call, *nccl_->group(static_cast<size_t>(group)),
                           device_->stream(call.op.stream));
}

Status GpuRun::ShowArena(const std::function<void(const ArenaView&)>& show, int64_t step) {
  const planner::RankProgram& program = *setup_.context.program;
  std::vector<std::byte> copy(static_cast<size_t>(program.arena.size));
  MW_CUDA_CALL(cudaDeviceSynchronize());
  MW_CUDA_CALL(cudaMemcpy(copy.data(), arena_.data(), copy.size(), cudaMemcpyDeviceToHost));
  show({rank_, step, program, *setup_.context.binding, copy.data()});
  return Status::Ok();
}

Status GpuRun::Await(int64_t step) {
  constexpr std::chrono::microseconds kPause{50};
  for (;;) {
    MW_ASSIGN_OR_RETURN(const bool done, timer_.Done(step));
    if (done) return Status::Ok();
    if (watchdog_ != nullptr) MW_RETURN_IF_ERROR(watchdog_->failure());
    std::this_thread::sleep_for(kPause);
  }
}

Status GpuRun::FinishStep(int64_t step) {
  MW_RETURN_IF_ERROR(Await(step));
  MW_RETURN_IF_ERROR(timer_.Report(step, *recorder_));
  if (op_timer_.ends(step)) MW_RETURN_IF_ERROR(op_timer_.ReportTimes(*recorder_));
  if (const auto statistics = lanes_.TakeStatistics(step)) {
    recorder_->OnReadBack(step, statistics->loss_sum / statistics->tokens,
                          std::sqrt(statistics->squared_norm));
  }
  const StepReport report = recorder_->Finish(step);
  // Every kernel has run: the next step to be issued is captured.
  if (gpu_.graphs && step == 0) graphs_.Use(setup_);
  if (options_.on_step) options_.on_step(report);
  return Status::Ok();
}

Status GpuRun::RunSteps() {
  for (int64_t step = 0; step < options_.steps; ++step) {
    recorder_->Begin(step);
    issuer_->Issue(step, *streams_);
    MW_RETURN_IF_ERROR(streams_->status());
    ranges_.End();
    MW_RETURN_IF_ERROR(timer_.EndStep(step));
    if (step > 0) MW_RETURN_IF_ERROR(FinishStep(step - 1));
  }
  if (options_.steps > 0) MW_RETURN_IF_ERROR(FinishStep(options_.steps - 1));
  return world_.Barrier();
}

Result<RunSummary> GpuRun::Finish() {
  if (options_.on_finish) MW_RETURN_IF_ERROR(ShowArena(options_.on_finish, options_.steps));
  RunSummary summary = recorder_->TakeSummary();
  summary.arena_bytes = setup_.context.program->arena.size;
  MW_ASSIGN_OR_RETURN(summary.device_bytes, UsedBytes());
  summary.library_bytes = library_bytes_;
  summary.nccl_bytes = nccl_bytes_;
  if (watchdog_ != nullptr) MW_RETURN_IF_ERROR(watchdog_->Stop());
  MW_RETURN_IF_ERROR(nccl_->Close());
  copies_.reset();
  // Memory that the other rank has mapped stays until it has let go.
  MW_RETURN_IF_ERROR(world_.Barrier());
  if (gpu_.time_ops && op_timer_.ends(options_.steps - 1)) {
    MW_ASSIGN_OR_RETURN(summary.op_times, op_timer_.Report());
  }
  // Last of all: it overwrites the arena.
  if (gpu_.tune) {
    MW_ASSIGN_OR_RETURN(summary.limit, MeasureOwnLimit(setup_, *device_, arena_.data()));
  }
  return summary;
}

Status GpuRun::Fail(const Status& own) {
  if (watchdog_ == nullptr) {
    world_.Abort(own);
    return world_.abort_reason();
  }
  watchdog_->Fail(own);
  watchdog_->WaitForFailure(options_.deadline_s);
  return watchdog_->failure();
}

}  // namespace
}  // namespace cuda

Result<RunSummary> ExecuteOnGpu(const planner::Programs& programs, Store& store,
                                Communicator& world, DataSource& data, const RunOptions& options,
                                const GpuOptions& gpu) {
  if (options.shadow) return Unsupported("the shadow executor is for CPU ranks");
  cuda::AskForHardwareQueues();
  cuda::GpuRun run(programs, store, world, data, options, gpu);
  Status status = run.SetUp();
  if (status.ok()) status = run.RunSteps();
  if (status.ok()) {
    Result<RunSummary> summary = run.Finish();
    if (summary.ok()) return summary;
    status = summary.status();
  }
  return run.Fail(status.WithContext(fmt::format("rank {}", world.rank())));
}

}  // namespace meshwright::runtime
