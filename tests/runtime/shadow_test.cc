#include "runtime/shadow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "tests/runtime/hand_programs.h"
#include "runtime/run.h"
#include "runtime/shadow_analysis.h"
#include "runtime/thread_communicator.h"

namespace meshwright::runtime {
namespace {

using planner::OpKind;
using testing::HasSubstr;

class NoData final : public DataSource {
 public:
  Status Read(int64_t, int64_t, int64_t, int32_t*) override { return RunFailed("no data here"); }
};

RunOptions ShadowRun(uint64_t seed, double delay_share, int64_t max_delay_us) {
  RunOptions options;
  options.steps = 6;
  options.lr.peak = 0.1;
  options.optimizer.clip = 0;
  options.optimizer.weight_decay = 0;
  options.shadow = ShadowOptions{seed, max_delay_us, delay_share, nullptr};
  return options;
}

/// The pair program with a kernel replaced on rank 0, under the shadow.
Status RunWithKernel(OpKind kind, Kernel kernel) {
  const planner::Programs programs = PairPrograms();
  const RunOptions options = ShadowRun(1, 0, 0);
  NoData data;
  auto world = MakeThreadWorld(2, {60});
  std::vector<std::optional<Result<RunSummary>>> results(2);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      KernelTable table = CpuKernels();
      if (r == 0) table.kernels[static_cast<size_t>(kind)] = kernel;
      results[r] = Execute(programs, static_cast<int>(r), *world[r], table, data, options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results[0]->status();
}

TEST(Shadow, ResultsAreThoseOfThePlainExecutor) {
  NoData data;
  RunOptions plain = ShadowRun(1, 0, 0);
  plain.shadow.reset();
  const auto expected = RunOnThreads(PairPrograms(), data, plain);
  ASSERT_TRUE(expected.ok()) << expected.status().message();
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto run = RunOnThreads(PairPrograms(), data, ShadowRun(seed, 0.3, 300));
    ASSERT_TRUE(run.ok()) << run.status().message();
    for (size_t r = 0; r < 2; ++r) {
      EXPECT_EQ((*run)[r].grad_norms, (*expected)[r].grad_norms);
      EXPECT_EQ((*run)[r].losses, (*expected)[r].losses);
    }
    const Status edges = CheckHappensBefore(PairPrograms(), {(*run)[0].shadow, (*run)[1].shadow});
    EXPECT_TRUE(edges.ok()) << edges.message();
  }
}

TEST(Shadow, ReportsWhatWasTouched) {
  NoData data;
  const auto run = RunOnThreads(PairPrograms(), data, ShadowRun(1, 0, 0));
  ASSERT_TRUE(run.ok()) << run.status().message();
  const ShadowReport& zero = (*run)[0].shadow;
  EXPECT_EQ(zero.high_water_bytes, 256 + 64 + 24);  // end of c in scratch
  const std::array<int64_t, kAreaCount> expected = {24, 24, 0, 72, 0, 88, 0};
  EXPECT_EQ(zero.area_high_water_bytes, expected);
  const ShadowReport& one = (*run)[1].shadow;
  EXPECT_EQ(one.high_water_bytes, 448 + 24);
  EXPECT_EQ(one.area_high_water_bytes[6], 24);
  EXPECT_EQ(zero.records.size(), 6 * 9);
  EXPECT_GT(zero.filled_values, 0);
}

TEST(Shadow, FillsDeadBuffersWithNan) {
  NoData data;
  std::mutex mutex;
  int checked = 0;
  RunOptions options = ShadowRun(1, 0, 0);
  options.on_finish = [&](const ArenaView& view) {
    double a = 0;
    double gradient = 0;
    double parameter = 0;
    std::memcpy(&a, view.arena + view.program.arena.scratch, 8);
    std::memcpy(&gradient, view.arena + view.program.arena.gradients, 8);
    std::memcpy(&parameter, view.arena + view.program.arena.parameters, 8);
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(std::isnan(a));
    EXPECT_TRUE(std::isnan(gradient));
    EXPECT_NEAR(parameter, std::pow(0.9, 6), 1e-12);
    ++checked;
  };
  ASSERT_TRUE(RunOnThreads(PairPrograms(), data, options).ok());
  EXPECT_EQ(checked, 2);
}

/// Runs under the shadow with long delays until a seed shows an error; its text.
std::string FirstError(const planner::Programs& programs) {
  NoData data;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const auto run = RunOnThreads(programs, data, ShadowRun(seed, 0.5, 2000));
    if (!run.ok()) return run.status().message();
  }
  return "no error";
}

TEST(Shadow, FindsAMissingWait) {
  // The send does not wait for the copy that makes what it sends.
  planner::Programs programs = PairPrograms();
  programs.programs[0].blocks[1].ops[0].waits = {};
  const std::string text = FirstError(programs);
  EXPECT_THAT(text, HasSubstr("rank 0"));
  EXPECT_THAT(text, HasSubstr("race"));
  EXPECT_THAT(text, HasSubstr("a wait is missing"));
}

TEST(Shadow, FindsAMissingWaitForTheReaderOfTheStepBefore) {
  // The receive buffer is overwritten without waiting for the addition of the step before.
  planner::Programs programs = PairPrograms();
  programs.programs[1].blocks[1].ops[0].waits = {};
  // The sender must be able to run ahead: it waits for nobody.
  const std::string text = FirstError(programs);
  EXPECT_THAT(text, HasSubstr("rank 1"));
  EXPECT_THAT(text, HasSubstr("of the step before"));
}

TEST(Shadow, FindsWritesBeyondOperands) {
  const Status status = RunWithKernel(OpKind::kClipFactor, [](const OpCall& call) {
    const double one = 1.0;
    std::memcpy(call.Address(1), &one, 8);
    std::memcpy(call.arena + call.rank.program->arena.scratch + 30, &one, 8);  // behind `a`
    return Status::Ok();
  });
  EXPECT_EQ(status.code(), StatusCode::kRunFailed);
  EXPECT_THAT(status.message(), HasSubstr("no operand of the program covers it"));
}

TEST(Shadow, FindsWritesOutsideOfTheArena) {
  const Status status = RunWithKernel(OpKind::kClipFactor, [](const OpCall& call) {
    const double one = 1.0;
    std::memcpy(call.Address(1), &one, 8);
    std::memcpy(call.arena + 512, &one, 8);
    return Status::Ok();
  });
  EXPECT_THAT(status.message(), HasSubstr("byte 512 of the arena (size 512)"));
}

TEST(Shadow, AnOutputThatAKernelLeavesUnwrittenIsNan) {
  const Status status = RunWithKernel(OpKind::kClipFactor, [](const OpCall& call) {
    double clip = 0;
    std::memcpy(&clip, call.Address(1), 8);  // never written here
    return std::isnan(clip) ? RunFailed("clip is NaN") : Status::Ok();
  });
  EXPECT_THAT(status.message(), HasSubstr("clip is NaN"));
}

TEST(ShadowAnalysis, KnowsWhatOpsOverwriteWithoutReading) {
  const planner::Programs programs = PairPrograms();
  const auto order = MakeIssueOrder(programs.programs[0]);
  ASSERT_TRUE(order.ok());
  const ShadowAnalysis analysis = AnalyzeForShadow(programs.programs[0], *order);
  ASSERT_EQ(analysis.overwritten[0].size(), 1);  // a
  EXPECT_EQ(analysis.overwritten[0][0].begin, 256);
  EXPECT_EQ(analysis.overwritten[0][0].end, 280);
  EXPECT_TRUE(analysis.overwritten[3].empty());  // the all-reduce is in place
}

TEST(ShadowAnalysis, KnowsConflictsOverStreamsAndSteps) {
  const planner::Programs programs = PairPrograms();
  const auto order = MakeIssueOrder(programs.programs[1]);
  ASSERT_TRUE(order.ok());
  const ShadowAnalysis analysis = AnalyzeForShadow(programs.programs[1], *order);
  // Op 1 receives what op 2 of the step before may still read.
  ASSERT_EQ(analysis.conflicts[1].size(), 1);
  EXPECT_EQ(analysis.conflicts[1][0].on, (Dependency{2, true}));
  // Op 2 reads what op 1 received, and overwrites c, which the all-reduce (3) had.
  std::vector<Dependency> on;
  for (const Conflict& c : analysis.conflicts[2]) on.push_back(c.on);
  EXPECT_THAT(on, testing::UnorderedElementsAre(Dependency{1, false}, Dependency{3, true}));
}

TEST(HappensBefore, MissesNothing) {
  NoData data;
  const auto run = RunOnThreads(PairPrograms(), data, ShadowRun(3, 0.2, 200));
  ASSERT_TRUE(run.ok()) << run.status().message();
  const std::vector<ShadowReport> good = {(*run)[0].shadow, (*run)[1].shadow};
  const auto fails = [&](const std::function<void(std::vector<ShadowReport>&)>& change,
                         const char* text) {
    std::vector<ShadowReport> bad = good;
    change(bad);
    EXPECT_THAT(CheckHappensBefore(PairPrograms(), bad).message(), HasSubstr(text));
  };
  EXPECT_TRUE(CheckHappensBefore(PairPrograms(), good).ok());
  fails([](auto& r) { r[0].records[1].start = r[0].records[0].start; }, "waits for its event");
  fails([](auto& r) { r[0].records[6].start = r[0].records[5].end; }, "same stream");
  fails([](auto& r) { r[1].records[4].end = 0; }, "did not run");
  fails([](auto& r) { r[0].records.resize(18); }, "partners met");
  fails([](auto& r) { r.pop_back(); }, "1 reports for 2 ranks");
}

TEST(HappensBefore, SeesPartnersThatDidNotMeet) {
  NoData data;
  const auto run = RunOnThreads(PairPrograms(), data, ShadowRun(3, 0.2, 200));
  ASSERT_TRUE(run.ok()) << run.status().message();
  std::vector<ShadowReport> bad = {(*run)[0].shadow, (*run)[1].shadow};
  for (OpRecord& record : bad[1].records) {  // rank 1 as if after everything of rank 0
    record.start += 1'000'000;
    record.end += 1'000'000;
  }
  EXPECT_THAT(CheckHappensBefore(PairPrograms(), bad).message(), HasSubstr("did not overlap"));
}

}  // namespace
}  // namespace meshwright::runtime
