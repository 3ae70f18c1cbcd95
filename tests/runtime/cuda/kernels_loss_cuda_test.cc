// Vocabulary-parallel cross-entropy against its CPU twin.
#include "tests/runtime/cuda/twin_op.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::DType;
using planner::OpKind;

class CudaLoss : public CudaKernelTest {};
MW_CUDA_KERNEL_TESTS(CudaLoss);

/// Logits of one rank of `tp`, `columns` of them local, the last of all ranks padding.
struct Shape {
  int64_t rows, columns, vocab, tp;
  int64_t shift = 0;
};

std::vector<int32_t> Labels(const Shape& s, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<int32_t> any(0, static_cast<int32_t>(s.vocab) - 1);
  std::vector<int32_t> labels(static_cast<size_t>(s.rows));
  for (int32_t& label : labels) label = any(engine);
  for (size_t i = 1; i < labels.size(); i += 4) labels[i] = kMaskedLabel;
  labels[0] = static_cast<int32_t>(s.vocab) - 1;  // the last true column
  return labels;
}

std::vector<double> Logits(const Shape& s, unsigned seed) {
  std::vector<double> z = Random(s.rows * s.columns, seed);
  for (double& v : z) v *= 8.0;
  // A thread that sees nothing but -inf at first.
  for (size_t j = 0; j < 8 && j + 1 < static_cast<size_t>(s.columns); ++j) z[j] = -INFINITY;
  return z;
}

void Check(DType dtype, const Shape& s) {
  std::vector<double> all_stats;
  const auto labels = Labels(s, 99);
  for (int64_t rank = 0; rank < s.tp; ++rank) {
    TwinOp t(dtype);
    t.shift = s.shift;
    t.cpu.binding.tp_index = rank;
    t.cpu.attributes.vocab = s.vocab;
    t.AddInts("labels", {s.rows}, labels);
    t.Add("logits", {s.rows, s.columns}, Logits(s, static_cast<unsigned>(rank)));
    t.AddFloat("stats", {s.rows, 3});
    MW_ASSERT_OK(t.Run(OpKind::kSoftmaxStats,
                       {{"logits", "logits"}, {"labels", "labels"}, {"stats", "stats"}}));
    t.Expect("stats", {2e-5, 1e-7});
    const auto stats = Rounded(t.cpu.Get("stats"), DType::kF32);
    all_stats.insert(all_stats.end(), stats.begin(), stats.end());
  }
  for (int64_t rank = 0; rank < s.tp; ++rank) {
    TwinOp t(dtype);
    t.shift = s.shift;
    t.cpu.binding.tp_index = rank;
    t.cpu.attributes.vocab = s.vocab;
    t.AddInts("labels", {s.rows}, labels);
    t.Add("logits", {s.rows, s.columns}, Logits(s, static_cast<unsigned>(rank)));
    t.AddFloat("stats", {s.tp, s.rows, 3}, all_stats);
    t.AddScalar("inverse", 1.0 / 777.0);
    t.AddScalar("loss", std::nan(""));
    const TwinOp::Bindings b = {{"stats", "stats"},
                                {"labels", "labels"},
                                {"logits", "logits"},
                                {"loss", "loss"},
                                {"inverse", "inverse"}};
    t.cpu.first_micro_batch = true;
    MW_ASSERT_OK(t.Run(OpKind::kCrossEntropyGrad, b));
    t.Expect("loss", {1e-12, 0});
    // Exponents of about 50 and their logarithms in fp32 against fp64.
    t.Expect("logits", dtype == DType::kBf16 ? Tolerance{1.0 / 200, 1e-6} : Tolerance{2e-5, 1e-7});
    t.cpu.first_micro_batch = false;
    MW_ASSERT_OK(t.Run(OpKind::kCrossEntropyGrad, b));
    t.Expect("loss", {1e-12, 0});
  }
}

TEST_P(CudaLoss, StatisticsLossAndGradient) {
  for (const Shape& s :
       {Shape{1, 1, 1, 1}, Shape{5, 37, 30, 1}, Shape{9, 64, 100, 2}, Shape{9, 64, 60, 2},
        Shape{6, 1000, 1999, 2}, Shape{4, 24, 70, 3}, Shape{6, 1000, 1999, 2, 4},
        Shape{13, 50304, 50257, 1}, Shape{3, 32064, 128256, 4}}) {
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.columns << " tp " << s.tp);
    Check(GetParam(), s);
  }
}

TEST_P(CudaLoss, Large) {
  Check(GetParam(), {264, 128256, 128256, 1});
}  // 64 MiB in bf16

TEST_P(CudaLoss, RowChunksUseTheirOwnLabels) {
  const Shape whole = {8, 40, 40, 1};
  TwinOp t(GetParam());
  t.cpu.attributes.vocab = whole.vocab;
  t.cpu.attributes.row_begin = 5;
  t.AddInts("labels", {8, 1}, Labels(whole, 3));
  t.Add("logits", {3, 40}, Random(120, 1));
  t.AddFloat("stats", {3, 3});
  MW_ASSERT_OK(t.Run(OpKind::kSoftmaxStats,
                     {{"logits", "logits"}, {"labels", "labels"}, {"stats", "stats"}}));
  t.Expect("stats", {1e-5, 1e-7});
}

TEST_P(CudaLoss, LabelOutsideTheVocabularyGivesNaN) {
  for (int32_t label : {40, -1}) {
    TwinOp t(GetParam());
    t.cpu.attributes.vocab = 40;
    t.AddInts("labels", {2}, {3, label});
    t.Add("logits", {2, 40}, Random(80, 1));
    t.AddFloat("stats", {2, 3});
    MW_ASSERT_OK(t.RunGpu(OpKind::kSoftmaxStats,
                          {{"logits", "logits"}, {"labels", "labels"}, {"stats", "stats"}}));
    EXPECT_TRUE(std::isfinite(t.Gpu("stats")[1]));
    EXPECT_TRUE(std::isnan(t.Gpu("stats")[4]));
    t.AddScalar("inverse", 0.5);
    t.AddScalar("loss", 0.0);
    MW_ASSERT_OK(t.RunGpu(OpKind::kCrossEntropyGrad, {{"stats", "stats"},
                                                      {"labels", "labels"},
                                                      {"logits", "logits"},
                                                      {"loss", "loss"},
                                                      {"inverse", "inverse"}}));
    EXPECT_TRUE(std::isnan(t.Gpu("loss")[0]));
  }
}

}  // namespace
}  // namespace meshwright::runtime::cuda
