#include "runtime/diagnose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshwright::runtime {
namespace {

using testing::HasSubstr;

const std::vector<planner::Group> kGroups = {
    {"dp", planner::CommunicatorKind::kData, {0, 1}},
    {"edge", planner::CommunicatorKind::kEdge, {0, 1}},
    {"all", planner::CommunicatorKind::kWorld, {0, 1, 2}},
};

/// What a rank does on its groups, one call an operation.
class Log {
 public:
  Log& Do(int rank, int32_t group, const std::string& item, int64_t bytes = 64,
          CommOp op = CommOp::kAllReduce) {
    FlightEntry e;
    e.rank = rank;
    e.item = item;
    e.record.group = group;
    e.record.op = op;
    e.record.bytes = bytes;
    e.record.step = 5;
    e.record.sequence = ++sequence_[{rank, group}];
    e.record.enqueued_ns = ++clock_;
    e.record.done_ns = ++clock_;
    entries_.push_back(e);
    return *this;
  }
  /// As Do, but it is not done.
  Log& Hang(int rank, int32_t group, const std::string& item, int64_t bytes = 64,
            CommOp op = CommOp::kAllReduce) {
    Do(rank, group, item, bytes, op);
    entries_.back().record.done_ns = 0;
    return *this;
  }
  /// Number of the last operation in its step.
  Log& At(int64_t item) {
    entries_.back().record.item = item;
    return *this;
  }
  std::optional<Diagnosis> Result() const { return Diagnose(entries_, kGroups); }

 private:
  std::vector<FlightEntry> entries_;
  std::map<std::pair<int, int32_t>, int64_t> sequence_;
  int64_t clock_ = 100;
};

TEST(Diagnose, NothingToSayWhenAllIsDoneOrAllDidTheSame) {
  EXPECT_FALSE(Log().Result());
  EXPECT_FALSE(Log().Do(0, 0, "a").Do(1, 0, "a").Do(0, 0, "b").Result());
  EXPECT_FALSE(Log().Hang(0, 0, "a").Hang(1, 0, "a").Result());
}

TEST(Diagnose, ARankThatHasNotComeIsNamed) {
  const auto d = Log().Do(0, 0, "a").Do(1, 0, "a").Hang(0, 0, "b").Result();
  ASSERT_TRUE(d);
  EXPECT_EQ(d->group, 0);
  EXPECT_EQ(d->sequence, 2);
  EXPECT_EQ(d->culprit, 1);
  EXPECT_EQ(d->text,
            "communicator 'dp': rank 0 waits in operation 2 (all_reduce of 64 bytes fp32), step 5, "
            "b, rank 1 has not come there; its last there was operation 1 (all_reduce of 64 bytes "
            "fp32), step 5, a");
}

TEST(Diagnose, ARankThatHasDoneNothingIsNamed) {
  const auto d = Log().Do(1, 1, "x").Hang(0, 0, "a").Result();
  ASSERT_TRUE(d);
  EXPECT_EQ(d->culprit, 1);
  EXPECT_THAT(d->text, HasSubstr("it has done nothing on it"));
}

TEST(Diagnose, ALeftOutOperationOfEqualSizeIsFoundByItsTask) {
  // Rank 1 leaves out "b": its "c" meets rank 0's "b".
  const auto d = Log()
                     .Do(0, 0, "a")
                     .Do(0, 0, "b")
                     .Do(0, 0, "c")
                     .Hang(0, 0, "d")
                     .Do(1, 0, "a")
                     .Do(1, 0, "c")
                     .Do(1, 0, "d")
                     .Result();
  ASSERT_TRUE(d);
  EXPECT_EQ(d->sequence, 2);
  EXPECT_EQ(d->culprit, 1);
  EXPECT_THAT(d->text,
              HasSubstr("rank 0 does operation 2 (all_reduce of 64 bytes fp32), step 5, b"));
  EXPECT_THAT(d->text, HasSubstr("step 5, c: rank 1 has left out what rank 0 waits for"));
}

TEST(Diagnose, ALeftOutOperationOfAnotherSizeIsFoundAtOnce) {
  const auto d = Log().Hang(1, 0, "grads", 100).Do(1, 0, "norm", 8).Hang(0, 0, "norm", 8).Result();
  ASSERT_TRUE(d);
  EXPECT_EQ(d->sequence, 1);
  EXPECT_EQ(d->culprit, 0);
}

TEST(Diagnose, DifferentTasksFromTheStartAreNoDifference) {
  // Members of other classes call the same operation otherwise.
  const auto d = Log().Do(0, 0, "p").Do(1, 0, "q").Hang(0, 0, "r").Hang(1, 0, "s").Result();
  EXPECT_FALSE(d);
}

TEST(Diagnose, DifferentOperationsNameBothRanks) {
  const auto d = Log()
                     .Hang(0, 0, "a", 64, CommOp::kAllReduce)
                     .Hang(1, 0, "a", 64, CommOp::kAllGather)
                     .Result();
  ASSERT_TRUE(d);
  EXPECT_EQ(d->culprit, -1);
  EXPECT_THAT(d->text, HasSubstr("rank 0 does operation 1 (all_reduce"));
  EXPECT_THAT(d->text, HasSubstr("rank 1 does operation 1 (all_gather"));
}

TEST(Diagnose, MessagesMeetWhenOneSendsAndOneReceives) {
  EXPECT_FALSE(
      Log().Hang(0, 1, "send", 64, CommOp::kSend).Hang(1, 1, "recv", 64, CommOp::kRecv).Result());
  EXPECT_TRUE(
      Log().Hang(0, 1, "send", 64, CommOp::kSend).Hang(1, 1, "recv", 32, CommOp::kRecv).Result());
}

/// Rank 1 leaves out a reduction and waits further on, where it happened to come first.
TEST(Diagnose, OfTwoThatMissEachOtherTheOneFurtherOnLeftSomethingOut) {
  for (const bool ahead_first : {false, true}) {
    Log log;
    log.Do(0, 0, "a").Do(1, 0, "a");
    if (ahead_first) log.Hang(1, 2, "world").At(20);
    log.Hang(0, 0, "b").At(10);
    if (!ahead_first) log.Hang(1, 2, "world").At(20);
    const auto d = log.Result();
    ASSERT_TRUE(d);
    EXPECT_EQ(d->culprit, 1);
    EXPECT_EQ(d->group, 0);
  }
}

TEST(Diagnose, TheFirstToWaitIsTheCause) {
  // Rank 2 has not come to "all"; because of that rank 0 has not come to "dp".
  const auto d = Log().Hang(0, 2, "norm").Hang(1, 2, "norm").Do(2, 2, "").Hang(1, 0, "x").Result();
  EXPECT_TRUE(d);
  const auto missing = Log()
                           .Do(0, 2, "n")
                           .Do(1, 2, "n")
                           .Do(2, 2, "n")
                           .Hang(0, 2, "norm")
                           .Hang(1, 2, "norm")
                           .Hang(1, 0, "x")
                           .Do(0, 1, "y")
                           .Result();
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->group, 2);
  EXPECT_EQ(missing->culprit, 2);
}

}  // namespace
}  // namespace meshwright::runtime
