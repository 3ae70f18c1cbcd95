// Operations of ranks between their memories, against what they must give. Ranks are processes,
// forked before anything of CUDA happens; with fewer GPUs they share them in turns.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "runtime/cuda/communication_path.h"
#include "runtime/self_start.h"
#include "runtime/store_communicator.h"
#include "tests/runtime/cuda/count_gpus.h"
#include "tests/runtime/cuda/gpu_op.h"
#include "tests/runtime/processes.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::CommunicatorKind;
using planner::DType;
using planner::OpKind;
using planner::PeerCarrier;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kOutAt = 64 * kMiB;  // of outputs in the arena
constexpr int64_t kArenaBytes = 2 * kOutAt;
constexpr int kCalls = 3;  // in a row, none awaited

struct PeerCase {
  OpKind kind;
  int64_t bytes;  ///< as of PeerOp
  DType dtype;
  bool in_place;
  PeerCarrier moves;
  CommunicatorKind group = CommunicatorKind::kTensor;

  int64_t count() const { return bytes / planner::SizeOf(dtype); }
  std::string Text() const {
    return fmt::format("{} of {} bytes {}{}, moves by {}{}", planner::ToString(kind), bytes,
                       planner::ToString(dtype), in_place ? " in place" : "",
                       moves == PeerCarrier::kKernels ? "kernels" : "copy engines",
                       group == CommunicatorKind::kEdge ? ", over an edge" : "");
  }
};

/// Small whole numbers, whose sums are exact in both types.
int Value(int rank, int64_t i) {
  return static_cast<int>((3 * rank + i) % 7) + 1;
}

/// One rank of the ring.
class Ring {
 public:
  Status Run(Store& store, int ordinal) {
    rank_ = store.rank();
    ranks_ = store.world();
    CudaDeviceOptions options;
    options.ordinal = ordinal;
    options.own_workspaces = false;
    MW_ASSIGN_OR_RETURN(device_, CudaDevice::Open(options, {true}));
    MW_RETURN_IF_ERROR(arena_.Allocate(kArenaBytes));
    world_ = MakeStoreWorld(store, {});
    const bool pair = ranks_ == 2;
    std::vector<int32_t> all(static_cast<size_t>(ranks_));
    std::iota(all.begin(), all.end(), 0);
    std::vector<planner::Group> groups = {{"ring", CommunicatorKind::kTensor, all}};
    if (pair) groups.push_back({"edge", CommunicatorKind::kEdge, all});
    std::vector<int32_t> peers(groups.size());
    std::iota(peers.begin(), peers.end(), 0);
    MW_ASSIGN_OR_RETURN(
        copies_, ConnectForRates(*world_, std::move(groups), peers, *device_, arena_.data()));
    if (copies_ == nullptr) return RunFailed("the GPUs do not reach each other's memory");
    std::vector<OpKind> kinds = {OpKind::kAllGather, OpKind::kShift};
    if (pair) {
      kinds.insert(kinds.end(), {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kSend});
    }
    for (const OpKind kind : kinds) {
      for (const int64_t bytes :
           {int64_t{64}, int64_t{4160}, kMiB + 96, 16 * kMiB, 24 * kMiB + 32}) {
        for (const DType dtype : {DType::kBf16, DType::kF32}) {
          for (const PeerCarrier moves : {PeerCarrier::kKernels, PeerCarrier::kCopyEngines}) {
            for (const bool in_place : {false, true}) {
              PeerCase c{kind, bytes / (16 * ranks_) * 16 * ranks_, dtype, in_place, moves};
              const bool by_nccl =
                  !pair && kind == OpKind::kAllGather && moves == PeerCarrier::kKernels;
              if (by_nccl) continue;
              MW_RETURN_IF_ERROR(RunCase(c).WithContext(c.Text()));
              if (kind != OpKind::kSend) continue;
              c.group = CommunicatorKind::kEdge;
              MW_RETURN_IF_ERROR(RunCase(c).WithContext(c.Text()));
            }
          }
        }
      }
    }
    MW_RETURN_IF_ERROR(world_->Barrier());
    copies_.reset();
    return world_->Barrier();
  }

 private:
  Status RunCase(const PeerCase& c) {
    std::vector<double> in(static_cast<size_t>(c.count()));
    for (int64_t i = 0; i < c.count(); ++i) in[static_cast<size_t>(i)] = Value(rank_, i);
    MW_CUDA_CALL(cudaMemset(arena_.data(), 0xFF, kArenaBytes));
    MW_RETURN_IF_ERROR(Put(0, c.dtype, in));
    const bool gathers = c.kind == OpKind::kAllGather;
    if (gathers && c.in_place) {  // the own slice of the output
      MW_RETURN_IF_ERROR(Put(kOutAt + rank_ * c.bytes / ranks_, c.dtype,
                             std::vector<double>(in.begin(), in.begin() + c.count() / ranks_)));
    }
    MW_CUDA_CALL(cudaDeviceSynchronize());
    MW_RETURN_IF_ERROR(world_->Barrier());
    OpKind kind = c.kind;
    if (kind == OpKind::kSend && rank_ == 1) kind = OpKind::kRecv;
    const bool reads = c.kind == OpKind::kAllReduce || c.kind == OpKind::kReduceScatter;
    const int64_t theirs = reads ? 0 : kOutAt;
    PeerChannel& channel = *copies_->channel(c.group == CommunicatorKind::kEdge ? 1 : 0);
    channel.Follow(std::vector<PeerOp>(kCalls, {kind, c.bytes, theirs}),
                   {c.group, ranks_, c.moves});
    for (int call = 0; call < kCalls; ++call) MW_RETURN_IF_ERROR(Issue(channel, c, kind));
    MW_CUDA_CALL(cudaDeviceSynchronize());
    MW_RETURN_IF_ERROR(Check(c));
    return world_->Barrier();
  }

  Status Issue(PeerChannel& channel, const PeerCase& c, OpKind kind) {
    const cudaStream_t stream = device_->stream(planner::kComputeStream);
    std::byte* const in = arena_.data();
    std::byte* const out = arena_.data() + kOutAt;
    const int64_t half = c.bytes / 2, slice = c.bytes / ranks_;
    switch (kind) {
      case OpKind::kAllReduce:
        return channel.AllReduce(in, c.count(), c.dtype, stream);
      case OpKind::kAllGather:
        return channel.AllGather(c.in_place ? out + rank_ * slice : in, out, slice, c.dtype,
                                 stream);
      case OpKind::kReduceScatter:
        return channel.ReduceScatter(in, c.in_place ? in + rank_ * half : out, c.count() / 2,
                                     c.dtype, stream);
      case OpKind::kShift:
        return channel.Shift(in, c.bytes, c.dtype, stream);
      case OpKind::kSend:
        return channel.Send(in, c.bytes, c.dtype, stream);
      default:
        return channel.Recv(out, c.bytes, c.dtype, stream);
    }
  }

  Status Check(const PeerCase& c) {
    const int64_t half = c.count() / 2;
    const auto sum = [](int64_t i) { return Value(0, i) + Value(1, i); };
    switch (c.kind) {
      case OpKind::kAllReduce:  // the sum of the ranks, twice doubled
        return Expect(0, c, c.count(), [&](int64_t i) { return 4 * sum(i); });
      case OpKind::kAllGather:
        return Expect(kOutAt, c, c.count(), [&](int64_t i) {
          const int64_t slice = c.count() / ranks_;
          return Value(static_cast<int>(i / slice), i % slice);
        });
      case OpKind::kReduceScatter:
        // In place the later calls add the other's terms again.
        return Expect(c.in_place ? rank_ * c.bytes / 2 : kOutAt, c, half, [&](int64_t i) {
          const int64_t at = rank_ * half + i;
          return c.in_place ? Value(rank_, at) + kCalls * Value(1 - rank_, at) : sum(at);
        });
      case OpKind::kShift:
        return Expect(kOutAt, c, c.count(),
                      [&](int64_t i) { return Value((rank_ + ranks_ - 1) % ranks_, i); });
      default:
        if (rank_ == 0) return Status::Ok();
        return Expect(kOutAt, c, c.count(), [&](int64_t i) { return Value(0, i); });
    }
  }

  Status Put(int64_t at, DType dtype, const std::vector<double>& values) {
    std::vector<std::byte> host;
    for (const double value : values) {
      const auto put = [&](auto v) {
        const auto* bytes = reinterpret_cast<const std::byte*>(&v);
        host.insert(host.end(), bytes, bytes + sizeof(v));
      };
      dtype == DType::kF32 ? put(static_cast<float>(value)) : put(ToBf16(value));
    }
    MW_CUDA_CALL(cudaMemcpy(arena_.data() + at, host.data(), host.size(), cudaMemcpyHostToDevice));
    return Status::Ok();
  }

  template <typename F>
  Status Expect(int64_t at, const PeerCase& c, int64_t count, F value) {
    const auto size = static_cast<size_t>(planner::SizeOf(c.dtype));
    std::vector<std::byte> host(static_cast<size_t>(count) * size);
    MW_CUDA_CALL(cudaMemcpy(host.data(), arena_.data() + at, host.size(), cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < count; ++i) {
      const double expected = value(i);
      const float f = static_cast<float>(expected);
      const auto b = ToBf16(expected);
      const void* const bits =
          c.dtype == DType::kF32 ? static_cast<const void*>(&f) : static_cast<const void*>(&b);
      if (std::memcmp(bits, host.data() + static_cast<size_t>(i) * size, size) == 0) continue;
      return RunFailed(
          fmt::format("rank {}: element {} of {} is not {}", rank_, i, count, expected));
    }
    return Status::Ok();
  }

  int rank_ = 0, ranks_ = 2;
  std::unique_ptr<CudaDevice> device_;
  DeviceMemory arena_;
  std::unique_ptr<Communicator> world_;
  std::unique_ptr<PeerCopies> copies_;
};

class PeerChannelOf : public testing::TestWithParam<int> {};

TEST_P(PeerChannelOf, OperationsGiveWhatTheyMust) {
  const int gpus = runtime::CountGpus();
  if (gpus < 1) GTEST_SKIP() << "needs a GPU, better one a rank";
  const auto outcome = StartRanks({GetParam(), 120.0, 5.0}, [&](const LaunchFacts& facts) {
    const auto store = OpenStore(facts);
    const Status status =
        store.ok() ? Ring().Run(**store, facts.local_rank % gpus) : store.status();
    if (!status.ok()) fmt::print(stderr, "rank {}: {}\n", facts.rank, status.message());
    return ExitCode(status);
  });
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(outcome->exit_code, 0) << outcome->what;
}

INSTANTIATE_TEST_SUITE_P(Ranks, PeerChannelOf, testing::Values(2, 4));

}  // namespace
}  // namespace meshwright::runtime::cuda
