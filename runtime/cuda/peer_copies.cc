#include "runtime/cuda/peer_copies.h"

#include <cuda.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "planner/ir/hash.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::DType;

constexpr int64_t kMeetAt = PeerCopies::kStagingBytes;        // the partner's data is ready
constexpr int64_t kPartAt = PeerCopies::kStagingBytes + 128;  // the partner has pulled ours
constexpr int64_t kAllBytes = PeerCopies::kStagingBytes + 256;

/// The driver's operations on memory in stream order, for which the runtime library has no calls.
struct StreamMemoryOps {
  using Function = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
  Function write = nullptr;
  Function wait = nullptr;
};

Result<StreamMemoryOps> FindStreamMemoryOps() {
  StreamMemoryOps ops;
  constexpr unsigned kVersion = 12000;
  const auto find = [](const char* name, StreamMemoryOps::Function* to) -> Status {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found{};
    MW_CUDA_CALL(
        cudaGetDriverEntryPointByVersion(name, &address, kVersion, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess || address == nullptr) {
      return RunFailed(std::string("the driver has no ") + name +
                       "; pass --peer-copies off or install a driver of CUDA 12 or later");
    }
    *to = reinterpret_cast<StreamMemoryOps::Function>(address);
    return Status::Ok();
  };
  MW_RETURN_IF_ERROR(find("cuStreamWriteValue32", &ops.write));
  MW_RETURN_IF_ERROR(find("cuStreamWaitValue32", &ops.wait));
  return ops;
}

/// Of the driver: the same for all, looked for once.
const Result<StreamMemoryOps>& DriverStreamMemoryOps() {
  static const Result<StreamMemoryOps> ops = FindStreamMemoryOps();
  return ops;
}

Status DriverStatus(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return Status::Ok();
  return RunFailed(std::string(call) + ": CUDA driver error " +
                   std::to_string(static_cast<int>(result)));
}

int64_t ThisHost() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return static_cast<int64_t>(planner::Hasher().Add(std::string(name.data())).value());
}

/// The tensor group of two that `rank` is in; -1: none.
int PairOf(const planner::Programs& programs, int rank) {
  for (const int32_t g : programs.ranks[static_cast<size_t>(rank)].groups) {
    const planner::Group& group = programs.groups[static_cast<size_t>(g)];
    if (group.kind == planner::CommunicatorKind::kTensor && group.ranks.size() == 2) return g;
  }
  return -1;
}

}  // namespace

/// What a rank tells the others of itself, in 64-bit words.
struct PeerCopies::Entry {
  int64_t host = 0;
  int64_t program = -1;
  cudaIpcMemHandle_t arena{};
  cudaIpcMemHandle_t staging{};
};

Result<std::unique_ptr<PeerCopies>> PeerCopies::Connect(Communicator& world,
                                                        const planner::Programs& programs,
                                                        int device, std::byte* arena,
                                                        int64_t least_bytes) {
  const int rank = world.rank();
  const int pair = PairOf(programs, rank);
  Entry own;
  own.host = ThisHost();
  own.program = programs.ranks[static_cast<size_t>(rank)].program;
  std::unique_ptr<PeerCopies> copies;
  int partner = -1;
  if (pair >= 0) {
    const auto& ranks = programs.groups[static_cast<size_t>(pair)].ranks;
    const int position = ranks[0] == rank ? 0 : 1;
    partner = ranks[static_cast<size_t>(1 - position)];
    copies.reset(new PeerCopies(device, pair, position, arena, least_bytes));
    MW_RETURN_IF_ERROR(copies->staging_.Allocate(kAllBytes));
    MW_CUDA_CALL(cudaMemset(copies->staging_.data() + kMeetAt, 0, kAllBytes - kMeetAt));
    MW_CUDA_CALL(cudaDeviceSynchronize());
    MW_CUDA_CALL(cudaStreamCreateWithFlags(&copies->release_, cudaStreamNonBlocking));
    MW_CUDA_CALL(cudaIpcGetMemHandle(&own.arena, arena));
    MW_CUDA_CALL(cudaIpcGetMemHandle(&own.staging, copies->staging_.data()));
  }
  static_assert(sizeof(Entry) % sizeof(int64_t) == 0);
  std::vector<Entry> all(static_cast<size_t>(world.size()));
  MW_RETURN_IF_ERROR(world.AllGather(reinterpret_cast<const std::byte*>(&own),
                                     reinterpret_cast<std::byte*>(all.data()),
                                     sizeof(Entry) / sizeof(int64_t), DType::kI64));
  int64_t usable = 0;
  if (partner >= 0) {
    const Entry& theirs = all[static_cast<size_t>(partner)];
    usable = theirs.host == own.host && theirs.program == own.program &&
                     DriverStreamMemoryOps().ok() && copies->Open(theirs).ok()
                 ? 1
                 : 0;
    static_cast<void>(cudaGetLastError());  // a GPU that cannot be reached is no error
  }
  std::vector<int64_t> both(static_cast<size_t>(world.size()));
  MW_RETURN_IF_ERROR(world.AllGather(reinterpret_cast<const std::byte*>(&usable),
                                     reinterpret_cast<std::byte*>(both.data()), 1, DType::kI64));
  if (partner < 0 || usable == 0 || both[static_cast<size_t>(partner)] == 0) copies.reset();
  return copies;
}

PeerCopies::~PeerCopies() {
  if (peer_arena_ != nullptr) static_cast<void>(cudaIpcCloseMemHandle(peer_arena_));
  if (peer_staging_ != nullptr) static_cast<void>(cudaIpcCloseMemHandle(peer_staging_));
  if (release_ != nullptr) static_cast<void>(cudaStreamDestroy(release_));
}

Status PeerCopies::Open(const Entry& peer) {
  const auto open = [](const cudaIpcMemHandle_t& handle, std::byte** to) -> Status {
    void* address = nullptr;
    MW_CUDA_CALL(cudaIpcOpenMemHandle(&address, handle, cudaIpcMemLazyEnablePeerAccess));
    *to = static_cast<std::byte*>(address);
    return Status::Ok();
  };
  MW_RETURN_IF_ERROR(open(peer.arena, &peer_arena_));
  return open(peer.staging, &peer_staging_);
}

bool PeerCopies::Takes(int64_t bytes, DType dtype) const {
  return bytes >= least_bytes_ && bytes % 32 == 0 &&
         (dtype == DType::kBf16 || dtype == DType::kF32);
}

Status PeerCopies::Publish(uint32_t value, int64_t counter, cudaStream_t stream) const {
  MW_ASSIGN_OR_RETURN(const StreamMemoryOps ops, DriverStreamMemoryOps());
  const auto at = reinterpret_cast<CUdeviceptr>(peer_staging_ + counter);
  return DriverStatus(ops.write(stream, at, value, CU_STREAM_WRITE_VALUE_DEFAULT),
                      "cuStreamWriteValue32");
}

Status PeerCopies::Await(uint32_t value, int64_t counter, cudaStream_t stream) const {
  MW_ASSIGN_OR_RETURN(const StreamMemoryOps ops, DriverStreamMemoryOps());
  const auto at = reinterpret_cast<CUdeviceptr>(staging_.data() + counter);
  return DriverStatus(ops.wait(stream, at, value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
}

Status PeerCopies::Pull(const std::byte* from, std::byte* to, int64_t bytes, cudaStream_t stream) {
  MW_CUDA_CALL(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream));
  return Status::Ok();
}

/// Both ranks have what the other is to pull.
Status PeerCopies::Meet(cudaStream_t stream) {
  ++met_;
  MW_RETURN_IF_ERROR(Publish(met_, kMeetAt, stream));
  return Await(met_, kMeetAt, stream);
}

/// Both ranks have pulled: what was pulled may be written again.
Status PeerCopies::Part(cudaStream_t stream) {
  ++parted_;
  MW_RETURN_IF_ERROR(Publish(parted_, kPartAt, stream));
  return Await(parted_, kPartAt, stream);
}

Status PeerCopies::AllReduce(std::byte* buffer, int64_t count, DType dtype, cudaStream_t stream) {
  const int64_t size = planner::SizeOf(dtype);
  MW_RETURN_IF_ERROR(Meet(stream));
  for (int64_t at = 0; at < count * size; at += kStagingBytes) {
    const int64_t bytes = std::min(kStagingBytes, count * size - at);
    MW_RETURN_IF_ERROR(Pull(Theirs(buffer + at), staging_.data(), bytes, stream));
    MW_RETURN_IF_ERROR(Part(stream));
    MW_RETURN_IF_ERROR(
        AddElements(buffer + at, staging_.data(), buffer + at, bytes / size, dtype, stream));
  }
  return Status::Ok();
}

Status PeerCopies::AllGather(const std::byte* in, std::byte* out, int64_t bytes,
                             cudaStream_t stream) {
  std::byte* const own_slice = out + position_ * bytes;
  std::byte* const their_slice = out + (1 - position_) * bytes;
  MW_RETURN_IF_ERROR(Meet(stream));
  MW_RETURN_IF_ERROR(
      Pull(in == own_slice ? Theirs(their_slice) : Theirs(in), their_slice, bytes, stream));
  MW_RETURN_IF_ERROR(Part(stream));
  return in == own_slice ? Status::Ok() : Pull(in, own_slice, bytes, stream);
}

Status PeerCopies::ReduceScatter(const std::byte* in, std::byte* out, int64_t count, DType dtype,
                                 cudaStream_t stream) {
  const int64_t size = planner::SizeOf(dtype);
  const std::byte* const own_slice = in + position_ * count * size;
  MW_RETURN_IF_ERROR(Meet(stream));
  for (int64_t at = 0; at < count * size; at += kStagingBytes) {
    const int64_t bytes = std::min(kStagingBytes, count * size - at);
    MW_RETURN_IF_ERROR(Pull(Theirs(own_slice + at), staging_.data(), bytes, stream));
    MW_RETURN_IF_ERROR(
        AddElements(own_slice + at, staging_.data(), out + at, bytes / size, dtype, stream));
  }
  return Part(stream);
}

void PeerCopies::Release() {
  // Above every value that is waited for, which are compared as differences of 32 bits.
  static_cast<void>(cudaSetDevice(device_));
  static_cast<void>(cudaMemsetAsync(staging_.data() + kMeetAt, 0x3f,
                                    static_cast<size_t>(kAllBytes - kMeetAt), release_));
}

}  // namespace meshwright::runtime::cuda
