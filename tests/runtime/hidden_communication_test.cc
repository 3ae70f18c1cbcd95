// Shares of hidden communication: rows by hand, and those that CPU ranks record.
#include "runtime/hidden_communication.h"

#include <gtest/gtest.h>

#include "planner/ir/op_schema.h"
#include "runtime/data_source.h"
#include "runtime/run.h"
#include "tests/planner/verify_common.h"

namespace meshwright::runtime {
namespace {

using planner::OpKind;
using planner::OpTraceRow;
using planner::StreamKind;

OpTraceRow Compute(int32_t rank, int64_t start, int64_t end) {
  return {rank, 0, OpKind::kLinear, StreamKind::kCompute, -1, start, end};
}
OpTraceRow Traffic(StreamKind stream, int32_t rank, int32_t group, int64_t start, int64_t end) {
  return {rank, 0, OpKind::kAllReduce, stream, group, start, end};
}

void ExpectTime(const CommunicationTime& time, StreamKind traffic, double busy_ns,
                double hidden_ns) {
  EXPECT_EQ(time.traffic, traffic);
  EXPECT_NEAR(time.busy_s * 1e9, busy_ns, 1e-6);
  EXPECT_NEAR(time.hidden_s * 1e9, hidden_ns, 1e-6);
}

TEST(HiddenCommunication, IsWhatOverlapsWithComputationOfTheSameRank) {
  const auto times = HiddenCommunication({
      Compute(0, 0, 100), Compute(0, 100, 150),  // adjacent: one interval
      Compute(0, 180, 300),
      Traffic(StreamKind::kData, 0, 0, 50, 200),  // hidden 50..150 and 180..200
      Compute(1, 0, 60),
      Traffic(StreamKind::kData, 1, 0, 50, 200),  // hidden 50..60; rank 0 computes longer
  });
  ASSERT_EQ(times.size(), 1U);
  ExpectTime(times[0], StreamKind::kData, 300, 130);
  EXPECT_NEAR(times[0].hidden_share(), 130.0 / 300.0, 1e-12);
}

TEST(HiddenCommunication, WaitingForAPartnerIsNotOnTheWire) {
  // Rank 1 comes 800 later by a clock that is 5000 ahead.
  const auto times = HiddenCommunication({
      Compute(0, 0, 900),
      Traffic(StreamKind::kTensor, 0, 3, 100, 1000),
      Compute(1, 5000, 5900),
      Traffic(StreamKind::kTensor, 1, 3, 5900, 6000),
  });
  ASSERT_EQ(times.size(), 1U);
  ExpectTime(times[0], StreamKind::kTensor, 200, 0);
}

TEST(HiddenCommunication, OperationsOfAGroupMeetInOrder) {
  const auto times = HiddenCommunication({
      Traffic(StreamKind::kTensor, 0, 0, 0, 10), Traffic(StreamKind::kTensor, 0, 0, 20, 100),
      Traffic(StreamKind::kTensor, 1, 0, 0, 90),    // the first of rank 0 took 10
      Traffic(StreamKind::kTensor, 1, 0, 95, 100),  // that of rank 0 waited for 75
      Traffic(StreamKind::kTensor, 2, 1, 0, 40),    // another group's first
  });
  ASSERT_EQ(times.size(), 1U);
  ExpectTime(times[0], StreamKind::kTensor, 2 * 10 + 2 * 5 + 40, 0);
}

TEST(HiddenCommunication, EdgesThatOverlapCountOnceAndClassesApart) {
  const auto times = HiddenCommunication({
      Traffic(StreamKind::kEdge, 0, 5, 0, 100),
      Traffic(StreamKind::kEdge, 0, 6, 50, 150),
      Traffic(StreamKind::kTensor, 0, 7, 140, 160),
      Compute(0, 90, 145),
  });
  ASSERT_EQ(times.size(), 2U);
  ExpectTime(times[0], StreamKind::kTensor, 20, 5);
  ExpectTime(times[1], StreamKind::kEdge, 150, 55);
}

TEST(HiddenCommunication, TrafficOfTheFirstStepMayHideBehindTheNext) {
  OpTraceRow next_compute = Compute(0, 100, 180);
  OpTraceRow next_traffic = Traffic(StreamKind::kData, 0, 0, 200, 300);
  next_compute.step = next_traffic.step = 1;
  const auto times = HiddenCommunication({
      Compute(0, 0, 90),
      Traffic(StreamKind::kData, 0, 0, 80, 200),
      next_compute,
      next_traffic,
  });
  ASSERT_EQ(times.size(), 1U);
  ExpectTime(times[0], StreamKind::kData, 120, 10 + 80);
}

TEST(HiddenCommunication, CollectivesOnTheComputeStreamAreNoComputation) {
  const auto times = HiddenCommunication({
      Traffic(StreamKind::kCompute, 0, 0, 0, 100),
      Traffic(StreamKind::kData, 0, 1, 0, 100),
  });
  ASSERT_EQ(times.size(), 2U);
  ExpectTime(times[0], StreamKind::kCompute, 100, 0);
  ExpectTime(times[1], StreamKind::kData, 100, 0);
}

TEST(HiddenCommunication, OfNothingIsNothing) {
  EXPECT_TRUE(HiddenCommunication({}).empty());
  EXPECT_TRUE(HiddenCommunication({Compute(0, 0, 100)}).empty());
  EXPECT_EQ(CommunicationTime{}.hidden_share(), 0.0);
}

TEST(HiddenCommunication, NamesOfTraffic) {
  EXPECT_EQ(TrafficName(StreamKind::kTensor), "tensor");
  EXPECT_EQ(TrafficName(StreamKind::kData), "data");
  EXPECT_EQ(TrafficName(StreamKind::kEdge), "pipeline");
}

/// Rows of all ranks of a run of three steps by threads.
std::vector<OpTraceRow> Recorded(const planner::Programs& programs, bool trace_ops) {
  DataOptions data;
  data.vocab = programs.facts.vocab;
  data.sequence = programs.facts.sequence;
  data.global_batch = programs.facts.global_batch;
  const auto source = OpenDataSource(data);
  EXPECT_TRUE(source.ok()) << source.status().message();
  RunOptions options;
  options.steps = 3;
  options.trace_ops = trace_ops;
  const auto run = RunOnThreads(programs, **source, options);
  EXPECT_TRUE(run.ok()) << run.status().message();
  std::vector<OpTraceRow> rows;
  for (const RunSummary& rank : *run) {
    rows.insert(rows.end(), rank.op_trace.begin(), rank.op_trace.end());
  }
  return rows;
}

planner::Programs AllClasses() {
  planner::SplitRequest r;
  r.tp = r.pp = r.dp = 2;
  r.micro_batch = 1;
  r.global_batch = 8;
  r.sequence = 32;
  r.dtype = planner::DType::kF32;
  return planner::testing::Lowered(planner::testing::TinyModel("gpt-tiny"), r);
}

TEST(HiddenCommunication, CpuRanksRecordEveryOpOfTheLastTwoSteps) {
  const planner::Programs programs = AllClasses();
  std::vector<OpTraceRow> expected;
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    const auto rows = planner::MakeOpTraceRows(programs, static_cast<int32_t>(r), 1, 3);
    expected.insert(expected.end(), rows.begin(), rows.end());
  }
  std::vector<OpTraceRow> rows = Recorded(programs, true);
  const auto times = HiddenCommunication(rows);
  ASSERT_EQ(rows.size(), expected.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_GT(rows[i].end_ns, rows[i].start_ns) << planner::ToString(rows[i].kind);
    rows[i].start_ns = rows[i].end_ns = 0;
    EXPECT_EQ(rows[i], expected[i]) << i;
  }
  ASSERT_EQ(times.size(), 3U);
  constexpr StreamKind kClasses[] = {StreamKind::kTensor, StreamKind::kData, StreamKind::kEdge};
  for (size_t c = 0; c < times.size(); ++c) {
    EXPECT_EQ(times[c].traffic, kClasses[c]);
    EXPECT_GT(times[c].busy_s, 0.0);
    EXPECT_GE(times[c].hidden_s, 0.0);
    EXPECT_LE(times[c].hidden_s, times[c].busy_s);
  }
}

TEST(HiddenCommunication, RowsAreKeptOnlyWhenAskedFor) {
  EXPECT_TRUE(Recorded(AllClasses(), false).empty());
}

}  // namespace
}  // namespace meshwright::runtime
