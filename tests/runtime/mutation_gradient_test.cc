// Planted faults of the gradient rules must show in the comparison: a test of the test.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/runtime/equivalence.h"

namespace meshwright {
namespace {

using planner::Block;
using planner::Instance;
using planner::Programs;
using planner::RankProgram;
using planner::Task;

Programs LowerSplit(const planner::ModelSpec& model, planner::SplitRequest r) {
  r.sequence = testing::kSequence;
  r.dtype = planner::DType::kF64;
  r.micro_batch = 1;
  r.bucket_elements = 6000;
  const auto plan = planner::MakePlan(model, r);
  MW_CHECK(plan.ok());
  auto programs = planner::Lower(*plan);
  MW_CHECK(programs.ok());
  return std::move(programs).value();
}

/// Removes every instance of blocks called `name`; what it waited for and signalled passes on to
/// the instance behind it, or the task goes when it has no other.
int DropBlock(RankProgram& program, const std::string& name) {
  int dropped = 0;
  for (Task& task : program.tasks) {
    for (size_t i = 0; i < task.instances.size();) {
      Instance& instance = task.instances[i];
      Block& block = program.blocks[static_cast<size_t>(instance.block)];
      if (block.name != name) {
        ++i;
        continue;
      }
      ++dropped;
      if (task.instances.size() == 1) {
        // Keep the events alive with an op that changes nothing: norm statistics of one cell.
        block.ops.front().kind = planner::OpKind::kCopy;
        block.ops.front().attributes = {};
        block.ops.front().operands = {{0, planner::Access::kRead}, {0, planner::Access::kWrite}};
        block.tensors.front().shape = {1};
        break;
      }
      Instance& next = task.instances[i + 1];
      next.waits.insert(next.waits.end(), instance.waits.begin(), instance.waits.end());
      task.instances.erase(task.instances.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return dropped;
}

/// Runs every instance of blocks called `name` twice.
int RepeatBlock(RankProgram& program, const std::string& name) {
  int repeated = 0;
  for (Task& task : program.tasks) {
    for (size_t i = 0; i < task.instances.size(); ++i) {
      if (program.blocks[static_cast<size_t>(task.instances[i].block)].name != name) continue;
      Instance again = task.instances[i];
      task.instances[i].signals.clear();
      again.waits.clear();
      task.instances.insert(task.instances.begin() + static_cast<std::ptrdiff_t>(++i), again);
      ++repeated;
    }
  }
  return repeated;
}

/// Worst error or INFINITY where copies disagree.
double ErrorOf(const planner::ModelSpec& model, const Programs& programs) {
  const auto reference =
      testing::RunReference(model, programs.facts.global_batch, planner::DType::kF64);
  const auto run = testing::RunPrograms(programs, {});
  MW_CHECK(reference.ok());
  if (!run.ok()) {
    ADD_FAILURE() << run.status().message();
    return 0.0;
  }
  if (!run->disagreements.empty()) return INFINITY;
  return testing::RelativeError(run->gradients, reference->gradients);
}

planner::SplitRequest Split(int64_t tp, int64_t pp, int64_t dp, int64_t global_batch) {
  planner::SplitRequest r;
  r.tp = tp;
  r.pp = pp;
  r.dp = dp;
  r.global_batch = global_batch;
  return r;
}

TEST(PlantedFaults, UnchangedProgramsPass) {
  const Programs programs = LowerSplit(testing::SmallGpt(), Split(2, 2, 2, 4));
  EXPECT_LE(ErrorOf(testing::SmallGpt(), programs), 1e-12);
}

TEST(PlantedFaults, LocalTokenCountIsCaught) {
  Programs programs = LowerSplit(testing::SmallLlama(), Split(1, 1, 2, 4));
  ASSERT_EQ(DropBlock(programs.programs[0], "sum count"), 1);
  EXPECT_GT(ErrorOf(testing::SmallLlama(), programs), 1e-3);
}

TEST(PlantedFaults, GradientDividedByDataParallelSizeIsCaught) {
  Programs programs = LowerSplit(testing::SmallLlama(), Split(1, 1, 2, 4));
  ASSERT_EQ(RepeatBlock(programs.programs[0], "sum count"), 1);  // the count is dp times too large
  EXPECT_NEAR(ErrorOf(testing::SmallLlama(), programs), 0.5, 1e-6);
}

TEST(PlantedFaults, GradientTimesDataParallelSizeIsCaught) {
  Programs programs = LowerSplit(testing::SmallLlama(), Split(1, 1, 2, 4));
  int repeated = 0;
  for (int b = 0; b < 32; ++b) {
    repeated += RepeatBlock(programs.programs[0], "reduce bucket " + std::to_string(b));
  }
  ASSERT_GT(repeated, 0);
  EXPECT_NEAR(ErrorOf(testing::SmallLlama(), programs), 1.0, 1e-6);
}

TEST(PlantedFaults, MissingNormWeightReductionIsCaught) {
  planner::SplitRequest r = Split(2, 1, 1, 2);
  r.sequence_parallel = true;
  Programs programs = LowerSplit(testing::SmallLlama(), r);
  ASSERT_EQ(DropBlock(programs.programs[0], "sum over tensor group"), 1);
  EXPECT_GT(ErrorOf(testing::SmallLlama(), programs), 1e-3);
}

TEST(PlantedFaults, MissingTiedEmbeddingReductionIsCaught) {
  Programs programs = LowerSplit(testing::SmallGpt(), Split(1, 2, 1, 2));
  int dropped = 0;
  for (RankProgram& p : programs.programs) dropped += DropBlock(p, "sum tied weight");
  ASSERT_EQ(dropped, 2);
  EXPECT_GT(ErrorOf(testing::SmallGpt(), programs), 1e-3);
}

TEST(PlantedFaults, MissingKeyValueCopyReductionIsCaught) {
  Programs programs = LowerSplit(testing::SmallLlama(2), Split(4, 1, 1, 1));
  ASSERT_GT(DropBlock(programs.programs[0], "sum key-value copies"), 0);
  EXPECT_GT(ErrorOf(testing::SmallLlama(2), programs), 1e-3);
}

}  // namespace
}  // namespace meshwright
