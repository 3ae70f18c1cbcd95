#include "tests/runtime/kernel_harness.h"

namespace meshwright::runtime {
namespace {

using planner::Activation;
using planner::DType;
using planner::OpKind;

constexpr int64_t kRows = 3;
constexpr int64_t kWidth = 7;

class ActivationTest : public testing::TestWithParam<std::tuple<Activation, bool>> {
 protected:
  void SetUp() override {
    h_.attributes.activation = std::get<0>(GetParam());
    h_.attributes.gated = gated();
    const int64_t width = gated() ? 2 * kWidth : kWidth;
    h_.Add("u", {kRows, width}, Random(kRows * width, 1));
    h_.Add("ds", {kRows, kWidth}, Random(kRows * kWidth, 2));
    h_.Add("s", {kRows, kWidth});
    h_.Add("s2", {kRows, kWidth});
    h_.Add("du", {kRows, width});
  }
  bool gated() const { return std::get<1>(GetParam()); }
  double Loss() {
    EXPECT_TRUE(h_.Run(OpKind::kActivation, {{"u", "u"}, {"s", "s"}}).ok());
    return Dot(h_.Get("ds"), h_.Get("s"));
  }
  KernelHarness h_;
};

TEST_P(ActivationTest, GradientMatchesDifferencesAndRepeatsTheValue) {
  Loss();
  ASSERT_TRUE(
      h_.Run(OpKind::kActivationGrad, {{"u", "u"}, {"ds", "ds"}, {"du", "du"}, {"s", "s2"}}).ok());
  EXPECT_EQ(h_.Get("s2"), h_.Get("s"));
  ExpectGradient(
      h_, "u", [&] { return Loss(); }, h_.Get("du"));
}

TEST_P(ActivationTest, GradientMayLieOverItsInputs) {
  Loss();
  ASSERT_TRUE(h_.Run(OpKind::kActivationGrad, {{"u", "u"}, {"ds", "ds"}, {"du", "du"}}).ok());
  const auto du = h_.Get("du"), s = h_.Get("s");
  ASSERT_TRUE(
      h_.Run(OpKind::kActivationGrad, {{"u", "u"}, {"ds", "ds"}, {"du", "u"}, {"s", "ds"}}).ok());
  EXPECT_EQ(h_.Get("u"), du);
  EXPECT_EQ(h_.Get("ds"), s);
}

INSTANTIATE_TEST_SUITE_P(All, ActivationTest,
                         testing::Combine(testing::Values(Activation::kGelu, Activation::kGeluTanh,
                                                          Activation::kSilu, Activation::kRelu,
                                                          Activation::kQuickGelu),
                                          testing::Bool()));

/// Values computed apart, to 10 digits, with x = 1 and x = -2 (Python's math module).
TEST(ActivationKernel, KnownValues) {
  const std::vector<std::pair<Activation, std::vector<double>>> cases = {
      {Activation::kGelu, {0.8413447461, -0.0455002639}},
      {Activation::kGeluTanh, {0.8411919906, -0.0454023059}},
      {Activation::kSilu, {0.7310585786, -0.2384058440}},
      {Activation::kRelu, {1.0, 0.0}},
      {Activation::kQuickGelu, {0.8457957659, -0.0643413769}},
  };
  for (const auto& [activation, expected] : cases) {
    for (DType dtype : {DType::kF64, DType::kF32}) {
      KernelHarness h(dtype);
      h.attributes.activation = activation;
      h.Add("u", {1, 2}, {1.0, -2.0});
      h.Add("s", {1, 2});
      ASSERT_TRUE(h.Run(OpKind::kActivation, {{"u", "u"}, {"s", "s"}}).ok());
      ExpectClose(h.Get("s"), expected, dtype == DType::kF64 ? 1e-9 : 1e-6, "s");
    }
  }
}

TEST(ActivationKernel, GateComesFirstInTheRow) {
  KernelHarness h;
  h.attributes.activation = Activation::kRelu;
  h.attributes.gated = true;
  h.Add("u", {2, 4}, {1, -1, 10, 20, 2, 3, -5, 7});
  h.Add("s", {2, 2});
  ASSERT_TRUE(h.Run(OpKind::kActivation, {{"u", "u"}, {"s", "s"}}).ok());
  EXPECT_EQ(h.Get("s"), (std::vector<double>{10, 0, -10, 21}));
}

}  // namespace
}  // namespace meshwright::runtime
