#include "tests/runtime/kernel_harness.h"

namespace meshwright::runtime {
namespace {

using planner::DType;
using planner::OpKind;

constexpr int64_t kRows = 4;
constexpr int64_t kVocab = 9;    // true vocabulary
constexpr int64_t kPadded = 16;  // with tp 4 the last rank holds padding only
const std::vector<int32_t> kLabels = {8, 0, -100, 5};
constexpr double kInverse = 0.25;

struct Losses {
  double loss = 0.0;
  std::vector<double> dlogits;  ///< [rows, padded], reassembled
};

/// Loss and gradient over `tp` ranks that hold kPadded / tp columns each.
Losses LossOf(const std::vector<double>& logits, int64_t tp, DType dtype = DType::kF64) {
  const int64_t columns = kPadded / tp;
  std::vector<KernelHarness> ranks;
  std::vector<double> gathered;
  for (int64_t r = 0; r < tp; ++r) {
    KernelHarness& h = ranks.emplace_back(dtype);
    h.binding.tp_index = r;
    h.attributes.vocab = kVocab;
    std::vector<double> local;
    for (int64_t row = 0; row < kRows; ++row) {
      const auto begin = logits.begin() + row * kPadded + r * columns;
      local.insert(local.end(), begin, begin + columns);
    }
    h.Add("logits", {kRows, columns}, local);
    h.AddInts("labels", {kRows, 1}, kLabels);
    h.Add("stats", {kRows, 3});
    EXPECT_TRUE(h.Run(OpKind::kSoftmaxStats,
                      {{"logits", "logits"}, {"labels", "labels"}, {"stats", "stats"}})
                    .ok());
    const auto stats = h.Get("stats");
    gathered.insert(gathered.end(), stats.begin(), stats.end());
  }
  Losses result;
  result.dlogits.resize(kRows * kPadded);
  for (int64_t r = 0; r < tp; ++r) {
    KernelHarness& h = ranks[static_cast<size_t>(r)];
    h.Add("all", {tp, kRows, 3}, gathered);
    h.AddScalar("inverse", kInverse);
    h.AddScalar("loss", std::nan(""));
    h.first_micro_batch = true;
    EXPECT_TRUE(h.Run(OpKind::kCrossEntropyGrad, {{"stats", "all"},
                                                  {"labels", "labels"},
                                                  {"logits", "logits"},
                                                  {"loss", "loss"},
                                                  {"inverse", "inverse"}})
                    .ok());
    if (r == 0) result.loss = h.Scalar("loss");
    EXPECT_EQ(h.Scalar("loss"), result.loss) << "ranks must agree bit for bit";
    const auto local = h.Get("logits");
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t j = 0; j < columns; ++j) {
        result.dlogits[static_cast<size_t>(row * kPadded + r * columns + j)] =
            local[static_cast<size_t>(row * columns + j)];
      }
    }
  }
  return result;
}

double Reference(const std::vector<double>& logits) {
  double loss = 0;
  for (size_t row = 0; row < kRows; ++row) {
    if (kLabels[row] < 0) continue;
    double sum = 0;
    for (size_t j = 0; j < kVocab; ++j) sum += std::exp(logits[row * kPadded + j]);
    loss += std::log(sum) - logits[row * kPadded + static_cast<size_t>(kLabels[row])];
  }
  return loss;
}

class LossTest : public testing::TestWithParam<int64_t> {};

TEST_P(LossTest, LossAndGradientAreThoseOfTheTrueVocabulary) {
  const auto logits = Random(kRows * kPadded, 1);
  const Losses result = LossOf(logits, GetParam());
  EXPECT_NEAR(result.loss, Reference(logits), 1e-13);
  std::vector<double> numeric(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    auto up = logits, down = logits;
    up[i] += 1e-5;
    down[i] -= 1e-5;
    numeric[i] = (Reference(up) - Reference(down)) / 2e-5 * kInverse;
  }
  ExpectClose(result.dlogits, numeric, 1e-8, "dlogits");
  for (size_t j = 0; j < kPadded; ++j)
    EXPECT_EQ(result.dlogits[2 * kPadded + j], 0.0) << "masked row";
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t j = kVocab; j < kPadded; ++j)
      EXPECT_EQ(result.dlogits[row * kPadded + j], 0.0) << "padding";
  }
}

TEST_P(LossTest, SplitEqualsWhole) {
  const auto logits = Random(kRows * kPadded, 2);
  const Losses whole = LossOf(logits, 1);
  const Losses split = LossOf(logits, GetParam());
  EXPECT_NEAR(split.loss, whole.loss, 1e-14 * std::fabs(whole.loss));
  ExpectClose(split.dlogits, whole.dlogits, 1e-15, "dlogits");
}

TEST_P(LossTest, LargeLogitsDoNotOverflow) {
  auto logits = Random(kRows * kPadded, 3);
  for (double& z : logits) z *= 1e4;
  const Losses result = LossOf(logits, GetParam(), DType::kF32);
  EXPECT_TRUE(std::isfinite(result.loss));
  for (double g : result.dlogits) EXPECT_TRUE(std::isfinite(g));
}

INSTANTIATE_TEST_SUITE_P(Ranks, LossTest, testing::Values(1, 2, 4));

TEST(LossKernel, SinglePrecision) {
  const auto logits = Random(kRows * kPadded, 4);
  const Losses single = LossOf(logits, 2, DType::kF32);
  EXPECT_NEAR(single.loss, Reference(logits), 1e-5);
  ExpectClose(single.dlogits, LossOf(logits, 2).dlogits, 1e-6, "dlogits");
}

/// Rows in two chunks, labels whole: the loss adds up and the second chunk uses its own labels.
TEST(LossKernel, RowChunksUseTheirOwnLabels) {
  const auto logits = Random(kRows * kPadded, 5);
  KernelHarness h;
  h.attributes.vocab = kVocab;
  h.AddInts("labels", {kRows, 1}, kLabels);
  h.AddScalar("inverse", kInverse);
  h.AddScalar("loss", std::nan(""));
  h.Add("stats", {2, 3});
  std::vector<double> dlogits;
  for (int64_t begin : {0, 2}) {
    h.first_micro_batch = begin == 0;
    h.attributes.row_begin = begin;
    const std::string name = "logits" + std::to_string(begin);
    h.Add(name, {2, kPadded},
          std::vector<double>(logits.begin() + begin * kPadded,
                              logits.begin() + (begin + 2) * kPadded));
    ASSERT_TRUE(
        h.Run(OpKind::kSoftmaxStats, {{"logits", name}, {"labels", "labels"}, {"stats", "stats"}})
            .ok());
    ASSERT_TRUE(h.Run(OpKind::kCrossEntropyGrad, {{"stats", "stats"},
                                                  {"labels", "labels"},
                                                  {"logits", name},
                                                  {"loss", "loss"},
                                                  {"inverse", "inverse"}})
                    .ok());
    const auto part = h.Get(name);
    dlogits.insert(dlogits.end(), part.begin(), part.end());
  }
  const Losses whole = LossOf(logits, 1);
  EXPECT_NEAR(h.Scalar("loss"), whole.loss, 1e-14);
  EXPECT_EQ(dlogits, whole.dlogits);
}

TEST(LossKernel, LabelOutsideTheVocabularyIsRefused) {
  for (int32_t label : {9, -1}) {
    KernelHarness h;
    h.attributes.vocab = kVocab;
    h.Add("logits", {1, kPadded}, Random(kPadded, 1));
    h.AddInts("labels", {1, 1}, {label});
    h.Add("stats", {1, 3});
    const Status status = h.Run(OpKind::kSoftmaxStats,
                                {{"logits", "logits"}, {"labels", "labels"}, {"stats", "stats"}});
    EXPECT_EQ(status.code(), StatusCode::kRunFailed);
    EXPECT_NE(status.message().find("label " + std::to_string(label)), std::string::npos)
        << status.message();
  }
}

}  // namespace
}  // namespace meshwright::runtime
