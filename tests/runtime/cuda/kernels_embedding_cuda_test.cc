// Token counts, embedding and learned positions against their CPU twins.
#include "tests/runtime/cuda/twin_op.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::OpKind;

class CudaEmbedding : public CudaKernelTest {};
MW_CUDA_KERNEL_TESTS(CudaEmbedding);

/// Ids of `vocab` with many repetitions; id 0 is the most frequent.
std::vector<int32_t> Ids(int64_t count, int64_t vocab, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> uniform;
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) {
    const double u = uniform(engine);
    id = static_cast<int32_t>(u * u * u * static_cast<double>(vocab));
  }
  return ids;
}

TEST_P(CudaEmbedding, CountTokens) {
  for (int64_t n : {1, 1000, 300001}) {
    auto labels = Ids(n, 1000, 1);
    for (size_t i = 0; i < labels.size(); i += 3) labels[i] = kMaskedLabel;
    TwinOp t(GetParam());
    t.AddInts("labels", {n}, labels);
    t.AddLong("count", -1);
    MW_ASSERT_OK(t.Run(OpKind::kCountTokens, {{"labels", "labels"}, {"count", "count"}}));
    EXPECT_EQ(t.GpuLong("count"), t.cpu.Long("count"));
    EXPECT_EQ(t.GpuLong("count"), n - (n + 2) / 3);
  }
}

TEST_P(CudaEmbedding, InvertCount) {
  for (int64_t n : {0, 1, 7, 1 << 20}) {
    TwinOp t(GetParam());
    t.AddLong("count", n);
    t.AddScalar("inverse", -1.0);
    MW_ASSERT_OK(t.Run(OpKind::kInvertCount, {{"count", "count"}, {"inverse", "inverse"}}));
    t.Expect("inverse", {});
  }
}

struct Shape {
  int64_t tokens, rows, h;
};
constexpr Shape kShapes[] = {{1, 3, 1}, {50, 20, 5}, {300, 64, 64}, {1030, 128, 2056}};

TEST_P(CudaEmbedding, RowsOfOtherRanksAreZero) {
  for (const Shape& s : kShapes) {
    for (int64_t tp_index : {0, 1}) {
      TwinOp t(GetParam());
      t.cpu.binding.tp_index = tp_index;
      t.AddInts("tokens", {s.tokens}, Ids(s.tokens, 2 * s.rows, 1));
      t.Add("weight", {s.rows, s.h}, Random(s.rows * s.h, 2));
      t.Add("y", {s.tokens, s.h});
      MW_ASSERT_OK(t.Run(OpKind::kEmbed, {{"tokens", "tokens"}, {"weight", "weight"}, {"y", "y"}}));
      t.Expect("y", {});
    }
  }
}

void CheckEmbedGrad(planner::DType dtype, bool deterministic, const Shape& s, int64_t shift) {
  TwinOp t(dtype, deterministic);
  t.shift = shift;
  t.cpu.binding.tp_index = 1;
  t.AddInts("tokens", {s.tokens}, Ids(s.tokens, 2 * s.rows, 1));
  t.Add("dy", {s.tokens, s.h}, Random(s.tokens * s.h, 2));
  t.AddFloat("g", {s.rows, s.h});
  const TwinOp::Bindings bindings = {{"tokens", "tokens"}, {"dy", "dy"}, {"weight_grad", "g"}};
  t.cpu.first_micro_batch = true;
  MW_ASSERT_OK(t.Run(OpKind::kEmbedGrad, bindings));
  t.Expect("g", {1e-5, 1e-5});
  const auto once = t.Gpu("g");
  if (deterministic) {
    MW_ASSERT_OK(t.RunGpu(OpKind::kEmbedGrad, bindings));
    EXPECT_EQ(t.Gpu("g"), once) << "the same bits again";
  }
  t.cpu.first_micro_batch = false;
  MW_ASSERT_OK(t.Run(OpKind::kEmbedGrad, bindings));
  t.Expect("g", {1e-5, 1e-5});
}

TEST_P(CudaEmbedding, GradientWritesThenAdds) {
  for (const Shape& s : kShapes) {
    for (bool deterministic : {false, true}) {
      CheckEmbedGrad(GetParam(), deterministic, s, 0);
      CheckEmbedGrad(GetParam(), deterministic, s, 4);
    }
  }
}

TEST_P(CudaEmbedding, Positions) {
  for (const Shape& s : {Shape{6, 8, 1}, Shape{30, 40, 5}, Shape{96, 64, 64}}) {
    for (int64_t batch : {1, 2, 3}) {
      TwinOp t(GetParam());
      t.cpu.binding.tp_index = 1;
      t.cpu.attributes.batch = batch;
      t.cpu.attributes.sequence_sharded = 2 * (s.tokens / batch) <= s.rows;
      t.Add("positions", {s.rows, s.h}, Random(s.rows * s.h, 1));
      t.Add("y", {s.tokens, s.h}, Random(s.tokens * s.h, 2));
      t.AddFloat("g", {s.rows, s.h});
      const TwinOp::Bindings forward = {{"positions", "positions"}, {"y", "y"}};
      if (s.tokens / batch > s.rows) {
        EXPECT_EQ(t.RunGpu(OpKind::kAddPositions, forward).code(), StatusCode::kUnsupported);
        continue;
      }
      MW_ASSERT_OK(t.Run(OpKind::kAddPositions, forward));
      t.Expect("y", RoundedOnce(GetParam()));
      const auto dy = t.Gpu("y");
      t.cpu.Set("y", dy);  // the same rounded values on both sides
      for (bool first : {true, false}) {
        t.cpu.first_micro_batch = first;
        MW_ASSERT_OK(t.Run(OpKind::kPositionsGrad, {{"dy", "y"}, {"positions_grad", "g"}}));
        t.Expect("g", {2e-6, 2e-6});
      }
    }
  }
}

}  // namespace
}  // namespace meshwright::runtime::cuda
