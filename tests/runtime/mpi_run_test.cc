// Run by mpirun with two processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/hand_programs.h"
#include "tests/runtime/mpi_main.h"
#include "runtime/run.h"

namespace meshwright::runtime {
namespace {

class NoData final : public DataSource {
 public:
  Status Read(int64_t, int64_t, int64_t, int32_t*) override { return RunFailed("no data here"); }
};

RunOptions Options() {
  RunOptions options;
  options.steps = 10;
  options.lr.peak = 0.1;
  options.optimizer.clip = 0;
  options.optimizer.weight_decay = 0;
  return options;
}

TEST(MpiRun, GivesTheBitsOfThreads) {
  NoData data;
  const auto threads = RunOnThreads(PairPrograms(), data, Options());
  ASSERT_TRUE(threads.ok()) << threads.status().message();
  for (int repeat = 0; repeat < 3; ++repeat) {  // a session serves several runs
    RunOptions options = Options();
    options.trace = true;
    if (repeat == 2) options.shadow.emplace();
    const auto run = RunOnMpi(*TestSession(), PairPrograms(), data, options);
    ASSERT_TRUE(run.ok()) << run.status().message();
    const RunSummary& same = (*threads)[static_cast<size_t>(run->rank)];
    EXPECT_EQ(run->rank, TestSession()->world().rank());
    EXPECT_EQ(run->losses, same.losses);
    EXPECT_EQ(run->grad_norms, same.grad_norms);
    EXPECT_EQ(run->arena_bytes, same.arena_bytes);
    EXPECT_EQ(run->trace.size(), 10 * PairPrograms().programs[0].tasks.size());
  }
}

// Last: nothing works after it.
TEST(MpiRun, ZAFailingOpEndsTheRunOnAllProcesses) {
  NoData data;
  Communicator& world = TestSession()->world();
  KernelTable table = CpuKernels();
  if (world.rank() == 1) {
    table.kernels[static_cast<size_t>(planner::OpKind::kAdd)] = [](const OpCall&) {
      return RunFailed("the adder is broken");
    };
  }
  const auto run = Execute(PairPrograms(), world.rank(), world, table, data, Options());
  EXPECT_EQ(run.status().code(), StatusCode::kRunFailed);
  EXPECT_EQ(run.status().message(),
            "rank 1, step 0, task 2 (Forward(0,1)), op 2 (add): the adder is broken");
}

}  // namespace
}  // namespace meshwright::runtime
