// NCCL communicators. Ranks are processes: each test forks before anything of CUDA happens, so the
// number of GPUs is asked in a child, too.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/nccl_world.h"
#include "runtime/deadline.h"
#include "runtime/self_start.h"
#include "tests/runtime/cuda/count_gpus.h"
#include "tests/runtime/cuda/gpu_op.h"
#include "tests/runtime/processes.h"
#include "tests/runtime/stores.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::CommunicatorKind;
using planner::DType;
using planner::OpKind;
using testing::HasSubstr;

#define SKIP_BELOW(gpus)                                                       \
  if (const int found = runtime::CountGpus(); found < (gpus)) {                \
    GTEST_SKIP() << "needs " << (gpus) << " GPUs, this machine has " << found; \
  }

/// Runs `body` on `ranks` processes; what they return is printed where it is not ok.
void OnRanks(int ranks, const std::function<Status(const LaunchFacts&, Store&)>& body) {
  const auto outcome = StartRanks({ranks, 90.0, 5.0}, [&](const LaunchFacts& facts) {
    auto store = OpenStore(facts);
    const Status status = store.ok() ? body(facts, **store) : store.status();
    if (!status.ok()) fmt::print(stderr, "rank {}: {}\n", facts.rank, status.message());
    return ExitCode(status);
  });
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(outcome->exit_code, 0) << outcome->what;
}

/// Element `i` of rank `rank`: small whole numbers, whose sums are exact in every type.
int Value(int rank, int64_t i) {
  return static_cast<int>((3 * rank + i) % 7) + 1;
}

/// Device memory with a host copy of whole numbers in any type.
class Numbers {
 public:
  Numbers(DType dtype, int64_t count) : dtype_(dtype), count_(count) {
    if (cudaMalloc(&memory_, static_cast<size_t>(bytes())) != cudaSuccess) memory_ = nullptr;
  }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;
  ~Numbers() { (void)cudaFree(memory_); }

  int64_t bytes() const { return count_ * planner::SizeOf(dtype_); }
  std::byte* at(int64_t i) const {
    return static_cast<std::byte*>(memory_) + i * planner::SizeOf(dtype_);
  }
  Status Fill(const std::function<int(int64_t)>& value) {
    std::vector<std::byte> host(static_cast<size_t>(bytes()));
    for (int64_t i = 0; i < count_; ++i)
      Encode(value(i), host.data() + i * planner::SizeOf(dtype_));
    MW_CUDA_CALL(cudaMemcpy(memory_, host.data(), host.size(), cudaMemcpyHostToDevice));
    MW_CUDA_CALL(cudaDeviceSynchronize());  // other streams do not wait for the copy
    return Status::Ok();
  }
  Status Expect(const std::string& what, const std::function<int(int64_t)>& value) const {
    std::vector<std::byte> host(static_cast<size_t>(bytes()));
    MW_CUDA_CALL(cudaDeviceSynchronize());
    MW_CUDA_CALL(cudaMemcpy(host.data(), memory_, host.size(), cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < count_; ++i) {
      std::byte expected[8];
      const auto size = static_cast<size_t>(planner::SizeOf(dtype_));
      Encode(value(i), expected);
      if (std::memcmp(expected, host.data() + static_cast<size_t>(i) * size, size) == 0) continue;
      return RunFailed(fmt::format("{} in {}: element {} of {} is not {}", what,
                                   planner::ToString(dtype_), i, count_, value(i)));
    }
    return Status::Ok();
  }

 private:
  void Encode(int value, std::byte* to) const {
    const auto put = [&](auto v) { std::memcpy(to, &v, sizeof(v)); };
    switch (dtype_) {
      case DType::kBf16:
        return put(ToBf16(value));
      case DType::kF32:
        return put(static_cast<float>(value));
      case DType::kF64:
        return put(static_cast<double>(value));
      case DType::kI32:
        return put(static_cast<int32_t>(value));
      case DType::kI64:
        return put(static_cast<int64_t>(value));
    }
  }

  const DType dtype_;
  const int64_t count_;
  void* memory_ = nullptr;
};

/// All ranks, the edges 0>1 and 1>0, and each rank alone.
std::vector<planner::Group> Groups(int ranks) {
  std::vector<int32_t> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  std::vector<planner::Group> groups = {{"all", CommunicatorKind::kTensor, all}};
  if (ranks > 1) {
    groups.push_back({"edge 0>1", CommunicatorKind::kEdge, {0, 1}});
    groups.push_back({"edge 1>0", CommunicatorKind::kEdge, {1, 0}});
  }
  for (const int32_t r : all) {
    groups.push_back({fmt::format("alone {}", r), CommunicatorKind::kData, {r}});
  }
  return groups;
}

std::vector<std::vector<GroupUse>> Uses(const std::vector<planner::Group>& groups) {
  std::vector<std::vector<GroupUse>> uses;
  for (const planner::Group& group : groups) {
    if (group.kind == CommunicatorKind::kEdge) {
      uses.push_back({{OpKind::kSend, DType::kBf16, int64_t{1} << 22}});
    } else {
      uses.push_back({{OpKind::kAllReduce, DType::kF32, int64_t{1} << 22},
                      {OpKind::kAllGather, DType::kBf16, int64_t{1} << 22},
                      {OpKind::kReduceScatter, DType::kF32, 100}});
    }
  }
  return uses;
}

Status CheckCollectives(DeviceCommunicator& c, DType dtype, int64_t count, cudaStream_t stream) {
  const int n = c.size();
  const auto sum = [n](int64_t i) {
    int s = 0;
    for (int r = 0; r < n; ++r) s += Value(r, i);
    return s;
  };
  const auto own = [&](int64_t i) { return Value(c.rank(), i); };
  Numbers all(dtype, n * count);
  Numbers part(dtype, count);
  MW_RETURN_IF_ERROR(part.Fill(own));
  MW_RETURN_IF_ERROR(c.AllReduce(part.at(0), count, dtype, stream));
  MW_RETURN_IF_ERROR(part.Expect("all_reduce", sum));
  const auto gathered = [&](int64_t i) { return Value(static_cast<int>(i / count), i % count); };
  for (const bool in_place : {false, true}) {
    const int64_t mine = c.rank() * count;
    MW_RETURN_IF_ERROR(part.Fill(own));
    MW_RETURN_IF_ERROR(
        all.Fill([&](int64_t i) { return i / count == c.rank() ? gathered(i) : 0; }));
    MW_RETURN_IF_ERROR(
        c.AllGather(in_place ? all.at(mine) : part.at(0), all.at(0), count, dtype, stream));
    MW_RETURN_IF_ERROR(all.Expect(in_place ? "all_gather in place" : "all_gather", gathered));
    MW_RETURN_IF_ERROR(all.Fill(own));
    MW_RETURN_IF_ERROR(
        c.ReduceScatter(all.at(0), in_place ? all.at(mine) : part.at(0), count, dtype, stream));
    const auto scattered = [&](int64_t i) { return sum(mine + i); };
    if (in_place) {
      MW_RETURN_IF_ERROR(all.Expect("reduce_scatter in place", [&](int64_t i) {
        return i / count == c.rank() ? sum(i) : own(i);
      }));
    } else {
      MW_RETURN_IF_ERROR(part.Expect("reduce_scatter", scattered));
    }
  }
  MW_RETURN_IF_ERROR(part.Fill(own));
  MW_RETURN_IF_ERROR(c.Broadcast(part.at(0), count, dtype, n - 1, stream));
  return part.Expect("broadcast", [&](int64_t i) { return Value(n - 1, i); });
}

Status CheckMessage(DeviceCommunicator& c, DType dtype, int64_t count, cudaStream_t stream) {
  Numbers part(dtype, count);
  MW_RETURN_IF_ERROR(part.Fill([&](int64_t i) { return Value(c.rank(), i); }));
  MW_RETURN_IF_ERROR(c.rank() == 0 ? c.Send(part.at(0), count, dtype, 1, stream)
                                   : c.Recv(part.at(0), count, dtype, 0, stream));
  return part.Expect("message", [&](int64_t i) { return Value(0, i); });
}

Status CheckAll(const LaunchFacts& facts, Store& store) {
  MW_ASSIGN_OR_RETURN(auto world, NcclWorld::Create(store, {}, facts.local_rank));
  const auto groups = Groups(facts.world);
  MW_RETURN_IF_ERROR(world->MakeGroups(groups, Uses(groups)));
  cudaStream_t stream = nullptr;
  MW_CUDA_CALL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (size_t g = 0; g < groups.size(); ++g) {
    DeviceCommunicator* c = world->group(g);
    const bool member = std::count(groups[g].ranks.begin(), groups[g].ranks.end(), facts.rank) == 1;
    if ((c != nullptr) != member) return RunFailed("membership of " + groups[g].name);
    if (c == nullptr) continue;
    for (const DType dtype : {DType::kBf16, DType::kF32, DType::kF64, DType::kI32, DType::kI64}) {
      for (const int64_t count : {1, 1001, 300'000}) {
        MW_RETURN_IF_ERROR(c->kind() == CommunicatorKind::kEdge
                               ? CheckMessage(*c, dtype, count, stream)
                               : CheckCollectives(*c, dtype, count, stream));
      }
    }
    const auto expected = c->size() == 1 ? 0 : c->kind() == CommunicatorKind::kEdge ? 15 : 90;
    if (c->sequence() != expected) {
      return RunFailed(fmt::format("{} operations counted on {}", c->sequence(), c->name()));
    }
  }
  MW_RETURN_IF_ERROR(world->CheckAsync());
  MW_RETURN_IF_ERROR(store.Barrier("done", 60));
  return world->Close();
}

TEST(NcclWorld, OperationsOfOneRank) {
  SKIP_BELOW(1);
  OnRanks(1, CheckAll);
}

TEST(NcclWorld, OperationsOfSeveralRanks) {
  SKIP_BELOW(2);
  OnRanks(std::min(runtime::CountGpus(), 8), CheckAll);
}

TEST(NcclWorld, TwoRanksOnOneGpuAreRefused) {
  SKIP_BELOW(1);
  OnRanks(2, [](const LaunchFacts&, Store& store) -> Status {
    const Status status = NcclWorld::Create(store, {}, 0).status();
    if (status.message().find("rank 0 and rank 1 use the same GPU") != std::string::npos) {
      return Status::Ok();
    }
    return RunFailed("not refused: " + status.message());
  });
}

TEST(NcclWorld, ARankThatDoesNotComeIsAnErrorByTheDeadline) {
  SKIP_BELOW(2);
  OnRanks(2, [](const LaunchFacts& facts, Store& store) -> Status {
    NcclOptions options;
    options.deadline_s = 3;
    const Status status =
        facts.rank == 0 ? NcclWorld::Create(store, options, 0).status() : RunFailed("away");
    MW_RETURN_IF_ERROR(store.Barrier("done", 60));
    return status.ok() ? RunFailed("no error") : Status::Ok();
  });
}

TEST(NcclWorld, AbortEndsACollectiveThatWaits) {
  SKIP_BELOW(2);
  OnRanks(2, [](const LaunchFacts& facts, Store& store) -> Status {
    MW_ASSIGN_OR_RETURN(auto world, NcclWorld::Create(store, {}, facts.local_rank));
    const auto groups = Groups(2);
    MW_RETURN_IF_ERROR(world->MakeGroups(groups, Uses(groups)));
    cudaStream_t stream = nullptr;
    MW_CUDA_CALL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Numbers buffer(DType::kF32, 1000);
    if (facts.rank == 0) {
      MW_RETURN_IF_ERROR(world->group(0)->AllReduce(buffer.at(0), 1000, DType::kF32, stream));
      usleep(300'000);
      if (cudaStreamQuery(stream) != cudaErrorNotReady) return RunFailed("it did not wait");
    }
    MW_RETURN_IF_ERROR(store.Barrier("waiting", 60));
    if (!world->Abort(20)) return RunFailed("the abort hangs");
    (void)cudaStreamSynchronize(stream);
    const Status later = world->group(0)->AllReduce(buffer.at(0), 1000, DType::kF32, stream);
    return later.ok() ? RunFailed("an operation after the abort") : Status::Ok();
  });
}

TEST(NcclOptions, CtasByKind) {
  const NcclOptions options;
  EXPECT_EQ(CtasOf(options, CommunicatorKind::kTensor), 32);
  EXPECT_EQ(CtasOf(options, CommunicatorKind::kData), 8);
  EXPECT_EQ(CtasOf(options, CommunicatorKind::kEdge), 1);
  EXPECT_EQ(CtasOf(options, CommunicatorKind::kTied), 8);
}

TEST(NcclWorld, OptionsAreChecked) {
  MeetingPoint point(StoreKind::kFile);
  auto store = point.Open(0, 1).value();
  NcclOptions options;
  for (const int ctas : {-1, 33}) {
    options.data_ctas = ctas;
    const Status status = NcclWorld::Create(*store, options, 0).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidInput);
    EXPECT_THAT(status.message(), HasSubstr("1..32"));
  }
  options = {};
  options.deadline_s = 0;
  EXPECT_EQ(NcclWorld::Create(*store, options, 0).status().code(), StatusCode::kInvalidInput);
}

TEST(NcclLibrary, IsTheOneOfTheHeader) {
  EXPECT_THAT(NcclVersionText(), HasSubstr("NCCL 2."));
}

}  // namespace
}  // namespace meshwright::runtime::cuda
