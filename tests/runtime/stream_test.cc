#include "runtime/stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace meshwright::runtime {
namespace {

/// Notes the order in which pieces of work ran. A piece is a number; some of them are slow.
class Log {
 public:
  StreamSet::Run Run() {
    return [this](planner::StreamId, const StreamWork& work) {
      const int number = *static_cast<const int*>(work.item);
      if (number >= 100) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      const std::lock_guard lock(mutex_);
      order_.push_back(number);
    };
  }
  std::vector<int> order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }
  /// Position of a number that ran once.
  int64_t At(int number) {
    const std::vector<int> all = order();
    return std::find(all.begin(), all.end(), number) - all.begin();
  }

 private:
  std::mutex mutex_;
  std::vector<int> order_;
};

// Numbers with addresses.
const int kNumbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
const int kSlow[] = {100, 101, 102, 103};

TEST(StreamSet, RunsAStreamInOrder) {
  Log log;
  std::vector<int> numbers(1000);
  StreamSet streams({true}, 0, log.Run());
  for (int i = 0; i < 1000; ++i) {
    numbers[static_cast<size_t>(i)] = i % 100;
    streams.Launch(0, {&numbers[static_cast<size_t>(i)]});
  }
  streams.Synchronize();
  EXPECT_EQ(log.order(), numbers);
}

TEST(StreamSet, AWaitHoldsUntilTheEvent) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    Log log;
    StreamSet streams({true, true}, 2, log.Run());
    streams.Launch(0, {&kSlow[0]});
    streams.Record(0, 1);
    streams.Wait(1, 1);
    streams.Launch(1, {&kNumbers[1]});
    streams.Synchronize();
    EXPECT_EQ(log.order(), (std::vector<int>{100, 1}));
  }
}

TEST(StreamSet, AnEventWithoutRecordIsComplete) {
  Log log;
  StreamSet streams({true, true}, 1, log.Run());
  streams.Wait(0, 0);
  streams.Launch(0, {&kNumbers[1]});
  streams.Synchronize();
  EXPECT_EQ(log.order(), std::vector<int>{1});
}

TEST(StreamSet, AWaitBindsToTheLatestRecordBeforeIt) {
  // Work 1 waits for the first record only: the second, which comes later, waits for work 1 itself.
  Log log;
  StreamSet streams({true, true}, 2, log.Run());
  streams.Launch(0, {&kSlow[0]});
  streams.Record(0, 0);
  streams.Wait(1, 0);
  streams.Launch(1, {&kNumbers[1]});
  streams.Record(1, 1);
  streams.Wait(0, 1);
  streams.Launch(0, {&kSlow[1]});
  streams.Record(0, 0);
  streams.Wait(1, 0);
  streams.Launch(1, {&kNumbers[2]});
  streams.Synchronize();
  EXPECT_EQ(log.order(), (std::vector<int>{100, 1, 101, 2}));
}

TEST(StreamSet, AnEventLastsIntoTheNextStep) {
  Log log;
  StreamSet streams({true, true}, 1, log.Run());
  streams.Launch(0, {&kSlow[0]});
  streams.Record(0, 0);
  streams.Fence(1);
  streams.Wait(1, 0);
  streams.Launch(1, {&kNumbers[1], 1});
  streams.Synchronize();
  EXPECT_EQ(log.order(), (std::vector<int>{100, 1}));
}

TEST(StreamSet, WaitsForMoreStreamsThanAnItemHolds) {
  Log log;
  StreamSet streams(std::vector<bool>(10, true), 10, log.Run());
  for (planner::StreamId s = 1; s < 10; ++s) {
    streams.Launch(s, {&kSlow[s % 4]});
    streams.Record(s, s);
    streams.Wait(0, s);
  }
  streams.Launch(0, {&kNumbers[7]});
  streams.Synchronize();
  EXPECT_EQ(log.At(7), 9);
}

TEST(StreamSet, ARecordAfterAWaitIncludesWhatWasWaitedFor) {
  Log log;
  StreamSet streams({true, true, true}, 2, log.Run());
  streams.Launch(0, {&kSlow[0]});
  streams.Record(0, 0);
  streams.Wait(1, 0);  // no work of its own between wait and record
  streams.Record(1, 1);
  streams.Wait(2, 1);
  streams.Launch(2, {&kNumbers[1]});
  streams.Synchronize();
  EXPECT_EQ(log.order(), (std::vector<int>{100, 1}));
}

TEST(StreamSet, AFenceBoundsTheRunAhead) {
  std::atomic<int> running{0};
  std::atomic<int64_t> done{0};
  StreamSet streams({true}, 0, [&](planner::StreamId, const StreamWork& work) {
    ++running;
    done = work.step + 1;
    --running;
  });
  for (int64_t step = 0; step < 50; ++step) {
    streams.Launch(0, {&kNumbers[0], step});
    streams.Fence(1);
    EXPECT_GE(done.load(), step);
  }
  streams.Synchronize();
  EXPECT_EQ(done.load(), 50);
}

TEST(StreamSet, CancelSkipsWhatHasNotStarted) {
  std::atomic<int> ran{0};
  std::atomic<bool> release{false};
  StreamSet streams({true, true}, 1, [&](planner::StreamId, const StreamWork&) {
    ++ran;
    while (!release) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  streams.Launch(0, {&kNumbers[0]});
  streams.Record(0, 0);
  while (ran == 0) std::this_thread::yield();
  streams.Wait(1, 0);
  streams.Launch(1, {&kNumbers[1]});
  streams.Launch(0, {&kNumbers[2]});
  streams.Cancel();
  release = true;
  streams.Synchronize();
  EXPECT_EQ(ran, 1);
}

TEST(StreamSet, TheDestructorDoesNotWaitForMoreThanWhatRuns) {
  std::atomic<int> ran{0};
  {
    StreamSet streams({true, false}, 0, [&](planner::StreamId, const StreamWork&) { ++ran; });
    for (int i = 0; i < 100; ++i) streams.Launch(0, {&kNumbers[0]});
  }
  EXPECT_LE(ran, 100);
}

}  // namespace
}  // namespace meshwright::runtime
