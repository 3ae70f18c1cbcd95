#include "tests/runtime/kernel_harness.h"

namespace meshwright::runtime {
namespace {

using planner::DType;
using planner::NormKind;
using planner::OpKind;

constexpr int64_t kRows = 5;
constexpr int64_t kWidth = 67;  // more than one column block, odd

struct Case {
  NormKind norm;
  bool one_plus;
  bool delta;
  bool other = false;
};

class NormTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    layer_ = c.norm == NormKind::kLayerNorm;
    h_.attributes.norm = c.norm;
    h_.attributes.one_plus = c.one_plus;
    h_.attributes.has_delta = c.delta;
    h_.attributes.eps = 1e-5;
    const int64_t n = kRows * kWidth;
    h_.Add("r", {kRows, kWidth}, Random(n, 1));
    h_.Add("delta", {kRows, kWidth}, Random(n, 2));
    h_.Add("delta_other", {kRows, kWidth}, Random(n, 7));
    h_.Add("gamma", {kWidth}, Random(kWidth, 3));
    h_.Add("beta", {kWidth}, Random(kWidth, 4));
    for (const char* name : {"r1", "n", "n2", "dr_out"}) h_.Add(name, {kRows, kWidth});
    h_.Add("stat", layer_ ? std::vector<int64_t>{2, kRows} : std::vector<int64_t>{kRows});
    h_.Add("dn", {kRows, kWidth}, Random(n, 5));
    h_.Add("dr_in", {kRows, kWidth}, Random(n, 6));
    h_.Add("gamma_grad", {kWidth});
    h_.Add("beta_grad", {kWidth});
  }
  KernelHarness::Bindings With(KernelHarness::Bindings bindings, const char* operand) const {
    if (layer_) bindings.emplace_back(operand, operand);
    return bindings;
  }
  void Forward() {
    KernelHarness::Bindings b = {
        {"r", "r"}, {"gamma", "gamma"}, {"r1", "r1"}, {"n", "n"}, {"stat", "stat"}};
    if (GetParam().delta) b.emplace_back("delta", "delta");
    if (GetParam().other) b.emplace_back("delta_other", "delta_other");
    ASSERT_TRUE(h_.Run(OpKind::kNorm, With(b, "beta")).ok());
  }
  /// sum(dn * n) + sum(dr_in * r1): r1 also feeds the residual stream.
  double Loss() {
    Forward();
    return Dot(h_.Get("dn"), h_.Get("n")) + Dot(h_.Get("dr_in"), h_.Get("r1"));
  }
  void Backward() {
    ASSERT_TRUE(h_.Run(OpKind::kNormGrad, With({{"dn", "dn"},
                                                {"r1", "r1"},
                                                {"stat", "stat"},
                                                {"gamma", "gamma"},
                                                {"dr_in", "dr_in"},
                                                {"dr_out", "dr_out"},
                                                {"gamma_grad", "gamma_grad"}},
                                               "beta_grad"))
                    .ok());
  }
  KernelHarness h_;
  bool layer_ = false;
};

TEST_P(NormTest, MatchesDefinition) {
  Forward();
  const auto r = h_.Get("r"), delta = h_.Get("delta"), other = h_.Get("delta_other"),
             gamma = h_.Get("gamma"), beta = h_.Get("beta");
  std::vector<double> r1(r), n(r.size());
  for (int64_t row = 0; row < kRows; ++row) {
    double mean = 0, square = 0;
    for (int64_t j = 0; j < kWidth; ++j) {
      double& x = r1[static_cast<size_t>(row * kWidth + j)];
      const auto i = static_cast<size_t>(row * kWidth + j);
      if (GetParam().delta) x += GetParam().other ? delta[i] + other[i] : delta[i];
      mean += x / kWidth;
      square += x * x / kWidth;
    }
    if (!layer_) mean = 0;
    const double rstd = 1.0 / std::sqrt(square - mean * mean + 1e-5);
    for (int64_t j = 0; j < kWidth; ++j) {
      const auto i = static_cast<size_t>(row * kWidth + j);
      const auto k = static_cast<size_t>(j);
      n[i] = (r1[i] - mean) * rstd * (gamma[k] + (GetParam().one_plus ? 1 : 0)) +
             (layer_ ? beta[k] : 0);
    }
  }
  ExpectClose(h_.Get("r1"), r1, 0, "r1");
  ExpectClose(h_.Get("n"), n, 1e-13, "n");
}

TEST_P(NormTest, ApplyRepeatsTheForwardBitForBit) {
  Forward();
  ASSERT_TRUE(
      h_.Run(OpKind::kNormApply,
             With({{"r1", "r1"}, {"stat", "stat"}, {"gamma", "gamma"}, {"n", "n2"}}, "beta"))
          .ok());
  EXPECT_EQ(h_.Get("n2"), h_.Get("n"));
}

TEST_P(NormTest, GradientMatchesDifferences) {
  Forward();
  h_.first_micro_batch = true;
  Backward();
  const auto loss = [&] { return Loss(); };
  ExpectGradient(h_, "r", loss, h_.Get("dr_out"));
  ExpectGradient(h_, "gamma", loss, h_.Get("gamma_grad"));
  if (layer_) ExpectGradient(h_, "beta", loss, h_.Get("beta_grad"));
}

TEST_P(NormTest, AccumulatesOnLaterMicroBatches) {
  Forward();
  h_.first_micro_batch = true;
  Backward();
  const auto once = h_.Get("gamma_grad");
  const auto beta_once = h_.Get("beta_grad");
  h_.first_micro_batch = false;
  Backward();
  std::vector<double> twice(once), beta_twice(beta_once);
  for (double& v : twice) v *= 2;
  for (double& v : beta_twice) v *= 2;
  ExpectClose(h_.Get("gamma_grad"), twice, 1e-15, "gamma_grad");
  if (layer_) ExpectClose(h_.Get("beta_grad"), beta_twice, 1e-15, "beta_grad");
}

TEST_P(NormTest, OutputsMayLieOverInputs) {
  Forward();
  h_.first_micro_batch = true;
  Backward();
  const auto n = h_.Get("n"), r1 = h_.Get("r1"), dr_out = h_.Get("dr_out"),
             gamma = h_.Get("gamma_grad");
  // dr_out over dr_in.
  h_.Alias("dr_out", "dr_in");
  Backward();
  EXPECT_EQ(h_.Get("dr_out"), dr_out);
  EXPECT_EQ(h_.Get("gamma_grad"), gamma);
  // r1 over delta, then (with the inputs anew) over r.
  for (const char* over : {"delta", "r"}) {
    SCOPED_TRACE(over);
    h_.Set("r", Random(kRows * kWidth, 1));
    h_.Set("delta", Random(kRows * kWidth, 2));
    h_.Alias("r1", over);
    Forward();
    EXPECT_EQ(h_.Get("r1"), r1);
    EXPECT_EQ(h_.Get("n"), n);
  }
}

TEST_P(NormTest, WithoutDeltaTheSumMayBeAbsent) {
  std::vector<std::vector<double>> results;
  for (bool with_sum : {true, false}) {
    KernelHarness::Bindings b = {{"r", "r"}, {"gamma", "gamma"}, {"n", "n"}, {"stat", "stat"}};
    if (with_sum) b.emplace_back("r1", "r1");
    h_.Poison("n");
    ASSERT_TRUE(h_.Run(OpKind::kNorm, With(b, "beta")).ok());
    results.push_back(h_.Get("n"));
  }
  EXPECT_EQ(h_.Get("r1"), h_.Get("r"));
  EXPECT_EQ(results[0], results[1]);
}

TEST_P(NormTest, WithoutResidualGradientTheGradientIsThatOfTheNormAlone) {
  Forward();
  h_.first_micro_batch = true;
  Backward();
  auto expected = h_.Get("dr_out");
  const auto dr_in = h_.Get("dr_in");
  for (size_t i = 0; i < expected.size(); ++i) expected[i] -= dr_in[i];
  ASSERT_TRUE(h_.Run(OpKind::kNormGrad, With({{"dn", "dn"},
                                              {"r1", "r1"},
                                              {"stat", "stat"},
                                              {"gamma", "gamma"},
                                              {"dr_out", "dr_out"},
                                              {"gamma_grad", "gamma_grad"}},
                                             "beta_grad"))
                  .ok());
  ExpectClose(h_.Get("dr_out"), expected, 1e-14, "dr_out");
}

INSTANTIATE_TEST_SUITE_P(All, NormTest,
                         testing::Values(Case{NormKind::kRmsNorm, false, true},
                                         Case{NormKind::kRmsNorm, true, false},
                                         Case{NormKind::kRmsNorm, false, true, true},
                                         Case{NormKind::kLayerNorm, false, true},
                                         Case{NormKind::kLayerNorm, true, false},
                                         Case{NormKind::kLayerNorm, false, true, true}));

TEST(NormKernel, SinglePrecisionAgreesWithDouble) {
  std::vector<std::vector<double>> results;
  for (DType dtype : {DType::kF64, DType::kF32}) {
    KernelHarness h(dtype);
    h.attributes.norm = NormKind::kLayerNorm;
    h.attributes.eps = 1e-5;
    h.Add("r", {3, 40}, Random(120, 1));
    h.Add("gamma", {40}, Random(40, 2));
    h.Add("beta", {40}, Random(40, 3));
    h.Add("r1", {3, 40});
    h.Add("n", {3, 40});
    h.Add("stat", {2, 3});
    ASSERT_TRUE(h.Run(OpKind::kNorm, {{"r", "r"},
                                      {"gamma", "gamma"},
                                      {"beta", "beta"},
                                      {"r1", "r1"},
                                      {"n", "n"},
                                      {"stat", "stat"}})
                    .ok());
    results.push_back(h.Get("n"));
  }
  ExpectClose(results[1], results[0], 1e-6, "n");
}

}  // namespace
}  // namespace meshwright::runtime
