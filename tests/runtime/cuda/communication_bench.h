// One rank of communication_rates.
#pragma once

#include <cuda_runtime_api.h>

#include "runtime/cuda/call_timer.h"
#include "runtime/cuda/gpu_memory.h"
#include "runtime/cuda/nccl_world.h"
#include "runtime/store_communicator.h"
#include "tests/runtime/cuda/plain_path.h"

namespace meshwright::runtime::cuda {

/// All of one rank: its GPU, our communicators as in a run and without limits, a plain one.
class RankBench {
 public:
  RankBench() = default;
  ~RankBench() {
    if (plain_ != nullptr) static_cast<void>(ncclCommDestroy(plain_));
    if (plain_stream_ != nullptr) static_cast<void>(cudaStreamDestroy(plain_stream_));
  }
  RankBench(const RankBench&) = delete;
  RankBench& operator=(const RankBench&) = delete;

  Status SetUp(Store& store, int ordinal, int64_t most_bytes) {
    CudaDeviceOptions options;
    options.ordinal = ordinal;
    options.own_workspaces = false;
    MW_ASSIGN_OR_RETURN(device_, CudaDevice::Open(options, {true, true}));
    MW_ASSIGN_OR_RETURN(tracker_, FlightTracker::Create(flights_, kFlights));
    NcclOptions nccl;
    nccl.other_ctas = 0;  // of the groups without limits
    nccl.observer = tracker_.get();
    MW_ASSIGN_OR_RETURN(world_, NcclWorld::Create(store, nccl, ordinal));
    MW_RETURN_IF_ERROR(MakeGroups(store.world(), most_bytes));
    MW_RETURN_IF_ERROR(MakePlain(store));
    arena_bytes_ = ArenaBytes(most_bytes);
    MW_RETURN_IF_ERROR(arena_.Allocate(arena_bytes_));
    MW_CUDA_CALL(cudaMemset(arena_.data(), 0, static_cast<size_t>(arena_bytes_)));
    MW_CUDA_CALL(cudaDeviceSynchronize());
    MW_RETURN_IF_ERROR(ConnectPeers(store));
    return timer_.Create();
  }

  bool TakesPart(const RateCase& c) const { return !c.message() || world_->rank() < 2; }
  Result<std::unique_ptr<Path>> Ours(const RateCase& c, bool limited) {
    const size_t group = c.message() ? (limited ? kEdge : kFreeEdge)
                         : !limited  ? kFree
                         : c.traffic == planner::CommunicatorKind::kTensor ? kTensor
                                                                           : kData;
    if (limited && copies_ != nullptr && copies_->channel(group) != nullptr) {
      MW_RETURN_IF_ERROR(
          FollowRate(*copies_->channel(group), c, std::nullopt, *world_->group(group), arena_bytes_)
              .status());
    }
    MW_ASSIGN_OR_RETURN(std::unique_ptr<Path> path,
                        ExecutorPath::Make(c, *device_, *tracker_, *world_->group(group),
                                           arena_.data(), arena_bytes_));
    return path;
  }
  std::unique_ptr<Path> Plain(const RateCase& c) {
    return std::make_unique<PlainPath>(c, plain_, world_->rank(), world_->size(), plain_stream_,
                                       arena_.data(), arena_bytes_);
  }

  Result<double> Time(Path& path, const RateCase& c, Issue issue) {
    MW_ASSIGN_OR_RETURN(const double us, timer_.Time(path, c.calls, issue));
    // The watchdog of a run does so every 0.1 s; it gives back the events of what is done.
    static_cast<void>(tracker_->Poll());
    return us;
  }

  Status Close() {
    MW_RETURN_IF_ERROR(world_->CheckAsync());
    MW_RETURN_IF_ERROR(world_->Close());
    copies_.reset();
    return communicator_->Barrier();  // nobody has the arena mapped that is freed next
  }

 private:
  enum : int32_t { kTensor, kData, kEdge, kFree, kFreeEdge };
  static constexpr size_t kFlights = 4096;  // as in a run

  Status MakeGroups(int ranks, int64_t most_bytes) {
    using planner::CommunicatorKind;
    using planner::OpKind;
    std::vector<int32_t> all;
    for (int r = 0; r < ranks; ++r) all.push_back(r);
    constexpr auto kBf16 = planner::DType::kBf16;
    const std::vector<GroupUse> collectives = {{OpKind::kAllReduce, kBf16, most_bytes},
                                               {OpKind::kAllGather, kBf16, most_bytes},
                                               {OpKind::kReduceScatter, kBf16, most_bytes}};
    const std::vector<GroupUse> messages = {{OpKind::kSend, kBf16, most_bytes}};
    groups_ = {{"tensor", CommunicatorKind::kTensor, all},
               {"data", CommunicatorKind::kData, all},
               {"edge 0>1", CommunicatorKind::kEdge, {0, 1}},
               {"no limit", CommunicatorKind::kWorld, all},
               {"edge 0>1, no limit", CommunicatorKind::kWorld, {0, 1}}};
    return world_->MakeGroups(groups_, {collectives, collectives, messages, collectives, messages});
  }

  /// As a run does for pairs.
  Status ConnectPeers(Store& store) {
    communicator_ = MakeStoreWorld(store, {});
    MW_ASSIGN_OR_RETURN(copies_, ConnectForRates(*communicator_, groups_, {kTensor, kData, kEdge},
                                                 *device_, arena_.data()));
    for (const size_t g : {kTensor, kData, kEdge}) {
      if (copies_ != nullptr) world_->group(g)->UsePeerChannel(copies_->channel(g));  // or none
    }
    return Status::Ok();
  }

  /// As the plainest program makes its communicator and stream.
  Status MakePlain(Store& store) {
    constexpr char kKey[] = "communication_rates/id";
    constexpr char kWhat[] = "plain communicator";
    ncclUniqueId id;
    if (store.rank() == 0) {
      MW_RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&id), "ncclGetUniqueId", kWhat, nullptr));
      MW_RETURN_IF_ERROR(store.Set(kKey, std::string(id.internal, sizeof(id.internal))));
    }
    MW_ASSIGN_OR_RETURN(const std::string text, store.Get(kKey, 60.0));
    text.copy(id.internal, sizeof(id.internal));
    MW_RETURN_IF_ERROR(NcclStatus(ncclCommInitRank(&plain_, store.world(), id, store.rank()),
                                  "ncclCommInitRank", kWhat, nullptr));
    MW_CUDA_CALL(cudaStreamCreate(&plain_stream_));
    return Status::Ok();
  }

  FlightRecorder flights_{kFlights};
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<FlightTracker> tracker_;
  std::unique_ptr<NcclWorld> world_;
  std::vector<planner::Group> groups_;
  std::unique_ptr<Communicator> communicator_;
  ncclComm_t plain_ = nullptr;
  cudaStream_t plain_stream_ = nullptr;
  DeviceMemory arena_;
  int64_t arena_bytes_ = 0;
  std::unique_ptr<PeerCopies> copies_;
  CallTimer timer_;
};

}  // namespace meshwright::runtime::cuda
