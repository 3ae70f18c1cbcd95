// Run by mpirun with several processes; each of them runs these tests together with the others.
#include "runtime/mpi_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "tests/runtime/communicator_battery.h"
#include "tests/runtime/mpi_main.h"

namespace meshwright::runtime {
namespace {

using battery::Bytes;
using planner::DType;
using testing::HasSubstr;

Communicator& World() {
  return TestSession()->world();
}

TEST(MpiCommunicator, GivesWhatTheInterfacePromises) {
  // The largest count makes every member the owner of a piece of the sum.
  for (const int64_t count : {0, 1, 4, 100, 20000}) {
    const Status status = battery::CheckOperations(World(), count);
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

TEST(MpiCommunicator, ManySmallOperationsOfSeveralThreads) {
  constexpr int kThreads = 3;
  std::vector<std::unique_ptr<Communicator>> worlds;
  for (int t = 0; t < kThreads; ++t) {
    auto made = World().Split(0, World().rank(), "copy");
    ASSERT_TRUE(made.ok()) << made.status().message();
    worlds.push_back(std::move(made).value());
  }
  std::vector<Status> results(kThreads);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20 && results[t].ok(); ++i) {
        results[t] = battery::CheckSums<double>(*worlds[t], 17);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : results) EXPECT_TRUE(status.ok()) << status.message();
}

// Last: nothing works after it.
TEST(MpiCommunicator, ZDisagreementAndAbortEndEveryProcess) {
  ASSERT_GE(World().size(), 3);
  std::vector<float> v(100);
  const int64_t count = World().rank() == 2 ? 60 : 50;
  const Status status = World().AllReduce(Bytes(v), count, DType::kF32);
  EXPECT_EQ(status.code(), StatusCode::kRunFailed);
  if (World().rank() == 0) {  // adds the contributions
    EXPECT_THAT(status.message(), HasSubstr("rank 2 does all_reduce of fp32 with 240 bytes"));
    EXPECT_THAT(status.message(), HasSubstr("rank 0 does all_reduce of fp32 with 200 bytes"));
    World().Abort(RunFailed("rank 0 says stop"));
  } else {
    EXPECT_EQ(status.message(), "rank 0 says stop");
  }
  EXPECT_EQ(World().abort_reason().message(), "rank 0 says stop");
  EXPECT_EQ(World().Barrier().message(), "rank 0 says stop");
}

}  // namespace
}  // namespace meshwright::runtime
