#include "runtime/store_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <tuple>

#include "tests/runtime/communicator_battery.h"
#include "tests/runtime/stores.h"

namespace meshwright::runtime {
namespace {

using battery::Bytes;
using planner::DType;
using testing::HasSubstr;

std::vector<Status> OnRanks(int ranks, double deadline_s,
                            const std::function<Status(Communicator&)>& body,
                            StoreKind kind = StoreKind::kTcp) {
  return OnStores(kind, ranks, [&](Store& store) {
    const auto world = MakeStoreWorld(store, {deadline_s});
    return body(*world);
  });
}

class Operations : public testing::TestWithParam<std::tuple<int, int64_t>> {};

TEST_P(Operations, GiveWhatTheInterfacePromises) {
  const auto [ranks, count] = GetParam();
  for (const Status& status : OnRanks(ranks, 60, [count = count](Communicator& c) {
         return battery::CheckOperations(c, count);
       })) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

INSTANTIATE_TEST_SUITE_P(SizesAndCounts, Operations,
                         testing::Combine(testing::Values(1, 2, 3, 4, 5, 8),
                                          testing::Values(0, 1, 100, 5000)));

TEST(StoreCommunicator, WorksOnFiles) {
  for (const Status& status : OnRanks(
           3, 60, [](Communicator& c) { return battery::CheckOperations(c, 7); },
           StoreKind::kFile)) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(StoreCommunicator, LeavesLittleBehind) {
  for (const Status& status : OnStores(StoreKind::kTcp, 2, [](Store& store) -> Status {
         const auto world = MakeStoreWorld(store, {60});
         for (int i = 0; i < 20; ++i) {
           MW_RETURN_IF_ERROR(battery::CheckMoves(*world, 3));
           MW_RETURN_IF_ERROR(battery::CheckMessages(*world, 3));
         }
         MW_RETURN_IF_ERROR(world->Barrier());
         MW_ASSIGN_OR_RETURN(const auto left, store.List("comm"));
         // Each member's last operation and, while the other lags, the one before.
         return left.size() <= 4 ? Status::Ok() : RunFailed(std::to_string(left.size()));
       })) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(StoreCommunicator, SendIsDoneOnlyWhenReceived) {
  std::atomic<bool> received{false};
  for (const Status& status : OnRanks(2, 60, [&](Communicator& c) {
         std::vector<float> v(3);
         if (c.rank() == 0) {
           const Status sent = c.Send(Bytes(v), 3, DType::kF32, 1);
           EXPECT_TRUE(received);
           return sent;
         }
         std::this_thread::sleep_for(std::chrono::milliseconds(20));
         received = true;
         return c.Recv(Bytes(v), 3, DType::kF32, 0);
       })) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(StoreCommunicator, DisagreementsNameBothRanksAndBothRequests) {
  const auto fails = [](const std::function<Status(Communicator&)>& body, const char* text) {
    for (const Status& status : OnRanks(2, 60, body)) {
      EXPECT_EQ(status.code(), StatusCode::kRunFailed);
      EXPECT_THAT(status.message(), HasSubstr(text));
      EXPECT_THAT(status.message(), HasSubstr("rank 0"));
      EXPECT_THAT(status.message(), HasSubstr("rank 1"));
    }
  };
  std::vector<double> mine[2] = {std::vector<double>(4), std::vector<double>(4)};
  const auto buffer = [&](Communicator& c) { return Bytes(mine[c.rank()]); };
  fails(
      [&](Communicator& c) {
        return c.AllReduce(buffer(c), 2, c.rank() == 0 ? DType::kF32 : DType::kF64);
      },
      "all_reduce of 2 fp64");
  fails([&](Communicator& c) { return c.Broadcast(buffer(c), 2, DType::kF32, c.rank()); },
        "from member 1");
  fails(
      [&](Communicator& c) {
        return c.rank() == 0 ? c.Barrier() : c.AllReduce(buffer(c), 2, DType::kF32);
      },
      "barrier");
  fails(
      [&](Communicator& c) {
        return c.rank() == 0 ? c.Send(buffer(c), 3, DType::kF32, 1)
                             : c.Recv(buffer(c), 2, DType::kF32, 0);
      },
      "recv of 2 fp32");
}

TEST(StoreCommunicator, BadArgumentsAreRefused) {
  for (const Status& status : OnRanks(1, 60, [](Communicator& c) {
         std::vector<float> v(4);
         EXPECT_EQ(c.AllReduce(Bytes(v), -1, DType::kF32).code(), StatusCode::kInvalidInput);
         EXPECT_EQ(c.AllReduce(Bytes(v), 1, DType::kBf16).code(), StatusCode::kUnsupported);
         EXPECT_EQ(c.Send(Bytes(v), 1, DType::kF32, 0).code(), StatusCode::kInvalidInput);
         EXPECT_EQ(c.Broadcast(Bytes(v), 1, DType::kF32, 3).code(), StatusCode::kInvalidInput);
         return Status::Ok();
       })) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(StoreCommunicator, DeadlineNamesWhoIsMissing) {
  const auto results = OnRanks(4, 0.5, [](Communicator& c) {
    MW_RETURN_IF_ERROR(c.Barrier());
    if (c.rank() == 2) return Status::Ok();
    std::vector<float> v(4);
    return c.AllReduce(Bytes(v), 4, DType::kF32);
  });
  for (const size_t r : {0U, 1U, 3U}) {
    EXPECT_THAT(results[r].message(), HasSubstr("communicator world: all_reduce of 4 fp32"));
    EXPECT_THAT(results[r].message(), HasSubstr("not arrived at operation 2: rank 2"));
  }
  EXPECT_TRUE(results[2].ok()) << results[2].message();
}

TEST(StoreCommunicator, AbortEndsAllOperationsOfAllCommunicators) {
  const auto results = OnRanks(4, 60, [](Communicator& c) -> Status {
    auto half = c.Split(c.rank() / 2, c.rank(), "half");
    MW_RETURN_IF_ERROR(half.status());
    MW_RETURN_IF_ERROR(c.abort_reason());
    std::vector<float> v(4);
    if (c.rank() == 3) {
      c.Abort(RunFailed("rank 3 gave up"));
      c.Abort(RunFailed("a later reason"));
      EXPECT_EQ(c.Barrier(), c.abort_reason());
      return c.abort_reason();
    }
    if (c.rank() == 2) return half.value()->AllReduce(Bytes(v), 4, DType::kF32);
    return c.AllReduce(Bytes(v), 4, DType::kF32);
  });
  for (const Status& status : results) EXPECT_EQ(status.message(), "rank 3 gave up");
}

TEST(StoreCommunicator, MakesGroups) {
  const std::vector<planner::Group> groups = {
      {"ring", planner::CommunicatorKind::kData, {3, 1, 0}},
      {"pair", planner::CommunicatorKind::kEdge, {2, 3}},
      {"one", planner::CommunicatorKind::kTensor, {1}},
  };
  for (const Status& status : OnRanks(4, 60, [&](Communicator& world) {
         MW_ASSIGN_OR_RETURN(const auto made, CreateGroups(world, groups));
         for (size_t g = 0; g < groups.size(); ++g) {
           const auto& ranks = groups[g].ranks;
           const auto at = std::find(ranks.begin(), ranks.end(), world.rank());
           MW_RETURN_IF_ERROR(
               battery::Expect((at == ranks.end()) == (made[g] == nullptr), world, "in"));
           if (made[g] == nullptr) continue;
           const bool right =
               made[g]->rank() == at - ranks.begin() && made[g]->name() == groups[g].name;
           MW_RETURN_IF_ERROR(battery::Expect(right, world, "place"));
           MW_RETURN_IF_ERROR(battery::CheckMoves(*made[g], 3));
         }
         return Status::Ok();
       })) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

}  // namespace
}  // namespace meshwright::runtime
