// End of step against the CPU twins: gradient norm, statistics, clip factor, optimizer.
#include "tests/runtime/cuda/bucket_layouts.h"
#include "tests/runtime/cuda/twin_op.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::Bucket;
using planner::DType;
using planner::OpKind;
using planner::OptimizerKind;
using planner::Sharding;

class CudaStep : public CudaKernelTest {};
MW_CUDA_KERNEL_TESTS(CudaStep);

struct Case {
  int64_t tp, dp;
  Sharding sharding;
  int64_t scale, gap;
  int64_t shift = 0;
};
constexpr Case kCases[] = {{1, 1, Sharding::kNone, 1, 3},     {2, 3, Sharding::kZero1, 1, 3},
                           {4, 2, Sharding::kZero1, 700, 0},  {2, 2, Sharding::kNone, 704, 64},
                           {1, 2, Sharding::kZero1, 704, 64}, {1, 2, Sharding::kZero1, 704, 64, 4},
                           {1, 1, Sharding::kNone, 20000, 64}};

void Place(TwinOp& t, const Case& c, const BucketLayout& layout) {
  t.shift = c.shift;
  t.cpu.program.parameters = layout.entries;
  t.cpu.program.buckets = {Bucket{0, layout.offset, 0}, Bucket{layout.offset, layout.elements, 0}};
  t.cpu.binding.tp_index = c.tp - 1;
  t.cpu.binding.dp_index = c.sharding == Sharding::kNone ? 0 : c.dp - 1;
  t.cpu.rank().grid.tp = c.tp;
  t.cpu.rank().grid.dp = c.dp;
  t.cpu.rank().grid.sharding = c.sharding;
  t.cpu.attributes.bucket = 1;
}

TEST_P(CudaStep, SquaredNormWritesThenAdds) {
  for (const Case& c : kCases) {
    const BucketLayout layout = MakeLayout(c.tp, c.dp, c.scale, c.gap);
    TwinOp t(GetParam());
    Place(t, c, layout);
    t.AddFloat("gradient", {layout.elements}, Random(layout.elements, 1));
    t.AddScalar("norm", std::nan(""));
    for (bool first : {true, false}) {
      t.cpu.first_micro_batch = first;
      MW_ASSERT_OK(t.Run(OpKind::kSquaredNorm, {{"gradient", "gradient"}, {"norm", "norm"}}));
      t.Expect("norm", {1e-6, 0});
    }
  }
}

TEST_P(CudaStep, SquaredNormOfARankThatCountsNothing) {
  const Case c = {1, 2, Sharding::kNone, 1, 3};
  const BucketLayout layout = MakeLayout(1, 2, 1, 3);
  TwinOp t(GetParam());
  Place(t, c, layout);
  t.cpu.binding.dp_index = 1;
  t.AddFloat("gradient", {layout.elements}, Random(layout.elements, 1));
  t.AddScalar("norm", std::nan(""));
  t.cpu.first_micro_batch = true;
  MW_ASSERT_OK(t.Run(OpKind::kSquaredNorm, {{"gradient", "gradient"}, {"norm", "norm"}}));
  EXPECT_EQ(t.Gpu("norm")[0], 0.0);
}

TEST_P(CudaStep, StatisticsAndClip) {
  for (int64_t pp_index : {0, 1}) {
    for (int64_t dp_index : {0, 1}) {
      for (double squared : {16.0, 0.25, std::nan("")}) {
        TwinOp t(GetParam());
        t.cpu.rank().grid.pp = 2;
        t.cpu.binding.pp_index = pp_index;
        t.cpu.binding.dp_index = dp_index;
        t.AddScalar("loss", 12.5);
        t.AddLong("count", 7);
        t.AddDoubles("statistics", {squared, -1.0, -1.0});
        t.AddScalar("clip", -1.0);
        MW_ASSERT_OK(t.Run(OpKind::kStepStatistics,
                           {{"loss", "loss"}, {"count", "count"}, {"statistics", "statistics"}}));
        EXPECT_EQ(t.Gpu("statistics")[1], t.cpu.Get("statistics")[1]);
        EXPECT_EQ(t.Gpu("statistics")[2], t.cpu.Get("statistics")[2]);
        for (double limit : {1.0, 0.0}) {
          t.cpu.rank().optimizer.clip = limit;
          MW_ASSERT_OK(
              t.Run(OpKind::kClipFactor, {{"statistics", "statistics"}, {"clip", "clip"}}));
          if (std::isnan(squared) && limit > 0) {
            EXPECT_TRUE(std::isnan(t.Gpu("clip")[0]));
          } else {
            t.Expect("clip", {1e-15, 0});
          }
        }
      }
    }
  }
}

/// Steps 1 and 2 of one rank. bf16: the twin's parameters are the master weights, and the GPU's
/// parameters must be these, rounded.
void CheckOptimizer(DType dtype, OptimizerKind kind, const Case& c) {
  const bool master = dtype == DType::kBf16;
  const bool adam = kind == OptimizerKind::kAdamW;
  const BucketLayout layout = MakeLayout(c.tp, c.dp, c.scale, c.gap);
  TwinOp t(dtype);
  Place(t, c, layout);
  t.cpu.rank().facts.optimizer = kind;
  t.cpu.rank().optimizer = {0.9, 0.95, 1e-8, 0.1, 1.0};
  const int64_t n = layout.elements;
  const int64_t shard = c.sharding == Sharding::kNone ? n : n / c.dp;
  const int64_t begin = c.sharding == Sharding::kNone ? 0 : (c.dp - 1) * shard;
  const auto slice = [&](const TwinOp::Values& v) {
    return TwinOp::Values(v.begin() + begin, v.begin() + begin + shard);
  };
  t.AddFloat("p", {n}, Random(n, 1));
  t.AddFloat("g", {n}, Random(n, 2));
  t.AddFloat("state", {2 * shard}, TwinOp::Values(static_cast<size_t>(2 * shard), 0.0));
  t.AddScalar("clip", 0.5);
  t.AddScalar("rate", 0.01);
  t.AddLong("step", 1);
  t.AddLong("step2", 2);
  const auto before = Rounded(t.cpu.Get("p"), dtype);
  if (master) {
    TwinOp::Values states(static_cast<size_t>(adam ? 2 * shard : 0), 0.0);
    const auto own = slice(t.cpu.Get("p"));
    states.insert(states.end(), own.begin(), own.end());
    t.AddGpu("p16", {n}, DType::kBf16, before);
    t.AddGpu("states", {static_cast<int64_t>(states.size())}, DType::kF32, states);
  }
  for (const char* step : {"step", "step2"}) {
    TwinOp::Bindings b = {
        {"gradient", "g"}, {"clip", "clip"}, {"learning_rate", "rate"}, {"step", step}};
    TwinOp::Bindings gpu = b;
    b.emplace_back("parameter", "p");
    gpu.emplace_back("parameter", master ? "p16" : "p");
    if (adam) b.emplace_back("state", "state");
    if (adam || master) gpu.emplace_back("state", master ? "states" : "state");
    MW_ASSERT_OK(t.cpu.Run(OpKind::kOptimizerStep, b));
    MW_ASSERT_OK(t.RunGpu(OpKind::kOptimizerStep, gpu));
  }
  const Tolerance close = {2e-6, 1e-6};
  const auto expected = t.cpu.Get("p");
  if (!master) {
    t.Expect("p", close);
    if (adam) t.Expect("state", close);
    return;
  }
  auto states = t.Gpu("states");
  const TwinOp::Values weights(states.end() - shard, states.end());
  TwinOp::ExpectNear(weights, slice(expected), close, "master");
  states.resize(states.size() - static_cast<size_t>(shard));
  if (adam) TwinOp::ExpectNear(states, t.cpu.Get("state"), close, "moments");
  // Own range: the master rounded, gaps included as both start alike; other ranks' shards stay.
  auto parameters = before;
  const auto rounded = Rounded(weights, DType::kBf16);
  std::copy(rounded.begin(), rounded.end(), parameters.begin() + begin);
  EXPECT_EQ(t.Gpu("p16"), parameters);
}

TEST_P(CudaStep, Optimizers) {
  for (const Case& c : kCases) {
    for (OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
      SCOPED_TRACE(testing::Message() << "tp " << c.tp << " dp " << c.dp << " scale " << c.scale);
      CheckOptimizer(GetParam(), kind, c);
    }
  }
}

TEST_P(CudaStep, Large) {  // 17 M elements: 64 MiB in fp32
  const Case c = {1, 1, Sharding::kNone, 266240, 64};
  CheckOptimizer(GetParam(), OptimizerKind::kAdamW, c);
}

}  // namespace
}  // namespace meshwright::runtime::cuda
