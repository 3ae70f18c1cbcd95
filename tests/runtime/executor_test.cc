#include "runtime/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <thread>

#include "tests/runtime/hand_programs.h"
#include "runtime/issue_order.h"
#include "runtime/run.h"
#include "runtime/thread_communicator.h"

namespace meshwright::runtime {
namespace {

using planner::Access;
using planner::OpKind;
using planner::Region;
using testing::HasSubstr;

/// Token t of sample s of step p is 1000 p + 10 s + t.
class CountingSource final : public DataSource {
 public:
  Status Read(int64_t step, int64_t sample, int64_t sequence, int32_t* tokens) override {
    if (sample == failing_sample) return RunFailed("the file ends at sample 3");
    for (int64_t t = 0; t <= sequence; ++t) {
      tokens[t] = static_cast<int32_t>(1000 * step + 10 * sample + t);
    }
    return Status::Ok();
  }
  int64_t failing_sample = -1;
};

RunOptions PairOptions(int64_t steps) {
  RunOptions options;
  options.steps = steps;
  options.lr.peak = 0.1;
  options.optimizer.clip = 0;
  options.optimizer.weight_decay = 0;
  return options;
}

/// Runs every rank with a kernel table and programs of its own.
std::vector<Result<RunSummary>> RunEach(
    const std::vector<planner::Programs>& programs, const RunOptions& options,
    const std::function<KernelTable(int)>& kernels = [](int) { return CpuKernels(); }) {
  CountingSource data;
  const int ranks = static_cast<int>(programs.size());
  auto world = MakeThreadWorld(ranks, {options.deadline_s});
  std::vector<std::optional<Result<RunSummary>>> results(programs.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const auto i = static_cast<size_t>(r);
      const KernelTable table = kernels(r);
      results[i] = Execute(programs[i], r, *world[i], table, data, options);
    });
  }
  std::vector<Result<RunSummary>> out;
  for (size_t i = 0; i < programs.size(); ++i) {
    threads[i].join();
    out.push_back(std::move(*results[i]));
  }
  return out;
}

std::vector<Result<RunSummary>> RunPair(
    const RunOptions& options,
    const std::function<KernelTable(int)>& kernels = [](int) { return CpuKernels(); }) {
  return RunEach({PairPrograms(), PairPrograms()}, options, kernels);
}

TEST(Executor, RunsStepsWithTheLearningRateOfEach) {
  CountingSource data;
  RunOptions options = PairOptions(8);
  options.lr.decay = LrDecay::kLinear;
  options.lr.warmup_steps = 2;
  options.lr.decay_steps = 6;
  options.lr.floor = 0.01;
  const auto run = RunOnThreads(PairPrograms(), data, options);
  ASSERT_TRUE(run.ok()) << run.status().message();
  ASSERT_EQ(run->size(), 2);
  for (const RunSummary& summary : *run) {
    ASSERT_EQ(summary.losses.size(), 8);
    double w = 1.0;
    for (size_t step = 0; step < 8; ++step) {
      EXPECT_EQ(summary.losses[step], 1.0);
      EXPECT_NEAR(summary.grad_norms[step], std::sqrt(3 * w), 1e-12) << step;
      w *= 1.0 - LearningRate(options.lr, static_cast<int64_t>(step) + 1);
    }
    EXPECT_EQ(summary.planned_bytes, 512);
    EXPECT_EQ(summary.arena_bytes, 512);
    EXPECT_GT(summary.tokens_per_s, 0);
    EXPECT_EQ(summary.step_times_s.size(), 8);
    EXPECT_GT(summary.busy_s[static_cast<size_t>(planner::TaskKind::kForward)], 0);
    EXPECT_TRUE(summary.trace.empty());
  }
}

TEST(Executor, IsTheSameFromRunToRun) {
  CountingSource data;
  std::vector<double> first;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto run = RunOnThreads(PairPrograms(), data, PairOptions(50));
    ASSERT_TRUE(run.ok()) << run.status().message();
    if (repeat == 0) first = (*run)[0].grad_norms;
    EXPECT_EQ((*run)[0].grad_norms, first);
    EXPECT_EQ((*run)[1].grad_norms, first);
  }
}

TEST(Executor, GivesARowATaskAndStep) {
  CountingSource data;
  RunOptions options = PairOptions(3);
  options.trace = true;
  const auto run = RunOnThreads(PairPrograms(), data, options);
  ASSERT_TRUE(run.ok()) << run.status().message();
  const planner::Programs programs = PairPrograms();
  for (const RunSummary& summary : *run) {
    const auto& tasks = programs.programs[static_cast<size_t>(summary.rank)].tasks;
    ASSERT_EQ(summary.trace.size(), 3 * tasks.size());
    for (size_t i = 0; i < summary.trace.size(); ++i) {
      const planner::TraceRow& row = summary.trace[i];
      EXPECT_EQ(row.rank, summary.rank);
      EXPECT_EQ(row.step, static_cast<int64_t>(i / tasks.size()));
      EXPECT_EQ(row.task, static_cast<int32_t>(i % tasks.size()));
      EXPECT_EQ(row.label, Label(tasks[i % tasks.size()]));
      EXPECT_GT(row.end_ns, row.start_ns);
    }
    EXPECT_EQ(summary.trace[1].stream, 3);
    const auto json = nlohmann::json::parse(planner::WriteChromeTrace(summary.trace));
    ASSERT_EQ(json.at("traceEvents").size(), summary.trace.size());
    EXPECT_EQ(json["traceEvents"][1]["name"],
              summary.rank == 0 ? "Send act(0,0)" : "Recv act(0,0)");
    EXPECT_EQ(json["traceEvents"][1]["tid"], 3);
  }
}

TEST(Executor, ReportsEveryStepOnEveryRank) {
  CountingSource data;
  std::mutex mutex;
  std::map<std::pair<int, int64_t>, StepReport> reports;
  RunOptions options = PairOptions(4);
  options.on_step = [&](const StepReport& report) {
    const std::lock_guard lock(mutex);
    reports[{report.rank, report.step}] = report;
  };
  ASSERT_TRUE(RunOnThreads(PairPrograms(), data, options).ok());
  ASSERT_EQ(reports.size(), 8);
  for (const auto& [key, report] : reports) {
    EXPECT_EQ(report.loss, 1.0);
    EXPECT_EQ(report.learning_rate, 0.1);
    EXPECT_GT(report.step_time_s, 0);
    EXPECT_NEAR(report.tokens_per_s, 4 / report.step_time_s, 1e-6 * report.tokens_per_s);
  }
}

TEST(Executor, ShowsGradientsBeforeTheOptimizerAndTheStateAtTheEnd) {
  CountingSource data;
  std::mutex mutex;
  std::map<std::pair<int, int64_t>, std::pair<double, double>> seen;  // gradient, parameter
  RunOptions options = PairOptions(5);
  const auto look = [&](const ArenaView& view) {
    double gradient = 0;
    double parameter = 0;
    std::memcpy(&gradient, view.arena + view.program.arena.gradients + 8, 8);
    std::memcpy(&parameter, view.arena + view.program.arena.parameters + 8, 8);
    const std::lock_guard lock(mutex);
    seen[{view.rank, view.step}] = {gradient, parameter};
  };
  options.on_gradients = look;
  options.on_finish = look;
  ASSERT_TRUE(RunOnThreads(PairPrograms(), data, options).ok());
  ASSERT_EQ(seen.size(), 12);
  for (const int rank : {0, 1}) {
    for (int64_t step = 0; step < 5; ++step) {
      const double w = std::pow(0.9, static_cast<double>(step));
      const auto [gradient, parameter] = seen[{rank, step}];
      EXPECT_NEAR(gradient, w, 1e-12);
      EXPECT_NEAR(parameter, w, 1e-12);
    }
    const auto at_end = seen[{rank, 5}];
    EXPECT_NEAR(at_end.second, std::pow(0.9, 5), 1e-12);
  }
}

TEST(Executor, RefusesAnArenaOneGranuleSmaller) {
  RunOptions options = PairOptions(1);
  options.arena_bytes = 512;
  CountingSource data;
  EXPECT_TRUE(RunOnThreads(PairPrograms(), data, options).ok());
  options.arena_bytes = 512 - 64;
  const auto run = RunOnThreads(PairPrograms(), data, options);
  EXPECT_EQ(run.status().code(), StatusCode::kInfeasible);
  EXPECT_THAT(run.status().message(), HasSubstr("448 bytes"));
  EXPECT_THAT(run.status().message(), HasSubstr("512"));
}

TEST(Executor, RefusesUnequalPrograms) {
  planner::Programs other = PairPrograms();
  other.programs[0].tasks[0].micro_batch = 7;
  for (const auto& result : RunEach({PairPrograms(), other}, PairOptions(1))) {
    EXPECT_THAT(result.status().message(), HasSubstr("rank 0 has program"));
    EXPECT_THAT(result.status().message(), HasSubstr("rank 1 has"));
  }
}

TEST(Executor, RefusesAnotherNumberOfRanks) {
  for (const auto& result :
       RunEach({PairPrograms(), PairPrograms(), PairPrograms()}, PairOptions(1))) {
    EXPECT_THAT(result.status().message(), HasSubstr("the program is for 2 ranks, the run has 3"));
  }
}

TEST(Executor, AFailingOpEndsTheRunOnAllRanksWithItsPlace) {
  for (const auto& result : RunPair(PairOptions(50), [](int rank) {
         KernelTable table = CpuKernels();
         if (rank == 1) {
           table.kernels[static_cast<size_t>(OpKind::kAdd)] = [](const OpCall&) {
             return RunFailed("the adder is broken");
           };
         }
         return table;
       })) {
    EXPECT_EQ(result.status().code(), StatusCode::kRunFailed);
    EXPECT_EQ(result.status().message(),
              "rank 1, step 0, task 2 (Forward(0,1)), op 2 (add): the adder is broken");
  }
}

TEST(Executor, AnExceptionEndsTheRunOnAllRanks) {
  for (const auto& result : RunPair(PairOptions(50), [](int rank) {
         KernelTable table = CpuKernels();
         if (rank == 0) {
           table.kernels[static_cast<size_t>(OpKind::kClipFactor)] = [](const OpCall&) -> Status {
             throw std::runtime_error("thrown on purpose");
           };
         }
         return table;
       })) {
    EXPECT_THAT(result.status().message(), HasSubstr("rank 0, step 0"));
    EXPECT_THAT(result.status().message(), HasSubstr("thrown on purpose"));
  }
  RunOptions options = PairOptions(50);
  options.on_step = [](const StepReport& report) {
    if (report.rank == 1 && report.step == 3) throw std::runtime_error("from a hook");
  };
  for (const auto& result : RunPair(options)) {
    EXPECT_THAT(result.status().message(), HasSubstr("from a hook"));
  }
}

TEST(Executor, RefusesAnOpWithoutKernel) {
  for (const auto& result : RunPair(PairOptions(1), [](int) {
         KernelTable table = CpuKernels();
         table.kernels[static_cast<size_t>(OpKind::kCopy)] = nullptr;
         return table;
       })) {
    EXPECT_EQ(result.status().code(), StatusCode::kUnsupported);
    EXPECT_THAT(result.status().message(), HasSubstr("op copy has no kernel for device cpu"));
  }
}

TEST(Executor, AMissingReceiverIsNamedByTheDeadline) {
  planner::Programs programs = PairPrograms();
  planner::RankProgram& p = programs.programs[1];
  p.tasks.erase(p.tasks.begin() + 1);  // the receive
  RunOptions options = PairOptions(3);
  options.deadline_s = 0.3;
  CountingSource data;
  const auto run = RunOnThreads(programs, data, options);
  EXPECT_EQ(run.status().code(), StatusCode::kRunFailed);
  EXPECT_THAT(run.status().message(), HasSubstr("not arrived: rank"));
  EXPECT_THAT(run.status().message(), HasSubstr("not done within 0.3 s"));
}

TEST(Executor, RefusesProgramsThatAreNotSafe) {
  CountingSource data;
  const auto refuses = [&](const std::function<void(planner::RankProgram&)>& change,
                           const char* text) {
    planner::Programs programs = PairPrograms();
    change(programs.programs[1]);
    const auto run = RunOnThreads(programs, data, PairOptions(1));
    EXPECT_EQ(run.status().code(), StatusCode::kInfeasible) << text;
    EXPECT_THAT(run.status().message(), HasSubstr(text));
  };
  refuses([](auto& p) { p.blocks[0].ops[0].stream = 9; }, "stream 9 of 4");
  refuses([](auto& p) { p.blocks[0].ops[0].waits = {7}; }, "event 7 of 7");
  refuses([](auto& p) { p.blocks[0].ops[0].signal = 8; }, "event 8 of 7");
  refuses([](auto& p) { p.tasks[0].instances[0].block = 99; }, "block 99 of");
  refuses([](auto& p) { p.tasks[0].instances[0].waits = {-1}; }, "event -1");
  refuses([](auto& p) { p.blocks[0].tensors[1].offset = 1 << 20; }, "of an arena of 512");
  refuses([](auto& p) { p.blocks[1].ops[0].attributes.peer = 5; }, "peer 5");
  refuses([](auto& p) { p.blocks[0].ops[0].operands.pop_back(); }, "operands");
  refuses([](auto& p) { p.communicators[0].size = 3; }, "not bound to a group");
}

/// Two data-parallel ranks that load two micro-batches of two samples each.
planner::Programs LoadingPrograms() {
  planner::Programs programs = PairPrograms();
  ProgramWriter w;
  planner::ArenaLayout& a = w.program.arena;
  a.saved = a.scratch = a.communication = a.size = a.io + 128 + 4 * 32;
  for (int32_t i = 0; i < 2; ++i) {
    w.Begin(planner::TaskKind::kLoadBatch, 0, i);
    w.Op(OpKind::kLoadTokens, 0, {}, -1,
         {{w.View("t", Region::kIo, i * 64, {4, 2}, planner::DType::kI32), Access::kWrite}});
    w.Op(OpKind::kLoadLabels, 0, {}, -1,
         {{w.View("l", Region::kIo, i * 64 + 32, {4, 2}, planner::DType::kI32), Access::kWrite}});
  }
  w.program.parameters = {};
  programs.programs = {w.program};
  for (int r = 0; r < 2; ++r) {
    programs.ranks[static_cast<size_t>(r)].program = 0;
    programs.ranks[static_cast<size_t>(r)].pp_index = 0;
    programs.ranks[static_cast<size_t>(r)].dp_index = r;
    programs.ranks[static_cast<size_t>(r)].groups = {};
  }
  programs.modules[0].pp = 1;
  programs.modules[0].dp = 2;
  programs.facts.micro_batch = 2;
  programs.facts.micro_batches = 2;
  programs.facts.global_batch = 8;
  return programs;
}

TEST(Executor, LoadsTheSamplesOfEachLaneAndMasksLabels) {
  CountingSource data;
  std::mutex mutex;
  std::map<int, std::vector<int32_t>> io;
  RunOptions options = PairOptions(3);
  options.label_counts = [](int64_t step, int64_t sample, int64_t position) {
    return step != 2 || sample != 5 || position != 1;
  };
  options.on_finish = [&](const ArenaView& view) {
    const std::lock_guard lock(mutex);
    std::vector<int32_t>& ints = io[view.rank];
    ints.resize(32);
    std::memcpy(ints.data(), view.arena + view.program.arena.io + planner::kScalarBytes, 128);
  };
  const auto run = RunOnThreads(LoadingPrograms(), data, options);
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_TRUE((*run)[0].losses.empty());
  for (const int rank : {0, 1}) {
    for (int i = 0; i < 2; ++i) {
      for (int s = 0; s < 4; ++s) {
        for (int j = 0; j < 2; ++j) {
          const int sample = (i * 2 + rank) * 2 + j;
          const int at = i * 16 + s * 2 + j;
          EXPECT_EQ(io[rank][static_cast<size_t>(at)], 2000 + 10 * sample + s);
          const int label = sample == 5 && s == 1 ? -100 : 2000 + 10 * sample + s + 1;
          EXPECT_EQ(io[rank][static_cast<size_t>(at + 8)], label);
        }
      }
    }
  }
}

TEST(Executor, AnErrorOfTheDataNamesTheTask) {
  CountingSource data;
  data.failing_sample = 3;
  const auto run = RunOnThreads(LoadingPrograms(), data, PairOptions(2));
  EXPECT_EQ(
      run.status().message(),
      "rank 1, step 0, task 0 (LoadBatch(0,0)), op 0 (load_tokens): the file ends at sample 3");
}

TEST(IssueOrder, ResolvesWaitsToTheLatestRecord) {
  const planner::Programs programs = PairPrograms();
  const auto order = MakeIssueOrder(programs.programs[0]);
  ASSERT_TRUE(order.ok()) << order.status().message();
  // copy, send, copy, all-reduce, copy, copy, clip, step, read back
  ASSERT_EQ(order->ops.size(), 9);
  const auto waits = [&](size_t op) { return order->ops[op].waits; };
  EXPECT_EQ(waits(0), (std::vector<Dependency>{{1, true}}));  // the send of the step before
  EXPECT_EQ(waits(1), (std::vector<Dependency>{{0, false}}));
  EXPECT_EQ(waits(2), (std::vector<Dependency>{{3, true}}));
  EXPECT_EQ(waits(3), (std::vector<Dependency>{{2, false}}));
  EXPECT_EQ(waits(4), (std::vector<Dependency>{{3, false}}));
  EXPECT_EQ(waits(5), (std::vector<Dependency>{}));
  EXPECT_EQ(waits(7), (std::vector<Dependency>{{6, false}}));
  EXPECT_EQ(waits(8), (std::vector<Dependency>{{7, false}}));
  EXPECT_EQ(order->streams_used, (std::vector<bool>{true, true, true, true}));
}

}  // namespace
}  // namespace meshwright::runtime
