// A run of the same collective or message on a stream, as the executor puts it there.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/cuda/communicate.h"
#include "runtime/cuda/communication_cases.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/device_communicator.h"
#include "runtime/cuda/flight_tracker.h"
#include "runtime/cuda/gpu_streams.h"
#include "runtime/cuda/peer_copies.h"
#include "runtime/cuda/task_ranges.h"
#include "runtime/cuda/task_timer.h"
#include "runtime/rank_setup.h"
#include "runtime/step_issuer.h"

namespace meshwright::runtime::cuda {

/// `calls` operations in a row on one stream.
class Path {
 public:
  virtual ~Path() = default;
  virtual cudaStream_t stream() const = 0;
  virtual Status Issue() = 0;
};

/// Channels of `peers` among `groups` that have all ranks as members, or 0 and 1; what they carry
/// is said by FollowRate. Called by all ranks, as PeerCopies::Connect.
inline Result<std::unique_ptr<PeerCopies>> ConnectForRates(Communicator& world,
                                                           std::vector<planner::Group> groups,
                                                           const std::vector<int32_t>& peers,
                                                           const CudaDevice& device,
                                                           std::byte* arena) {
  planner::Programs programs;
  programs.groups = std::move(groups);
  for (size_t g = 0; g < programs.groups.size(); ++g) {
    const bool keeps =
        std::find(peers.begin(), peers.end(), static_cast<int32_t>(g)) != peers.end();
    if (!keeps) programs.groups[g].ranks.clear();
  }
  programs.programs.resize(1);
  programs.ranks.resize(static_cast<size_t>(world.size()));
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    for (const int32_t g : peers) {
      const auto& members = programs.groups[static_cast<size_t>(g)].ranks;
      if (r < members.size()) programs.ranks[r].groups.push_back(g);
    }
  }
  PeerCopyOptions options;
  options.idle = true;
  return PeerCopies::Connect(world, programs, device.ordinal(), arena, options);
}

/// `channel` of `group` expects the operations of `c` from now on, `moves` as of
/// planner::PeerCarrierOf; the count of those that it takes.
inline Result<int> FollowRate(PeerChannel& channel, const RateCase& c,
                              std::optional<planner::PeerCarrier> moves,
                              const DeviceCommunicator& group, int64_t arena_bytes) {
  const auto program = [&](int rank) {
    return RateProgram(c, rank, {group.name(), group.kind(), 2}, arena_bytes);
  };
  const planner::RankProgram programs[] = {program(0), program(1)};
  const PeerSide members[] = {{&programs[0], 0}, {&programs[1], 0}};
  const PeerRoutes routes{group.kind(), 2, moves};
  MW_ASSIGN_OR_RETURN(auto ops, PeerOps(members, static_cast<size_t>(group.rank()), routes));
  if (!ops) return RunFailed("the ranks of a pair do not do the same");
  const auto count = static_cast<int>(ops->size());
  channel.Follow(*std::move(ops), routes);
  return count;
}

/// The operations as ops of a program: the executor's walk over the task list, its event waits and
/// records, its timer of tasks, the flight tracker, and our communicator. Tensor traffic lies
/// within one task, other traffic is a task each.
class ExecutorPath final : public Path {
 public:
  static Result<std::unique_ptr<ExecutorPath>> Make(const RateCase& c, CudaDevice& device,
                                                    FlightTracker& tracker,
                                                    DeviceCommunicator& communicator,
                                                    std::byte* arena, int64_t arena_bytes) {
    std::unique_ptr<ExecutorPath> path(new ExecutorPath(device, tracker, communicator, arena));
    MW_RETURN_IF_ERROR(path->SetUp(c, arena_bytes));
    return path;
  }

  cudaStream_t stream() const override { return device_.stream(kRateStream); }

  Status Issue() override {
    issuer_->Issue(step_, *streams_);
    ranges_.End();
    ++step_;
    return streams_->status();
  }

 private:
  ExecutorPath(CudaDevice& device, FlightTracker& tracker, DeviceCommunicator& communicator,
               std::byte* arena)
      : device_(device), tracker_(tracker), communicator_(communicator), arena_(arena) {}

  Status SetUp(const RateCase& c, int64_t arena_bytes) {
    program_ = RateProgram(c, communicator_.rank(),
                           {communicator_.name(), communicator_.kind(), communicator_.size()},
                           arena_bytes);
    setup_.context.program = &program_;
    setup_.context.binding = &binding_;
    setup_.context.device = &device_;
    MW_ASSIGN_OR_RETURN(setup_.order, MakeIssueOrder(program_));
    setup_.reads_scalars.assign(setup_.order.ops.size(), false);
    MW_RETURN_IF_ERROR(timer_.Create(setup_, device_, false));
    issuer_ = std::make_unique<StepIssuer>(setup_, false);
    streams_ = std::make_unique<GpuStreams>(
        device_, [this](planner::StreamId, const StreamWork& work) { return Enqueue(work); });
    MW_RETURN_IF_ERROR(streams_->Create(issuer_->events()));
    streams_->Record(planner::kComputeStream, kRateComputed);
    return streams_->status();
  }

  /// As a GPU rank's run does with its ops.
  Status Enqueue(const StreamWork& work) {
    const auto& op = *static_cast<const IssuedOp*>(work.item);
    ranges_.Enter(op.task, *op.task_ptr);
    MW_RETURN_IF_ERROR(timer_.Before(op, work.step));
    tracker_.SetPlace(work.step, op.index);
    const OpCall call{setup_.context, *op.block, *op.op, *op.instance, *op.task_ptr, arena_};
    MW_RETURN_IF_ERROR(Communicate(call, communicator_, device_.stream(op.op->stream)));
    return timer_.After(op, work.step);
  }

  CudaDevice& device_;
  FlightTracker& tracker_;
  DeviceCommunicator& communicator_;
  std::byte* const arena_;
  planner::RankProgram program_;
  planner::RankBinding binding_;
  RankSetup setup_;
  TaskTimer timer_;
  TaskRanges ranges_;
  std::unique_ptr<StepIssuer> issuer_;
  std::unique_ptr<GpuStreams> streams_;
  int64_t step_ = 0;
};

}  // namespace meshwright::runtime::cuda
