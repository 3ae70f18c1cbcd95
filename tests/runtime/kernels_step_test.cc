#include "tests/runtime/kernel_harness.h"

namespace meshwright::runtime {
namespace {

using planner::Bucket;
using planner::OpKind;
using planner::ParameterEntry;
using planner::Sharding;

// ---- squared norm ----

/// One bucket at element offset 8: a matrix [6, 4] cut by columns (axis 1), a fused one [8 + 2, 3]
/// cut by rows whose second part has two copies, a replicated vector [5], and a tied copy [4];
/// padded.
struct Layout {
  std::vector<ParameterEntry> entries;
  int64_t elements = 0;
};

Layout MakeLayout(int64_t tp, int64_t dp) {
  Layout layout;
  int64_t offset = 8;
  const auto add = [&](const char* name, std::vector<int64_t> global, std::vector<int64_t> local,
                       int32_t axis, std::vector<planner::ParameterPart> parts) -> ParameterEntry& {
    ParameterEntry& e = layout.entries.emplace_back();
    e.name = name;
    e.global_shape = std::move(global);
    e.local_shape = std::move(local);
    e.axis = axis;
    e.parts = std::move(parts);
    e.bucket = 1;
    e.offset = offset;
    offset += e.elements() + 3;  // a gap, as alignment makes it
    return e;
  };
  add("columns", {6, 4}, {6, 4 / tp}, 1, {{4, 1}});
  const int64_t copies = tp == 4 ? 2 : 1;
  add("fused", {10, 3}, {8 / tp + 2 * copies / tp, 3}, 0, {{8, 1}, {2, copies}});
  add("vector", {5}, {5}, -1, {});
  add("tied", {4}, {4}, -1, {}).tied_copy = true;
  layout.entries.emplace_back(layout.entries[0]).bucket = 0;  // another bucket: not ours
  layout.elements = (offset - 8 + dp - 1) / dp * dp;
  return layout;
}

/// Value of a global element; the same on every rank that holds it.
double GlobalValue(const ParameterEntry& e, int64_t index) {
  return std::sin(static_cast<double>(index) + static_cast<double>(e.name.size()) * 10.0);
}

double NormOfAllRanks(int64_t tp, int64_t dp, Sharding sharding) {
  double total = 0.0;
  for (int64_t tp_index = 0; tp_index < tp; ++tp_index) {
    for (int64_t dp_index = 0; dp_index < dp; ++dp_index) {
      KernelHarness h;
      const Layout layout = MakeLayout(tp, dp);
      h.program.parameters = layout.entries;
      h.program.buckets = {Bucket{0, 8, 0}, Bucket{8, layout.elements, 0}};
      h.binding.tp_index = tp_index;
      h.binding.dp_index = dp_index;
      h.rank().grid.tp = tp;
      h.rank().grid.dp = dp;
      h.rank().grid.sharding = sharding;
      h.attributes.bucket = 1;
      std::vector<double> gradient(static_cast<size_t>(layout.elements),
                                   1e6);  // gaps must not count
      for (const ParameterEntry& e : layout.entries) {
        if (e.bucket != 1) continue;
        const int64_t columns = e.local_shape.size() > 1 ? e.local_shape[1] : 1;
        for (const auto& segment : planner::SegmentsOf(e, tp_index, tp)) {
          for (int64_t i = 0; i < segment.length; ++i) {
            const int64_t local = segment.local_begin + i, global = segment.global_begin + i;
            if (e.axis == 1) {
              for (int64_t row = 0; row < 6; ++row) {
                gradient[static_cast<size_t>(e.offset - 8 + row * columns + local)] =
                    GlobalValue(e, row * 4 + global);
              }
            } else {
              for (int64_t j = 0; j < columns; ++j) {
                gradient[static_cast<size_t>(e.offset - 8 + local * columns + j)] =
                    GlobalValue(e, global * columns + j);
              }
            }
          }
        }
      }
      h.Add("gradient", {layout.elements}, gradient);
      h.AddScalar("norm", 0.0);
      EXPECT_TRUE(h.Run(OpKind::kSquaredNorm, {{"gradient", "gradient"}, {"norm", "norm"}}).ok());
      total += h.Scalar("norm");
    }
  }
  return total;
}

TEST(SquaredNormKernel, EveryElementCountsOnceWhateverTheSplit) {
  double expected = 0.0;
  for (const ParameterEntry& e : MakeLayout(1, 1).entries) {
    if (e.tied_copy || e.bucket != 1) continue;
    for (int64_t i = 0; i < e.elements(); ++i) expected += GlobalValue(e, i) * GlobalValue(e, i);
  }
  for (int64_t tp : {1, 2, 4}) {
    for (int64_t dp : {1, 2, 3}) {
      for (Sharding sharding : {Sharding::kNone, Sharding::kZero1}) {
        EXPECT_NEAR(NormOfAllRanks(tp, dp, sharding), expected, 1e-12)
            << "tp " << tp << " dp " << dp << " " << planner::ToString(sharding);
      }
    }
  }
}

TEST(SquaredNormKernel, FirstBucketWritesLaterOnesAdd) {
  KernelHarness h;
  ParameterEntry e;
  e.global_shape = e.local_shape = {2};
  h.program.parameters = {e};
  h.program.buckets = {Bucket{0, 2, 0}};
  h.attributes.bucket = 0;
  h.Add("gradient", {2}, {3.0, 4.0});
  h.AddScalar("norm", std::nan(""));
  for (double expected : {25.0, 50.0}) {
    h.first_micro_batch = expected == 25.0;
    ASSERT_TRUE(h.Run(OpKind::kSquaredNorm, {{"gradient", "gradient"}, {"norm", "norm"}}).ok());
    EXPECT_EQ(h.Scalar("norm"), expected);
  }
}

// ---- statistics and clip factor ----

TEST(StepStatisticsKernel, OneTensorRankOfTheLastStageReports) {
  for (int64_t tp : {0, 1}) {
    for (int64_t dp : {0, 1}) {
      for (int64_t pp : {0, 1}) {
        KernelHarness h;
        h.rank().grid.pp = 2;
        h.binding.tp_index = tp;
        h.binding.dp_index = dp;
        h.binding.pp_index = pp;
        h.AddScalar("loss", 12.5);
        h.AddLong("count", 7);
        h.Add("statistics", {3}, {4.0, std::nan(""), std::nan("")});
        ASSERT_TRUE(h.Run(OpKind::kStepStatistics,
                          {{"loss", "loss"}, {"count", "count"}, {"statistics", "statistics"}})
                        .ok());
        const bool last = pp == 1 && tp == 0;
        EXPECT_EQ(h.Get("statistics"),
                  (std::vector<double>{4.0, last ? 12.5 : 0.0, last && dp == 0 ? 7.0 : 0.0}));
      }
    }
  }
}

TEST(ClipFactorKernel, LimitsTheNorm) {
  const auto factor = [](double squared_norm, double clip) {
    KernelHarness h;
    h.rank().optimizer.clip = clip;
    h.Add("statistics", {3}, {squared_norm, 0.0, 0.0});
    h.AddScalar("clip", -1.0);
    EXPECT_TRUE(h.Run(OpKind::kClipFactor, {{"statistics", "statistics"}, {"clip", "clip"}}).ok());
    return h.Scalar("clip");
  };
  EXPECT_DOUBLE_EQ(factor(16.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_DOUBLE_EQ(factor(0.25, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(factor(16.0, 0.0), 1.0);  // off
  EXPECT_TRUE(std::isnan(factor(std::nan(""), 1.0)));
}

// ---- optimizer ----

KernelHarness::Bindings OptimizerBindings(bool state) {
  KernelHarness::Bindings b = {{"parameter", "p"},
                               {"gradient", "g"},
                               {"clip", "clip"},
                               {"learning_rate", "rate"},
                               {"step", "step"}};
  if (state) b.emplace_back("state", "state");
  return b;
}

/// Two parameters [4] (decayed) and [3] (not decayed) in a bucket of 8: one padding element.
KernelHarness MakeOptimizer(planner::OptimizerKind kind, int64_t dp, int64_t dp_index) {
  KernelHarness h;
  ParameterEntry a, b;
  a.global_shape = a.local_shape = {4};
  b.global_shape = b.local_shape = {3};
  b.offset = 4;
  b.decay = false;
  h.program.parameters = {a, b};
  h.program.buckets = {Bucket{0, 8, 0}};
  h.attributes.bucket = 0;
  h.rank().facts.optimizer = kind;
  h.rank().optimizer = {0.9, 0.95, 1e-8, 0.1, 1.0};
  h.rank().grid.dp = dp;
  h.rank().grid.sharding = dp > 1 ? Sharding::kZero1 : Sharding::kNone;
  h.binding.dp_index = dp_index;
  h.Add("p", {8}, {1.0, -2.0, 0.5, 0.0, 3.0, -1.0, 0.25, 0.0});
  h.Add("g", {8}, {0.1, -0.2, 0.3, 0.0, -0.5, 0.7, 0.01, 0.0});
  h.Add("state", {2 * 8 / dp}, std::vector<double>(static_cast<size_t>(16 / dp), 0.0));
  h.AddScalar("clip", 0.5);
  h.AddScalar("rate", 0.01);
  h.AddLong("step", 1);
  return h;
}

TEST(OptimizerKernel, AdamWByHand) {
  KernelHarness h = MakeOptimizer(planner::OptimizerKind::kAdamW, 1, 0);
  ASSERT_TRUE(h.Run(OpKind::kOptimizerStep, OptimizerBindings(true)).ok());
  // First step, first element: g = 0.1 * 0.5 = 0.05, m = 0.005, v = 0.000125; both corrections undo
  // the factors: update = 0.05 / (0.05 + 1e-8); p = 1 - 0.01 * (update + 0.1 * 1).
  const double update1 = 0.05 / (0.05 + 1e-8);
  EXPECT_NEAR(h.Get("p")[0], 1.0 - 0.01 * (update1 + 0.1), 1e-15);
  EXPECT_NEAR(h.Get("p")[4], 3.0 + 0.01 * (0.25 / (0.25 + 1e-8)), 1e-15);  // not decayed
  EXPECT_NEAR(h.Get("state")[0], 0.005, 1e-17);
  EXPECT_NEAR(h.Get("state")[8], 0.000125, 1e-17);

  h.AddLong("step", 2);
  h.Set("g", {0.3, 0, 0, 0, 0, 0, 0, 0});
  ASSERT_TRUE(h.Run(OpKind::kOptimizerStep, OptimizerBindings(true)).ok());
  const double m = 0.9 * 0.005 + 0.1 * 0.15, v = 0.95 * 0.000125 + 0.05 * 0.15 * 0.15;
  const double update2 = m / (1 - 0.81) / (std::sqrt(v / (1 - 0.9025)) + 1e-8);
  const double p1 = 1.0 - 0.01 * (update1 + 0.1);
  EXPECT_NEAR(h.Get("p")[0], p1 - 0.01 * (update2 + 0.1 * p1), 1e-14);
}

TEST(OptimizerKernel, SgdByHand) {
  KernelHarness h = MakeOptimizer(planner::OptimizerKind::kSgd, 1, 0);
  ASSERT_TRUE(h.Run(OpKind::kOptimizerStep, OptimizerBindings(false)).ok());
  EXPECT_NEAR(h.Get("p")[1], -2.0 - 0.01 * (-0.1 + 0.1 * -2.0), 1e-15);
  EXPECT_NEAR(h.Get("p")[5], -1.0 - 0.01 * 0.35, 1e-15);
}

TEST(OptimizerKernel, ShardsTogetherEqualTheWhole) {
  for (auto kind : {planner::OptimizerKind::kAdamW, planner::OptimizerKind::kSgd}) {
    const bool adam = kind == planner::OptimizerKind::kAdamW;
    KernelHarness whole = MakeOptimizer(kind, 1, 0);
    const auto before = whole.Get("p");
    ASSERT_TRUE(whole.Run(OpKind::kOptimizerStep, OptimizerBindings(adam)).ok());
    for (int64_t dp : {2, 4, 8}) {
      std::vector<double> gathered, moments;
      for (int64_t r = 0; r < dp; ++r) {
        KernelHarness h = MakeOptimizer(kind, dp, r);
        ASSERT_TRUE(h.Run(OpKind::kOptimizerStep, OptimizerBindings(adam)).ok());
        const auto p = h.Get("p");
        for (int64_t i = 0; i < 8; ++i) {
          if (i / (8 / dp) == r) {
            gathered.push_back(p[static_cast<size_t>(i)]);
          } else {
            EXPECT_EQ(p[static_cast<size_t>(i)], before[static_cast<size_t>(i)])
                << "other rank's shard";
          }
        }
      }
      EXPECT_EQ(gathered, whole.Get("p")) << "dp " << dp;
    }
  }
}

}  // namespace
}  // namespace meshwright::runtime
