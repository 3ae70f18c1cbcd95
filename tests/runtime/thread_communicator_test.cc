#include "runtime/thread_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "tests/runtime/communicator_battery.h"

namespace meshwright::runtime {
namespace {

using battery::Bytes;
using planner::DType;
using testing::HasSubstr;

/// Runs one function a rank, each on a thread; their results in rank order.
std::vector<Status> OnRanks(int ranks, double deadline_s,
                            const std::function<Status(Communicator&)>& body) {
  auto world = MakeThreadWorld(ranks, {deadline_s});
  std::vector<Status> results(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    const auto i = static_cast<size_t>(r);
    threads.emplace_back([&, i] { results[i] = body(*world[i]); });
  }
  for (std::thread& t : threads) t.join();
  return results;
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
                         testing::Combine(testing::Values(1, 2, 3, 4, 5, 6, 7, 8),
                                          testing::Values(0, 1, 4, 100, 5000)));

TEST(ThreadCommunicator, SendIsDoneOnlyWhenReceived) {
  std::atomic<bool> received{false};
  const auto results = OnRanks(2, 60, [&](Communicator& c) {
    std::vector<float> v(3);
    if (c.rank() == 0) {
      const Status status = c.Send(Bytes(v), 3, DType::kF32, 1);
      EXPECT_TRUE(received);
      return status;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    received = true;
    return c.Recv(Bytes(v), 3, DType::kF32, 0);
  });
  for (const Status& status : results) EXPECT_TRUE(status.ok()) << status.message();
}

TEST(ThreadCommunicator, DifferentCountsNameBothRanksAndBothCounts) {
  // Two of eight ranks gather other sizes than the rest of the group at the same sequence number.
  const auto results = OnRanks(8, 60, [](Communicator& c) {
    const int64_t count = c.rank() == 6 ? 76800 : 56320;
    std::vector<float> out(static_cast<size_t>(8 * count));
    return c.AllGather(Bytes(out) + c.rank() * count * 4, Bytes(out), count, DType::kF32);
  });
  for (const Status& status : results) {
    EXPECT_EQ(status.code(), StatusCode::kRunFailed);
    EXPECT_THAT(status.message(), HasSubstr("rank 6 does all_gather of 76800 fp32"));
    EXPECT_THAT(status.message(), HasSubstr("all_gather of 56320 fp32"));
  }
}

TEST(ThreadCommunicator, DifferentTypesRootsAndOperationsAreErrors) {
  const auto fails = [](const std::function<Status(Communicator&)>& body, const char* text) {
    for (const Status& status : OnRanks(2, 60, body)) {
      EXPECT_THAT(status.message(), HasSubstr(text));
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
  fails([&](Communicator& c) { return c.Send(buffer(c), 2, DType::kF32, 1 - c.rank()); },
        "no operation meets its partner: rank 0 does send");
  fails(
      [&](Communicator& c) {
        return c.rank() == 0 ? c.Send(buffer(c), 3, DType::kF32, 1) : c.Barrier();
      },
      "no operation meets its partner");
}

TEST(ThreadCommunicator, BadArgumentsAreRefused) {
  auto world = MakeThreadWorld(1, {60});
  std::vector<float> v(4);
  EXPECT_EQ(world[0]->AllReduce(Bytes(v), -1, DType::kF32).code(), StatusCode::kInvalidInput);
  EXPECT_EQ(world[0]->AllReduce(Bytes(v), 1, DType::kBf16).code(), StatusCode::kUnsupported);
  EXPECT_EQ(world[0]->Send(Bytes(v), 1, DType::kF32, 0).code(), StatusCode::kInvalidInput);
  EXPECT_EQ(world[0]->Broadcast(Bytes(v), 1, DType::kF32, 3).code(), StatusCode::kInvalidInput);
}

TEST(ThreadCommunicator, DeadlineNamesWhoIsMissing) {
  const auto results = OnRanks(4, 0.2, [](Communicator& c) {
    MW_RETURN_IF_ERROR(c.Barrier());
    if (c.rank() == 2) return Status::Ok();
    std::vector<float> v(4);
    return c.AllReduce(Bytes(v), 4, DType::kF32);
  });
  for (const int r : {0, 1, 3}) {
    const std::string& text = results[static_cast<size_t>(r)].message();
    EXPECT_THAT(text, HasSubstr("communicator world"));
    EXPECT_THAT(text, HasSubstr("all_reduce"));
    EXPECT_THAT(text, HasSubstr("not arrived: rank 2 (after its operation 1)"));
    for (const char* here : {"rank 0 (", "rank 1 (", "rank 3 ("})
      EXPECT_THAT(text, HasSubstr(here));
  }
  EXPECT_TRUE(results[2].ok());
}

TEST(ThreadCommunicator, AMissingReceiverIsNamed) {
  const auto results = OnRanks(3, 0.2, [](Communicator& c) {
    std::vector<float> v(4);
    return c.rank() == 0 ? c.Send(Bytes(v), 4, DType::kF32, 2) : Status::Ok();
  });
  EXPECT_THAT(results[0].message(), HasSubstr("send of rank 0"));
  EXPECT_THAT(results[0].message(), HasSubstr("not arrived: rank 2"));
}

TEST(ThreadCommunicator, AbortEndsAllOperationsOfAllCommunicators) {
  const auto results = OnRanks(4, 60, [](Communicator& c) -> Status {
    auto half = c.Split(c.rank() / 2, c.rank(), "half");
    MW_RETURN_IF_ERROR(half.status());
    std::vector<float> v(4);
    if (c.rank() == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      c.Abort(RunFailed("rank 3 gave up"));
      c.Abort(RunFailed("a later reason"));
      return c.Barrier();
    }
    if (c.rank() == 2) return half.value()->AllReduce(Bytes(v), 4, DType::kF32);
    return c.AllReduce(Bytes(v), 4, DType::kF32);
  });
  for (const Status& status : results) EXPECT_EQ(status.message(), "rank 3 gave up");
}

TEST(CreateGroups, MakesEveryGroupInOrderForItsMembers) {
  const std::vector<planner::Group> groups = {
      {"ring", planner::CommunicatorKind::kData, {3, 1, 0}},
      {"pair", planner::CommunicatorKind::kEdge, {2, 3}},
      {"one", planner::CommunicatorKind::kTensor, {1}},
  };
  const auto results = OnRanks(4, 60, [&](Communicator& world) {
    MW_ASSIGN_OR_RETURN(const auto made, CreateGroups(world, groups));
    for (size_t g = 0; g < groups.size(); ++g) {
      const auto& ranks = groups[g].ranks;
      const auto at = std::find(ranks.begin(), ranks.end(), world.rank());
      MW_RETURN_IF_ERROR(battery::Expect((at == ranks.end()) == (made[g] == nullptr), world, "in"));
      if (made[g] == nullptr) continue;
      const bool right = made[g]->rank() == at - ranks.begin() && made[g]->name() == groups[g].name;
      MW_RETURN_IF_ERROR(battery::Expect(right, world, "place"));
      MW_RETURN_IF_ERROR(battery::CheckMoves(*made[g], 3));
    }
    return Status::Ok();
  });
  for (const Status& status : results) EXPECT_TRUE(status.ok()) << status.message();
}

TEST(CreateGroups, RefusesRanksThatDoNotExist) {
  auto world = MakeThreadWorld(1, {60});
  for (const std::vector<int32_t>& ranks : {std::vector<int32_t>{0, 1}, {0, 0}, {-1}, {}}) {
    const auto made = CreateGroups(*world[0], {{"bad", planner::CommunicatorKind::kData, ranks}});
    EXPECT_THAT(made.status().message(), HasSubstr("group 0 (bad)"));
  }
}

}  // namespace
}  // namespace meshwright::runtime
