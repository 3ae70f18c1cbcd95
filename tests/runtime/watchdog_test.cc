#include "runtime/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <sstream>

#include "tests/runtime/processes.h"
#include "tests/runtime/stores.h"

namespace meshwright::runtime {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Short times; what must not happen by chance has a long one.
WatchdogOptions Fast() {
  WatchdogOptions options;
  options.poll_s = 0.01;
  options.heartbeat_s = 0.02;
  options.dead_s = 60;
  options.stuck_s = 60;
  options.gather_s = 30;
  return options;
}

std::string FailureOf(Store& store, const WatchdogOptions& options, WatchdogHooks hooks = {},
                      FlightRecorder* recorder = nullptr) {
  auto watchdog = Watchdog::Start(store, options, std::move(hooks), recorder);
  if (!watchdog.ok()) return "no watchdog: " + watchdog.status().message();
  if (!(*watchdog)->WaitForFailure(100)) return "no failure";
  return (*watchdog)->failure().message();
}

/// A process with a store and a watchdog, until it is told to go.
int Rank(MeetingPoint& point, int rank, int world, const WatchdogOptions& options) {
  if (rank != 0) point.CloseListener();
  auto store = point.Open(rank, world);
  if (!store.ok()) return 10;
  auto watchdog = Watchdog::Start(**store, options, {}, nullptr);
  if (!watchdog.ok() || !(*store)->Set("here/" + std::to_string(rank), "").ok()) return 11;
  if (!(*store)->Get("go", 100).ok()) return 12;
  return (*watchdog)->Stop().ok() ? 0 : 13;
}

TEST(Watchdog, AKilledProcessIsNamedByAllOthers) {
  MeetingPoint point(StoreKind::kTcp);
  Child killed([&] { return Rank(point, 1, 3, Fast()); });
  Child other([&] {
    point.CloseListener();
    auto store = point.Open(2, 3);
    if (!store.ok()) return 1;
    const std::string reason = FailureOf(**store, Fast());
    return reason.find("rank 1 is gone") != std::string::npos ? 0 : 2;
  });
  auto store = point.Open(0, 3).value();
  ASSERT_TRUE(store->Get("here/1", 60).ok());
  killed.Signal(SIGKILL);
  EXPECT_THAT(FailureOf(*store, Fast()), HasSubstr("rank 1 is gone"));
  EXPECT_EQ(other.Wait(), 0);
}

TEST(Watchdog, RankZeroThatIsKilledIsNamed) {
  MeetingPoint point(StoreKind::kTcp);
  Child killed([&] { return Rank(point, 0, 2, Fast()); });
  point.CloseListener();
  auto store = point.Open(1, 2).value();
  ASSERT_TRUE(store->Get("here/0", 60).ok());
  killed.Signal(SIGKILL);
  EXPECT_THAT(FailureOf(*store, Fast()), HasSubstr("which rank 0 keeps"));
}

TEST(Watchdog, AStoppedProcessIsNamedByItsSilence) {
  for (const StoreKind kind : {StoreKind::kTcp, StoreKind::kFile}) {
    MeetingPoint point(kind);
    Child stopped([&] { return Rank(point, 1, 2, Fast()); });
    StoreOptions alone = point.Options(0, 2);
    alone.linger_s = 0;
    auto store = point.Open(alone).value();
    ASSERT_TRUE(store->Get("here/1", 60).ok());
    ASSERT_TRUE(store->Get("beat/1", 60).ok());
    stopped.Signal(SIGSTOP);
    WatchdogOptions options = Fast();
    options.dead_s = 0.3;
    EXPECT_THAT(FailureOf(*store, options),
                HasSubstr("rank 1 has given no sign of life for 0.3 s"));
  }
}

TEST(Watchdog, ARankThatEndsInOrderIsNoFailure) {
  MeetingPoint point(StoreKind::kTcp);
  Child leaves([&] { return Rank(point, 1, 2, Fast()); });
  auto store = point.Open(0, 2).value();
  ASSERT_TRUE(store->Get("here/1", 60).ok());
  ASSERT_TRUE(store->Set("go", "").ok());
  EXPECT_EQ(leaves.Wait(), 0);
  WatchdogOptions options = Fast();
  options.dead_s = 0.1;
  auto watchdog = Watchdog::Start(*store, options, {}, nullptr).value();
  EXPECT_FALSE(watchdog->WaitForFailure(0.5));
  EXPECT_TRUE(watchdog->Stop().ok());
}

TEST(Watchdog, AnErrorOfALibraryEndsAllRanksWithItsName) {
  std::atomic<int> told{0};
  for (const Status& status : OnStores(StoreKind::kTcp, 3, [&](Store& store) {
         WatchdogHooks hooks;
         if (store.rank() == 2) hooks.check = [] { return RunFailed("NCCL: remote error"); };
         hooks.on_failure = [&](const Status& reason) {
           EXPECT_EQ(reason.message(), "rank 2: NCCL: remote error");
           ++told;
         };
         const std::string reason = FailureOf(store, Fast(), hooks);
         return reason == "rank 2: NCCL: remote error" ? Status::Ok() : RunFailed(reason);
       })) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
  EXPECT_EQ(told, 3);
}

TEST(Watchdog, TheDeathBehindAnErrorOfALibraryIsTheReason) {
  MeetingPoint point(StoreKind::kTcp);
  Child killed([&] { return Rank(point, 1, 2, Fast()); });
  auto store = point.Open(0, 2).value();
  ASSERT_TRUE(store->Get("here/1", 60).ok());
  WatchdogOptions options = Fast();
  options.heartbeat_s = 5;  // time for the death to be seen
  WatchdogHooks hooks;
  hooks.check = [] { return RunFailed("NCCL: remote error"); };
  killed.Signal(SIGKILL);
  EXPECT_THAT(FailureOf(*store, options, hooks), HasSubstr("rank 1 is gone"));
}

TEST(Watchdog, AnErrorOfTheExecutorAndAnAbortAreTheReasonOfAll) {
  for (const Status& status : OnStores(StoreKind::kTcp, 2, [](Store& store) -> Status {
         MW_ASSIGN_OR_RETURN(auto watchdog, Watchdog::Start(store, Fast(), {}, nullptr));
         if (store.rank() == 1) watchdog->Fail(Infeasible("rank 1: the arena is too small"));
         if (!watchdog->WaitForFailure(100)) return RunFailed("no failure");
         EXPECT_EQ(watchdog->failure(), Infeasible("rank 1: the arena is too small"));
         return watchdog->Stop() == watchdog->failure() ? Status::Ok() : RunFailed("another");
       })) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(Watchdog, AHookThatHangsIsNamed) {
  static std::atomic<bool> release;  // the thread may outlive the test
  release = false;
  MeetingPoint point(StoreKind::kTcp);
  auto store = point.Open(0, 1).value();
  WatchdogOptions options = Fast();
  options.stuck_s = 0.2;
  options.gather_s = 0;
  WatchdogHooks hooks;
  hooks.check = [] {
    while (!release) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Status::Ok();
  };
  EXPECT_THAT(FailureOf(*store, options, hooks),
              AllOf(HasSubstr("rank 0"), HasSubstr("has not returned for 0.2 s")));
  release = true;
}

/// One stream whose work meets that of the other rank: done once both have put it there.
class Fake {
 public:
  Fake() : recorder_(64) {}

  void Do(int64_t item, bool done) {
    FlightRecord record;
    record.group = 0;
    record.op = CommOp::kAllReduce;
    record.sequence = ++progress_.enqueued;
    record.bytes = 256;
    record.step = 4;
    record.item = item;
    record.enqueued_ns = WallClockNs();
    const int64_t number = recorder_.Add(record);
    if (!done) return;
    recorder_.SetDone(number, WallClockNs());
    ++progress_.completed;
  }
  WatchdogHooks Hooks() {
    WatchdogHooks hooks;
    hooks.progress = [this] { return std::vector<StreamProgress>{{}, progress_}; };
    hooks.describe = [](size_t stream, int64_t number) {
      return "stream " + std::to_string(stream) + ", work " + std::to_string(number);
    };
    hooks.item = [](int64_t item) { return "task " + std::to_string(item); };
    hooks.groups = {{"dp 0,1", planner::CommunicatorKind::kData, {0, 1}}};
    return hooks;
  }
  FlightRecorder& recorder() { return recorder_; }

 private:
  FlightRecorder recorder_;
  StreamProgress progress_;
};

TEST(Watchdog, ALeftOutOperationIsNamedOnAllRanksWithItsCulprit) {
  MeetingPoint files(StoreKind::kFile);  // for the dumps
  std::vector<std::string> reasons(2);
  for (const Status& status : OnStores(StoreKind::kTcp, 2, [&](Store& store) -> Status {
         Fake fake;
         const bool leaves_out = store.rank() == 1;
         fake.Do(1, true);
         if (!leaves_out) fake.Do(2, true);  // meets item 3 of the other: same size
         fake.Do(3, true);
         if (!leaves_out) fake.Do(4, false);
         WatchdogOptions options = Fast();
         options.stuck_s = 1;
         options.dump_path = (files.directory() / std::to_string(store.rank())).string();
         reasons[static_cast<size_t>(store.rank())] =
             FailureOf(store, options, fake.Hooks(), &fake.recorder());
         MW_ASSIGN_OR_RETURN(const auto posted, ReadAbort(store));
         return posted ? Status::Ok() : RunFailed("not aborted");
       })) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
  EXPECT_EQ(reasons[0], reasons[1]);
  EXPECT_THAT(reasons[0], HasSubstr("rank 0: no progress for 1 s; it waits in stream 1, work 3"));
  EXPECT_THAT(reasons[0], HasSubstr("communicator 'dp 0,1': rank 0 does operation 2 (all_reduce of "
                                    "256 bytes fp32), step 4, task 2, rank 1 does operation 2"));
  EXPECT_THAT(reasons[0], HasSubstr("rank 1 has left out what rank 0 waits for"));
  std::ifstream file(files.directory() / "0");
  std::stringstream text;
  text << file.rdbuf();
  const auto dumped = ParseJsonLines(text.str());
  ASSERT_TRUE(dumped.ok()) << dumped.status().message();
  EXPECT_EQ(dumped->size(), 4U);
  EXPECT_EQ(dumped->back().item, "task 4");
}

TEST(Watchdog, ProgressOnOneStreamIsEnough) {
  MeetingPoint point(StoreKind::kTcp);
  auto store = point.Open(0, 1).value();
  WatchdogOptions options = Fast();
  options.stuck_s = 1;
  std::atomic<int64_t> done{0};
  WatchdogHooks hooks;
  hooks.progress = [&] { return std::vector<StreamProgress>{{5, 1}, {1'000'000, ++done}}; };
  auto watchdog = Watchdog::Start(*store, options, hooks, nullptr).value();
  EXPECT_FALSE(watchdog->WaitForFailure(2.5));
  EXPECT_TRUE(watchdog->Stop().ok());
}

TEST(Watchdog, IdleIsNotStuck) {
  MeetingPoint point(StoreKind::kTcp);
  auto store = point.Open(0, 1).value();
  WatchdogOptions options = Fast();
  options.stuck_s = 1;
  WatchdogHooks hooks;
  hooks.progress = [] { return std::vector<StreamProgress>{{7, 7}}; };
  auto watchdog = Watchdog::Start(*store, options, hooks, nullptr).value();
  EXPECT_FALSE(watchdog->WaitForFailure(2.0));
}

TEST(Watchdog, OptionsAreChecked) {
  MeetingPoint point(StoreKind::kFile);
  auto store = point.Open(0, 1).value();
  for (const auto& change : std::vector<std::function<void(WatchdogOptions&)>>{
           [](auto& o) { o.poll_s = 0; }, [](auto& o) { o.heartbeat_s = -1; },
           [](auto& o) { o.dead_s = o.heartbeat_s; }, [](auto& o) { o.stuck_s = 1e99; },
           [](auto& o) { o.gather_s = -1; }}) {
    WatchdogOptions options;
    change(options);
    EXPECT_EQ(Watchdog::Start(*store, options, {}, nullptr).status().code(),
              StatusCode::kInvalidInput);
  }
}

}  // namespace
}  // namespace meshwright::runtime
