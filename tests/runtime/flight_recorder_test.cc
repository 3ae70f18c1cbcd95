#include "runtime/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshwright::runtime {
namespace {

using testing::HasSubstr;

FlightRecord Record(int64_t sequence) {
  FlightRecord r;
  r.group = 2;
  r.op = CommOp::kReduceScatter;
  r.sequence = sequence;
  r.bytes = 4096;
  r.dtype = planner::DType::kBf16;
  r.step = 3;
  r.item = 7;
  r.enqueued_ns = 1000 + sequence;
  return r;
}

TEST(FlightRecorder, KeepsTheLastInOrder) {
  FlightRecorder recorder(3);
  EXPECT_TRUE(recorder.Snapshot().empty());
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(recorder.Add(Record(i)), i);
  const auto kept = recorder.Snapshot();
  ASSERT_EQ(kept.size(), 3U);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(kept[i], Record(static_cast<int64_t>(i) + 2));
}

TEST(FlightRecorder, TimesGoToTheirRecordWhileItIsKept) {
  FlightRecorder recorder(2);
  for (int64_t i = 0; i < 3; ++i) recorder.Add(Record(i));
  recorder.SetStarted(1, 11);
  recorder.SetDone(2, 22);
  for (const int64_t passed : {0, -1, 3}) {
    recorder.SetStarted(passed, 99);
    recorder.SetDone(passed, 99);
  }
  const auto kept = recorder.Snapshot();
  EXPECT_EQ(kept[0].started_ns, 11);
  EXPECT_EQ(kept[0].done_ns, 0);
  EXPECT_EQ(kept[1].started_ns, 0);
  EXPECT_EQ(kept[1].done_ns, 22);
}

TEST(FlightRecords, SurviveJsonLines) {
  FlightRecord done = Record(2);
  done.started_ns = 5;
  done.done_ns = 6;
  const FlightNames names{[](int32_t group) { return "group " + std::to_string(group); },
                          [](int64_t) { return "a \"label\"\n\xff"; }};
  const auto entries = Name(1, {Record(1), done}, names);
  const std::string text = ToJsonLines(entries);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_THAT(text, HasSubstr("\"done_ns\":null"));
  EXPECT_THAT(text, HasSubstr("\"op\":\"reduce_scatter\""));
  const auto back = ParseJsonLines(text).value();
  ASSERT_EQ(back.size(), 2U);
  EXPECT_EQ(back[0].record, Record(1));
  EXPECT_EQ(back[1].record, done);
  EXPECT_EQ(back[1].rank, 1);
  EXPECT_EQ(back[1].communicator, "group 2");
  EXPECT_THAT(back[1].item, HasSubstr("a \"label\"\n"));
}

TEST(FlightRecords, BadLinesAreErrorsWithTheirNumber) {
  const std::string good = ToJsonLines(Name(0, {Record(1)}, {}));
  for (const std::string& bad :
       {std::string("{"), std::string("[]"), std::string("{}"), std::string("null"),
        std::string(R"({"rank":"x"})"), std::string("")}) {
    const auto parsed = ParseJsonLines(good + bad + "\n");
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidInput) << bad;
    EXPECT_THAT(parsed.status().message(), HasSubstr("line 2")) << bad;
  }
  std::string unknown = good;
  unknown.replace(unknown.find("reduce_scatter"), 14, "reduce_scattex");
  EXPECT_THAT(ParseJsonLines(unknown).status().message(), HasSubstr("'reduce_scattex'"));
}

}  // namespace
}  // namespace meshwright::runtime
