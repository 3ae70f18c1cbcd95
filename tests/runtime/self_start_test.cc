#include "runtime/self_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "tests/runtime/processes.h"

namespace meshwright::runtime {
namespace {

using testing::HasSubstr;

constexpr int kEnded = 42;

SelfStartOutcome Start(const SelfStartOptions& options,
                       const std::function<int(const LaunchFacts&)>& body) {
  auto outcome = StartRanks(options, body);
  EXPECT_TRUE(outcome.ok()) << outcome.status().message();
  return outcome.ok() ? *outcome : SelfStartOutcome{-1};
}

/// Sleeps until a signal ends the process.
int Forever() {
  while (true) pause();
}

TEST(StartRanks, RanksMeetInTheStore) {
  const auto outcome = Start({3}, [](const LaunchFacts& facts) {
    if (facts.launcher != Launcher::kSelf || facts.world != 3 || facts.local_world != 3) return 10;
    auto store = OpenStore(facts);
    if (!store.ok()) return 11;
    auto sum = (*store)->Add("ranks", facts.rank);
    if (!sum.ok() || !(*store)->Barrier("added", 60).ok()) return 12;
    sum = (*store)->Add("ranks", 0);
    return sum.ok() && *sum == 3 ? 0 : 13;
  });
  EXPECT_EQ(outcome.exit_code, 0) << outcome.what;
  EXPECT_EQ(outcome.rank, -1);
  EXPECT_EQ(outcome.what, "");
}

TEST(StartRanks, RanksSeeWhatTorchrunWouldSet) {
  const auto outcome = Start({2}, [](const LaunchFacts& facts) {
    const auto seen = DetectLaunch(ProcessEnvironment());
    if (!seen.ok() || seen->launcher != Launcher::kTorchrun) return 10;
    const bool same = seen->rank == facts.rank && seen->world == 2 && seen->local_world == 2 &&
                      seen->local_rank == facts.rank && seen->node == 0 &&
                      seen->master_address == facts.master_address &&
                      seen->store_port == facts.store_port;
    return same ? 0 : 11;
  });
  EXPECT_EQ(outcome.exit_code, 0) << outcome.what;
}

TEST(StartRanks, TheFirstFailureEndsTheOthers) {
  const auto outcome = Start(
      {3, 0.05, 60}, [](const LaunchFacts& facts) { return facts.rank == 1 ? 7 : Forever(); });
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_EQ(outcome.rank, 1);
  EXPECT_EQ(outcome.what, "rank 1 ended with exit code 7");
}

TEST(StartRanks, ARankThatIgnoresSigtermIsKilled) {
  const auto outcome = Start({2, 0.0, 0.05}, [](const LaunchFacts& facts) {
    if (facts.rank == 1) return 7;
    signal(SIGTERM, SIG_IGN);
    return Forever();
  });
  EXPECT_EQ(outcome.exit_code, 7);
}

TEST(StartRanks, TheOthersHaveTimeToEndByThemselves) {
  const auto outcome = Start({2, 60, 0}, [](const LaunchFacts& facts) {
    if (facts.rank == 1) return 7;
    usleep(200'000);
    return 8;
  });
  EXPECT_EQ(outcome.exit_code, 7);
}

TEST(StartRanks, ASignalIsAFailedRun) {
  const auto outcome = Start({2, 0.05, 5}, [](const LaunchFacts& facts) {
    if (facts.rank == 0) raise(SIGKILL);
    return Forever();
  });
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.rank, 0);
  EXPECT_THAT(outcome.what, HasSubstr("rank 0 was ended by signal 9 (Killed)"));
}

TEST(StartRanks, SignalsAreForwarded) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  Child parent([&] {
    const auto outcome = StartRanks({2, 30, 30}, [&](const LaunchFacts&) {
      signal(SIGINT, [](int) { _exit(kEnded); });
      return write(pipes[1], "x", 1) == 1 ? Forever() : 1;
    });
    return outcome.ok() ? outcome->exit_code : 1;
  });
  char byte = 0;
  for (int i = 0; i < 2; ++i) ASSERT_EQ(read(pipes[0], &byte, 1), 1);
  parent.Signal(SIGINT);
  EXPECT_EQ(parent.Wait(), 128 + SIGINT);
  close(pipes[0]);
  close(pipes[1]);
}

TEST(StartRanks, RanksDoNotOutliveTheirParent) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  Child parent([&] {
    close(pipes[0]);
    (void)StartRanks({2}, [&](const LaunchFacts&) {
      return write(pipes[1], "x", 1) == 1 ? Forever() : 1;
    }).ok();
    return 1;
  });
  close(pipes[1]);
  char byte = 0;
  for (int i = 0; i < 2; ++i) ASSERT_EQ(read(pipes[0], &byte, 1), 1);
  parent.Signal(SIGKILL);
  EXPECT_EQ(read(pipes[0], &byte, 1), 0);  // the last holder of the other end is gone
  close(pipes[0]);
}

TEST(StartRanks, OptionsAreChecked) {
  const auto body = [](const LaunchFacts&) { return 0; };
  for (const SelfStartOptions& bad : {SelfStartOptions{0}, SelfStartOptions{-1},
                                      SelfStartOptions{1025}, SelfStartOptions{2, -1.0}}) {
    EXPECT_EQ(StartRanks(bad, body).status().code(), StatusCode::kInvalidInput);
  }
}

}  // namespace
}  // namespace meshwright::runtime
