// Which elements of a bucket a rank counts and updates: the lists against the CPU kernels. Needs no
// GPU.
#include "runtime/cuda/step_tables.h"

#include <algorithm>

#include "tests/runtime/cuda/bucket_layouts.h"
#include "tests/runtime/kernel_harness.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::Bucket;
using planner::OpKind;
using planner::Sharding;

struct Split {
  int64_t tp, dp;
  Sharding sharding;
};

/// A harness that stands for one rank of the split.
void Place(KernelHarness& h, const BucketLayout& layout, const Split& split, int64_t tp_index,
           int64_t dp_index) {
  h.program.parameters = layout.entries;
  h.program.buckets = {Bucket{0, layout.offset, 0}, Bucket{layout.offset, layout.elements, 0}};
  h.binding.tp_index = tp_index;
  h.binding.dp_index = dp_index;
  h.rank().grid.tp = split.tp;
  h.rank().grid.dp = split.dp;
  h.rank().grid.sharding = split.sharding;
  h.rank().program = &h.program;
  h.rank().binding = &h.binding;
  h.attributes.bucket = 1;
}

void ExpectWellFormed(const std::vector<WorkChunk>& chunks, const OwnRange& own) {
  int64_t end = own.begin;
  for (const WorkChunk& c : chunks) {
    ASSERT_GT(c.length, 0);
    EXPECT_GE(c.begin, end) << "in order, without overlap";
    end = c.begin + c.length;
    EXPECT_EQ(c.begin / kChunkElements, (end - 1) / kChunkElements) << "within one chunk";
  }
  EXPECT_LE(end, own.begin + own.size);
}

void CheckRank(const BucketLayout& layout, const Split& split, int64_t tp_index, int64_t dp_index) {
  KernelHarness h;
  Place(h, layout, split, tp_index, dp_index);
  const auto n = static_cast<size_t>(layout.elements);
  const auto gradient = Random(layout.elements, 1);
  const OwnRange own = OwnRangeOf(h.rank(), 1);

  const auto counted = CountedChunks(h.rank(), 1);
  ExpectWellFormed(counted, own);
  double sum = 0.0;
  for (const WorkChunk& c : counted) {
    for (int64_t i = c.begin; i < c.begin + c.length; ++i) {
      sum += gradient[static_cast<size_t>(i)] * gradient[static_cast<size_t>(i)];
    }
  }
  h.Add("gradient", {layout.elements}, gradient);
  h.AddScalar("norm", 0.0);
  ASSERT_TRUE(h.Run(OpKind::kSquaredNorm, {{"gradient", "gradient"}, {"norm", "norm"}}).ok());
  EXPECT_NEAR(sum, h.Scalar("norm"), 1e-12 * (1.0 + sum));

  // With a decay of 1 and no gradient, a rate of 1 clears what decays; with a gradient of 1 the
  // rest moves by -1.
  const auto updated = UpdatedChunks(h.rank(), 1);
  ExpectWellFormed(updated, own);
  std::vector<double> expected(n, 3.0);
  for (const WorkChunk& c : updated) {
    for (int64_t i = c.begin; i < c.begin + c.length; ++i) {
      expected[static_cast<size_t>(i)] = c.decay != 0 ? -1.0 : 2.0;
    }
  }
  h.rank().facts.optimizer = planner::OptimizerKind::kSgd;
  h.rank().optimizer.weight_decay = 1.0;
  h.Add("p", {layout.elements}, std::vector<double>(n, 3.0));
  h.Set("gradient", std::vector<double>(n, 1.0));
  h.AddScalar("one", 1.0);
  h.AddLong("step", 1);
  ASSERT_TRUE(h.Run(OpKind::kOptimizerStep, {{"parameter", "p"},
                                             {"gradient", "gradient"},
                                             {"clip", "one"},
                                             {"learning_rate", "one"},
                                             {"step", "step"}})
                  .ok());
  EXPECT_EQ(h.Get("p"), expected);
}

TEST(StepTables, ListsAreWhatTheCpuKernelsUse) {
  for (int64_t scale : {1, 700, 5000}) {
    for (int64_t gap : {0, 3}) {
      for (const Split& split : {Split{1, 1, Sharding::kNone}, Split{2, 3, Sharding::kNone},
                                 Split{2, 3, Sharding::kZero1}, Split{4, 2, Sharding::kZero1}}) {
        const BucketLayout layout = MakeLayout(split.tp, split.dp, scale, gap);
        for (int64_t tp_index = 0; tp_index < split.tp; ++tp_index) {
          for (int64_t dp_index = 0; dp_index < split.dp; ++dp_index) {
            SCOPED_TRACE(testing::Message() << "scale " << scale << " gap " << gap << " tp "
                                            << tp_index << " dp " << dp_index);
            CheckRank(layout, split, tp_index, dp_index);
          }
        }
      }
    }
  }
}

TEST(StepTables, RunsThatTouchAreJoined) {
  KernelHarness h;
  const BucketLayout layout = MakeLayout(1, 1, 5000, 0);
  Place(h, layout, {1, 1, Sharding::kNone}, 0, 0);
  const auto chunks = CountedChunks(h.rank(), 1);
  const int64_t counted = layout.elements - 4 * 5000;  // all but the tied copy
  EXPECT_EQ(static_cast<int64_t>(chunks.size()), (counted + kChunkElements - 1) / kChunkElements);
}

TEST(StepTables, AsksForWhatWasNotBuilt) {
  const StepTables tables;
  EXPECT_EQ(tables.counted(0).status().code(), StatusCode::kRunFailed);
  EXPECT_EQ(tables.updated(-1).status().code(), StatusCode::kRunFailed);
  const Status rotary = tables.rotary(10000.0, 64, 128).status();
  EXPECT_EQ(rotary.code(), StatusCode::kRunFailed);
  EXPECT_NE(rotary.message().find("head dim 64"), std::string::npos) << rotary.message();
}

}  // namespace
}  // namespace meshwright::runtime::cuda
