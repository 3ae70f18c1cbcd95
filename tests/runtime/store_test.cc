#include "runtime/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "tests/runtime/processes.h"
#include "tests/runtime/stores.h"

namespace meshwright::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

#define RETURN_UNLESS(condition) \
  if (!(condition)) return RunFailed("not so: " #condition)

void ExpectAllOk(const std::vector<Status>& results) {
  for (size_t r = 0; r < results.size(); ++r) {
    EXPECT_TRUE(results[r].ok()) << "rank " << r << ": " << results[r].message();
  }
}

class AnyStore : public testing::TestWithParam<StoreKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, AnyStore, testing::Values(StoreKind::kTcp, StoreKind::kFile),
                         [](const auto& kind) {
                           return kind.param == StoreKind::kTcp ? "Tcp" : "File";
                         });

TEST_P(AnyStore, GivesEveryRankTheSameValues) {
  ExpectAllOk(OnStores(GetParam(), 4, [](Store& s) -> Status {
    const std::string mine = "of/" + std::to_string(s.rank());
    const std::string bytes("a\0\xff\n", 4);
    MW_RETURN_IF_ERROR(s.Set(mine, bytes + mine));
    for (int r = 0; r < 4; ++r) {
      const std::string key = "of/" + std::to_string(r);
      MW_ASSIGN_OR_RETURN(const std::string value, s.Get(key, 60));
      RETURN_UNLESS(value == bytes + key);
    }
    MW_ASSIGN_OR_RETURN(const std::string first, s.SetOnce("once", mine));
    MW_RETURN_IF_ERROR(s.Barrier("all have tried", 60));
    MW_ASSIGN_OR_RETURN(const std::string again, s.SetOnce("once", "late"));
    RETURN_UNLESS(first == again);
    MW_ASSIGN_OR_RETURN(const auto list, s.List("of/"));
    RETURN_UNLESS(list.size() == 4 && list.count("of/3") == 1);
    MW_RETURN_IF_ERROR(s.Barrier("all have listed", 60));
    MW_RETURN_IF_ERROR(s.Remove(mine));
    MW_RETURN_IF_ERROR(s.Remove(mine));
    MW_ASSIGN_OR_RETURN(const auto gone, s.TryGet(mine));
    RETURN_UNLESS(!gone);
    return s.Barrier("end", 60);
  }));
}

TEST_P(AnyStore, CountsWithoutLosingAny) {
  ExpectAllOk(OnStores(GetParam(), 3, [](Store& s) -> Status {
    std::vector<std::thread> threads;
    std::vector<Status> results(4);
    for (size_t t = 0; t < results.size(); ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 10 && results[t].ok(); ++i) results[t] = s.Add("sum", 5).status();
      });
    }
    for (std::thread& t : threads) t.join();
    for (const Status& status : results) MW_RETURN_IF_ERROR(status);
    MW_RETURN_IF_ERROR(s.Barrier("counted", 60));
    MW_ASSIGN_OR_RETURN(const int64_t sum, s.Add("sum", 0));
    RETURN_UNLESS(sum == 3 * 4 * 10 * 5);
    return s.Barrier("end", 60);
  }));
}

TEST_P(AnyStore, WaitsForWhatAnotherThreadSets) {
  ExpectAllOk(OnStores(GetParam(), 1, [](Store& s) -> Status {
    std::vector<Status> results(6);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < results.size(); ++t) {
      threads.emplace_back([&, t] { results[t] = s.Get("late", 60).status(); });
    }
    // While they wait, others are served.
    for (int i = 0; i < 20; ++i) MW_RETURN_IF_ERROR(s.Set("other", "x"));
    MW_RETURN_IF_ERROR(s.Set("late", "now"));
    for (std::thread& t : threads) t.join();
    for (const Status& status : results) MW_RETURN_IF_ERROR(status);
    MW_ASSIGN_OR_RETURN(const auto both, s.WaitAny({"absent", "late", "other"}, 60));
    RETURN_UNLESS(both && both->index == 1 && both->value == "now");
    return Status::Ok();
  }));
}

TEST_P(AnyStore, DeadlineNamesTheKey) {
  MeetingPoint point(GetParam());
  auto store = point.Open(0, 1).value();
  const Status status = store->Get("never", 0.05).status();
  EXPECT_EQ(status.code(), StatusCode::kRunFailed);
  EXPECT_THAT(status.message(), HasSubstr("'never'"));
  EXPECT_THAT(status.message(), HasSubstr("store"));
  EXPECT_FALSE(store->WaitAny({"never"}, 0.0).value());
}

TEST_P(AnyStore, BarrierNamesWhoIsMissing) {
  const auto results = OnStores(GetParam(), 4, [](Store& s) {
    if (s.rank() == 1 || s.rank() == 2) return Status::Ok();
    return s.Barrier("start", 0.3);
  });
  for (const size_t r : {0U, 3U}) {
    EXPECT_THAT(results[r].message(), HasSubstr("barrier 'start' of 4 ranks"));
    EXPECT_THAT(results[r].message(), HasSubstr("not arrived: rank 1, 2"));
  }
}

TEST_P(AnyStore, AbortEndsBarriersWithTheFirstReason) {
  const auto results = OnStores(GetParam(), 3, [](Store& s) -> Status {
    if (s.rank() != 0) return s.Barrier("never complete", 60);
    const Status stands = PostAbort(s, InvalidInput("rank 0: the first reason\nof two lines"));
    RETURN_UNLESS(PostAbort(s, RunFailed("a later one")) == stands);
    return stands;
  });
  for (const Status& status : results) {
    EXPECT_EQ(status, InvalidInput("rank 0: the first reason\nof two lines"));
  }
}

TEST_P(AnyStore, RefusesKeysAndValuesOutOfBounds) {
  MeetingPoint point(GetParam());
  auto store = point.Open(0, 1).value();
  for (const std::string& key : {std::string(), std::string(kMaxStoreKeyBytes + 1, 'k'),
                                 std::string("tab\there"), std::string("\x01")}) {
    EXPECT_EQ(store->Set(key, "").code(), StatusCode::kInvalidInput);
    EXPECT_EQ(store->Add(key, 1).status().code(), StatusCode::kInvalidInput);
    EXPECT_EQ(store->Remove(key).code(), StatusCode::kInvalidInput);
    EXPECT_EQ(store->Get(key, 1).status().code(), StatusCode::kInvalidInput);
  }
  const std::string large(kMaxStoreValueBytes, 'v');
  EXPECT_EQ(store->Set("large", large + "v").code(), StatusCode::kInvalidInput);
  ASSERT_TRUE(store->Set("large", large).ok());
  EXPECT_EQ(store->Get("large", 60).value(), large);
  EXPECT_EQ(store->WaitAny({}, 0).status().code(), StatusCode::kInvalidInput);
  EXPECT_EQ(store->WaitAny(std::vector<std::string>(9, "k"), 0).status().code(),
            StatusCode::kInvalidInput);
}

TEST_P(AnyStore, ACounterThatIsNoneIsAnError) {
  MeetingPoint point(GetParam());
  auto store = point.Open(0, 1).value();
  ASSERT_TRUE(store->Set("word", "seven").ok());
  EXPECT_THAT(store->Add("word", 1).status().message(), HasSubstr("'word': not a counter"));
  ASSERT_TRUE(store->Add("most", INT64_MAX).ok());
  EXPECT_THAT(store->Add("most", 1).status().message(), HasSubstr("out of range"));
}

TEST_P(AnyStore, RefusesAnotherWorldAndARankThatIsThereTwice) {
  MeetingPoint point(GetParam());
  StoreOptions alone = point.Options(0, 2);
  alone.linger_s = 0;
  auto store = point.Open(alone).value();
  const Status other_world = point.Open(1, 3).status();
  EXPECT_EQ(other_world.code(), StatusCode::kInvalidInput);
  EXPECT_THAT(other_world.message(), HasSubstr("a run of 2 ranks, this is rank 1 of 3"));
  auto second = point.Open(1, 2);
  ASSERT_TRUE(second.ok()) << second.status().message();
  const Status twice = point.Open(1, 2).status();
  EXPECT_EQ(twice.code(), StatusCode::kInvalidInput);
  EXPECT_THAT(twice.message(), HasSubstr("rank 1 is there already"));
}

TEST(StoreOptions, AreChecked) {
  const auto refused = [](const StoreOptions& options) {
    return CheckStoreOptions(options).code() == StatusCode::kInvalidInput;
  };
  const StoreOptions good{"run", 1, 2};
  EXPECT_FALSE(refused(good));
  EXPECT_TRUE(refused({"", 0, 1}));
  EXPECT_TRUE(refused({std::string(129, 'r'), 0, 1}));
  EXPECT_TRUE(refused({"run", 2, 2}));
  EXPECT_TRUE(refused({"run", -1, 2}));
  EXPECT_TRUE(refused({"run", 0, 0}));
  EXPECT_TRUE(refused({"run", 0, 1, 0.0}));
  EXPECT_TRUE(refused({"run", 0, 1, std::nan("")}));
  EXPECT_TRUE(refused({"run", 0, 1, 1.0, 1e9}));
  EXPECT_TRUE(refused({"run", 0, 1, 1.0, 1.0, -1.0}));
  EXPECT_EQ(OpenTcpStore(good, {"localhost", 0}).status().code(), StatusCode::kInvalidInput);
  EXPECT_EQ(OpenTcpStore(good, {"", 80}).status().code(), StatusCode::kInvalidInput);
  EXPECT_EQ(OpenFileStore(good, "").status().code(), StatusCode::kInvalidInput);
}

TEST(Statuses, SurviveTheStore) {
  for (const Status& status : {Status::Ok(), InvalidInput("a:b"), NotFound(""), Infeasible("x"),
                               Unsupported("y\n"), RunFailed("z")}) {
    EXPECT_EQ(DecodeStatus(EncodeStatus(status)), status);
  }
  for (const char* text : {"", "no code", "7:seven", "12:x", ":"}) {
    EXPECT_EQ(DecodeStatus(text), RunFailed(text));
  }
}

TEST(TcpStore, RefusesAnotherRun) {
  MeetingPoint point(StoreKind::kTcp);
  StoreOptions alone = point.Options(0, 2);
  alone.linger_s = 0;
  auto store = point.Open(alone).value();
  StoreOptions other = point.Options(1, 2);
  other.run_id = "yesterday";
  const Status status = point.Open(other).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidInput);
  EXPECT_THAT(status.message(), HasSubstr("this is run 'yesterday'"));
  EXPECT_THAT(status.message(), HasSubstr("rank 1 of 2 cannot join"));
}

TEST(TcpStore, ARankMayComeBeforeRankZeroListens) {
  MeetingPoint point(StoreKind::kTcp);
  point.CloseListener();
  std::thread early([&] {
    auto store = point.Open(1, 2);
    ASSERT_TRUE(store.ok()) << store.status().message();
    EXPECT_EQ((*store)->Get("hello", 60).value(), "world");
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  auto store = point.Open(0, 2);
  EXPECT_TRUE(store.ok() && (*store)->Set("hello", "world").ok());
  early.join();
}

TEST(TcpStore, NobodyListensIsAnErrorByTheDeadline) {
  MeetingPoint point(StoreKind::kTcp);
  point.CloseListener();
  StoreOptions options = point.Options(1, 2);
  options.open_deadline_s = 0.2;
  const Status status = point.Open(options).status();
  EXPECT_EQ(status.code(), StatusCode::kRunFailed);
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(point.port())));
  EXPECT_THAT(status.message(), HasSubstr("refused"));
}

TEST(TcpStore, AListenerThatSaysNothingIsAnErrorByTheDeadline) {
  MeetingPoint point(StoreKind::kTcp);  // listens, but nobody accepts
  StoreOptions options = point.Options(1, 2);
  options.open_deadline_s = 0.2;
  EXPECT_EQ(point.Open(options).status().code(), StatusCode::kRunFailed);
}

TEST(TcpStore, APortThatIsTakenIsNamed) {
  MeetingPoint point(StoreKind::kTcp);
  const Status status = OpenTcpStore(point.Options(0, 1), {"127.0.0.1", point.port()}).status();
  EXPECT_EQ(status.code(), StatusCode::kRunFailed);
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(point.port())));
  EXPECT_THAT(status.message(), HasSubstr("in use"));
  EXPECT_THAT(status.message(), HasSubstr("MASTER_PORT"));
}

TEST(TcpStore, WorksOverIpv6) {
  MeetingPoint point(StoreKind::kTcp, "::1");
  if (!point.listens()) GTEST_SKIP() << "this machine has no IPv6 loopback";
  auto store = point.Open(0, 1);
  ASSERT_TRUE(store.ok()) << store.status().message();
  EXPECT_EQ((*store)->Add("n", 3).value(), 3);
}

TEST(TcpStore, GarbageOnThePortChangesNothing) {
  MeetingPoint point(StoreKind::kTcp);
  auto store = point.Open(0, 1).value();
  ASSERT_TRUE(store->Set("key", "value").ok());
  std::mt19937 random(7);
  const Deadline deadline(60);
  const auto knock = [&](const std::string& bytes) {
    auto socket = ConnectTcp("127.0.0.1", point.port(), Attempts::kUntilDeadline, deadline);
    ASSERT_TRUE(socket.ok()) << socket.status().message();
    // It may be closed in our face.
    [[maybe_unused]] const Status sent = WriteAll(*socket, bytes, deadline);
    EXPECT_EQ(store->Get("key", 60).value(), "value");
  };
  const std::string run_id = point.Options(0, 1).run_id;
  const auto frame = [](const std::string& body) {
    std::string bytes(4, '\0');
    for (size_t i = 0; i < 4; ++i) bytes[i] = static_cast<char>(body.size() >> (8 * i));
    return bytes + body;
  };
  std::string hello("\1\0\0\0\0\0\0\0\0", 9);
  hello += frame(run_id);
  const std::string greeting = "MWSTORE1" + frame(hello);
  knock("GET / HTTP/1.1\r\n\r\n");
  knock("MWSTORE1");
  knock("MWSTORE1\xff\xff\xff\xff");
  knock(greeting + "\xff\xff\xff\xff and more");
  knock(greeting + frame(""));
  knock(greeting.substr(0, greeting.size() - 1));
  for (int i = 0; i < 200; ++i) {
    std::string noise(random() % 300, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    knock(i % 2 == 0 ? noise : greeting + frame(noise));
  }
  EXPECT_FALSE(store->TryGet(GoneKey(0)).value());
}

TEST(TcpStore, AKilledProcessIsNoticedAndOneThatLeavesIsNot) {
  MeetingPoint point(StoreKind::kTcp);
  const auto join = [&](int rank) {
    return [&point, rank] {
      point.CloseListener();
      auto store = point.Open(rank, 3);
      if (!store.ok() || !(*store)->Set("here/" + std::to_string(rank), "").ok()) return 1;
      return (*store)->Get("go", 60).ok() ? 0 : 1;
    };
  };
  Child killed(join(1));
  Child leaves(join(2));
  auto store = point.Open(0, 3).value();
  ASSERT_TRUE(store->Get("here/1", 60).ok());
  ASSERT_TRUE(store->Get("here/2", 60).ok());
  killed.Signal(SIGKILL);
  EXPECT_TRUE(store->Get(GoneKey(1), 60).ok());
  ASSERT_TRUE(store->Set("go", "").ok());
  EXPECT_EQ(leaves.Wait(), 0);
  EXPECT_EQ(killed.Wait(), 128 + SIGKILL);
  EXPECT_FALSE(store->TryGet(GoneKey(2)).value());
}

TEST(TcpStore, WithRankZeroGoneCallsSaySo) {
  MeetingPoint point(StoreKind::kTcp);
  Child server([&] {
    auto store = point.Open(0, 2);
    if (!store.ok()) return 1;
    (void)(*store)->Get("never", 600).ok();
    return 0;
  });
  point.CloseListener();
  auto store = point.Open(1, 2);
  ASSERT_TRUE(store.ok()) << store.status().message();
  ASSERT_TRUE((*store)->Set("key", "value").ok());
  std::thread kill([&] { server.Signal(SIGKILL); });
  const Status waiting = (*store)->Get("other", 600).status();
  kill.join();
  for (const Status& status : {waiting, (*store)->Set("key", "again"), (*store)->Barrier("b", 9)}) {
    EXPECT_EQ(status.code(), StatusCode::kRunFailed);
    EXPECT_THAT(status.message(), HasSubstr("which rank 0 keeps"));
  }
}

TEST(TcpStore, RankZeroServesUntilTheOthersHaveLeft) {
  MeetingPoint point(StoreKind::kTcp);
  Child other([&] {
    point.CloseListener();
    auto store = point.Open(1, 2);
    if (!store.ok() || !(*store)->Set("here", "").ok()) return 1;
    usleep(200'000);
    return (*store)->Get("last words", 60).ok() ? 0 : 2;
  });
  {
    auto store = point.Open(0, 2).value();
    ASSERT_TRUE(store->Get("here", 60).ok());
    ASSERT_TRUE(store->Set("last words", "").ok());
  }
  EXPECT_EQ(other.Wait(), 0);
}

TEST(FileStore, LeavesNothingBehindAndKnowsWhatWasLeft) {
  MeetingPoint point(StoreKind::kFile);
  ASSERT_TRUE(point.Open(0, 1).ok());
  EXPECT_TRUE(std::filesystem::is_empty(point.directory()));
  Child killed([&] {
    auto store = point.Open(0, 1);
    raise(SIGKILL);
    return store.ok() ? 0 : 1;
  });
  EXPECT_EQ(killed.Wait(), 128 + SIGKILL);
  const Status again = point.Open(0, 1).status();
  EXPECT_EQ(again.code(), StatusCode::kInvalidInput);
  EXPECT_THAT(again.message(), HasSubstr("remove what an earlier run has left"));
}

TEST(FileStore, ProcessesMeet) {
  MeetingPoint point(StoreKind::kFile);
  const auto body = [&](int rank) -> Status {
    MW_ASSIGN_OR_RETURN(auto store, point.Open(rank, 3));
    for (int i = 0; i < 20; ++i) MW_RETURN_IF_ERROR(store->Add("sum", 1).status());
    MW_RETURN_IF_ERROR(store->Barrier("counted", 60));
    MW_ASSIGN_OR_RETURN(const int64_t sum, store->Add("sum", 0));
    RETURN_UNLESS(sum == 60);
    return store->Barrier("end", 60);
  };
  Child one([&] { return body(1).ok() ? 0 : 1; });
  Child two([&] { return body(2).ok() ? 0 : 1; });
  const Status status = body(0);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(one.Wait(), 0);
  EXPECT_EQ(two.Wait(), 0);
}

}  // namespace
}  // namespace meshwright::runtime
