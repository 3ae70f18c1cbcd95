#include "runtime/cuda/communication_rank.h"

#include <utility>

#include "runtime/cuda/communication_cases.h"
#include "runtime/gpu_run.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::CommunicatorKind;
using planner::OpKind;

/// In the list of groups; the last two only where the host has more than two GPUs.
enum : int32_t {
  kPairTensor,
  kPairData,
  kPairEdge,
  kPeersTensor,
  kPeersData,
  kPeersEdge,
  kAllTensor,
  kAllData
};

size_t GroupOf(const CommunicationCase& c) {
  const bool nccl = c.carrier == planner::PeerCarrier::kNccl;
  if (c.traffic == CommunicatorKind::kEdge) return nccl ? kPairEdge : kPeersEdge;
  const bool tensor = c.traffic == CommunicatorKind::kTensor;
  if (!nccl) return tensor ? kPeersTensor : kPeersData;
  if (c.ranks == 2) return tensor ? kPairTensor : kPairData;
  return tensor ? kAllTensor : kAllData;
}

/// In a row: a few milliseconds of the large ones, and two runs of the small ones below the 1024
/// pieces of work that the driver queues on a stream.
int CallsOf(int64_t bytes) {
  if (bytes <= (1 << 20)) return 24;
  return bytes <= (16 << 20) ? 10 : 4;
}

}  // namespace

CommunicationRank::~CommunicationRank() {
  for (cudaEvent_t event : {met_, done_}) {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
  }
}

Status CommunicationRank::SetUp(Store& store, Communicator& world, int ordinal,
                                int64_t most_bytes) {
  CudaDeviceOptions options;
  options.ordinal = ordinal;
  MW_ASSIGN_OR_RETURN(device_, CudaDevice::Open(options, {true, true}));
  MW_ASSIGN_OR_RETURN(tracker_, FlightTracker::Create(flights_, kFlights));
  const GpuOptions limits;
  NcclOptions nccl;
  nccl.tensor_ctas = limits.tensor_ctas;
  nccl.data_ctas = limits.data_ctas;
  nccl.edge_ctas = limits.edge_ctas;
  nccl.observer = tracker_.get();
  MW_ASSIGN_OR_RETURN(world_, NcclWorld::Create(store, nccl, ordinal));
  MW_RETURN_IF_ERROR(MakeGroups(most_bytes));
  arena_bytes_ = ArenaBytes(most_bytes);
  MW_RETURN_IF_ERROR(arena_.Allocate(arena_bytes_));
  MW_CUDA_CALL(cudaMemset(arena_.data(), 0, static_cast<size_t>(arena_bytes_)));
  MW_CUDA_CALL(cudaDeviceSynchronize());
  MW_RETURN_IF_ERROR(ConnectPeers(world));
  MW_ASSIGN_OR_RETURN(load_, ProductLoad::Create(*device_));
  MW_CUDA_CALL(cudaEventCreate(&met_));
  MW_CUDA_CALL(cudaEventCreate(&done_));
  return timer_.Create();
}

Status CommunicationRank::MakeGroups(int64_t most_bytes) {
  constexpr auto kBf16 = planner::DType::kBf16;
  const std::vector<GroupUse> collectives = {{OpKind::kAllReduce, kBf16, most_bytes},
                                             {OpKind::kAllGather, kBf16, most_bytes},
                                             {OpKind::kReduceScatter, kBf16, most_bytes}};
  const std::vector<GroupUse> messages = {{OpKind::kSend, kBf16, most_bytes}};
  const std::vector<int32_t> pair = {0, 1};
  groups_ = {{"tensor of 2", CommunicatorKind::kTensor, pair},
             {"data of 2", CommunicatorKind::kData, pair},
             {"edge 0>1", CommunicatorKind::kEdge, pair},
             {"tensor without NCCL", CommunicatorKind::kTensor, pair},
             {"data without NCCL", CommunicatorKind::kData, pair},
             {"edge without NCCL", CommunicatorKind::kEdge, pair}};
  // NCCL carries nothing of the last three.
  std::vector<std::vector<GroupUse>> uses = {collectives, collectives, messages, {}, {}, {}};
  if (world_->size() > 2) {
    std::vector<int32_t> all;
    for (int r = 0; r < world_->size(); ++r) all.push_back(r);
    groups_.push_back({"tensor of all", CommunicatorKind::kTensor, all});
    groups_.push_back({"data of all", CommunicatorKind::kData, all});
    uses.resize(groups_.size(), collectives);
  }
  return world_->MakeGroups(groups_, uses);
}

Status CommunicationRank::ConnectPeers(Communicator& world) {
  MW_ASSIGN_OR_RETURN(
      copies_, ConnectForRates(world, groups_, {kPeersTensor, kPeersData, kPeersEdge}, *device_,
                               arena_.data()));
  for (const size_t g : {kPeersTensor, kPeersData, kPeersEdge}) {
    if (peers()) world_->group(g)->UsePeerChannel(copies_->channel(g));
  }
  return Status::Ok();
}

Result<std::unique_ptr<Path>> CommunicationRank::PathOf(const CommunicationCase& c, int calls) {
  const RateCase rate{c.kind, c.traffic, c.bytes, calls};
  DeviceCommunicator& group = *world_->group(GroupOf(c));
  if (c.carrier != planner::PeerCarrier::kNccl) {
    if (!peers()) return RunFailed("the pair does not reach each other's memory");
    MW_ASSIGN_OR_RETURN(const int taken, FollowRate(*copies_->channel(GroupOf(c)), rate, c.carrier,
                                                    group, arena_bytes_));
    // Else NCCL would carry it, under another name.
    if (taken == 0) return RunFailed("only NCCL takes it");
  }
  MW_ASSIGN_OR_RETURN(
      std::unique_ptr<Path> path,
      ExecutorPath::Make(rate, *device_, *tracker_, group, arena_.data(), arena_bytes_));
  return path;
}

Result<std::vector<double>> CommunicationRank::Time(const CommunicationCase& c, int rounds) {
  std::vector<double> seconds(static_cast<size_t>(rounds));
  if (!TakesPart(c)) return seconds;
  const int calls = CallsOf(c.bytes);
  // A copy, its counters and events are some ten calls of the driver.
  const int calls_a_delay = c.carrier == planner::PeerCarrier::kCopyEngines ? 2 : 8;
  MW_ASSIGN_OR_RETURN(const auto path, PathOf(c, calls));
  for (int round = -1; round < rounds; ++round) {  // the first is a warm-up
    MW_ASSIGN_OR_RETURN(const double us, timer_.Time(*path, calls, Issue::kQueued, calls_a_delay));
    if (round >= 0) seconds[static_cast<size_t>(round)] = us * 1e-6;
    // The watchdog of a run does so every 0.1 s; it gives back the events of what is done.
    static_cast<void>(tracker_->Poll());
  }
  return seconds;
}

Result<CommunicationRank::Beside> CommunicationRank::TimeBeside(const CommunicationCase& c,
                                                                int calls) {
  Beside times;
  times.covered = true;
  if (!TakesPart(c)) return times;
  MW_ASSIGN_OR_RETURN(const auto meeting, PathOf(c, 1));
  MW_ASSIGN_OR_RETURN(const auto path, PathOf(c, calls));
  MW_RETURN_IF_ERROR(load_->Issue());  // the clock settles
  MW_RETURN_IF_ERROR(load_->Issue());
  MW_ASSIGN_OR_RETURN(times.alone_s, load_->Seconds());
  MW_RETURN_IF_ERROR(meeting->Issue());
  MW_CUDA_CALL(cudaEventRecord(met_, meeting->stream()));
  MW_CUDA_CALL(cudaStreamWaitEvent(device_->stream(planner::kComputeStream), met_, 0));
  MW_RETURN_IF_ERROR(load_->Issue());
  MW_RETURN_IF_ERROR(path->Issue());
  MW_CUDA_CALL(cudaEventRecord(done_, path->stream()));
  MW_ASSIGN_OR_RETURN(times.beside_s, load_->Seconds());
  MW_RETURN_IF_ERROR(AwaitStream(path->stream()));
  static_cast<void>(tracker_->Poll());
  float after_ms = 0.0F;
  MW_CUDA_CALL(cudaEventElapsedTime(&after_ms, load_->end(), done_));
  times.covered = after_ms >= 0.0F;
  return times;
}

Status CommunicationRank::Close(Communicator& world) {
  MW_RETURN_IF_ERROR(world_->CheckAsync());
  MW_RETURN_IF_ERROR(world_->Close());
  MW_RETURN_IF_ERROR(world.Barrier());  // the partner copies no more
  copies_.reset();
  return world.Barrier();  // nobody has the arena mapped that is freed next
}

}  // namespace meshwright::runtime::cuda
