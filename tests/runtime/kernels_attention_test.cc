#include "tests/runtime/kernel_harness.h"

namespace meshwright::runtime {
namespace {

using planner::DType;
using planner::OpAttributes;
using planner::OpKind;

struct Shape {
  int64_t sequence, batch, heads, kv_heads, d;
  bool causal;
  int64_t window;

  int64_t packed() const { return (heads + 2 * kv_heads) * d; }
  int64_t tokens() const { return sequence * batch; }
};

OpAttributes AttributesOf(const Shape& s) {
  OpAttributes a;
  a.sequence = s.sequence;
  a.batch = s.batch;
  a.heads = s.heads;
  a.kv_heads = s.kv_heads;
  a.head_dim = s.d;
  a.causal = s.causal;
  a.window = s.window;
  a.scale = 0.37;
  return a;
}

KernelHarness MakeAttention(const Shape& s, DType dtype = DType::kF64) {
  KernelHarness h(dtype);
  h.attributes = AttributesOf(s);
  h.Add("qkv", {s.sequence, s.batch, s.packed()}, Random(s.tokens() * s.packed(), 1));
  h.Add("do", {s.sequence, s.batch, s.heads * s.d}, Random(s.tokens() * s.heads * s.d, 2));
  h.Add("o", {s.sequence, s.batch, s.heads * s.d});
  h.Add("lse", {s.batch, s.heads, s.sequence});
  h.Add("dqkv", {s.sequence, s.batch, s.packed()});
  h.Add("workspace", {2 * 64 * s.sequence});
  return h;
}

void Forward(KernelHarness& h) {
  h.Poison("workspace");
  ASSERT_TRUE(h.Run(OpKind::kAttention,
                    {{"qkv", "qkv"}, {"o", "o"}, {"lse", "lse"}, {"workspace", "workspace"}})
                  .ok());
}
void Backward(KernelHarness& h) {
  h.Poison("workspace");
  ASSERT_TRUE(h.Run(OpKind::kAttentionGrad, {{"qkv", "qkv"},
                                             {"o", "o"},
                                             {"lse", "lse"},
                                             {"do", "do"},
                                             {"dqkv", "dqkv"},
                                             {"workspace", "workspace"}})
                  .ok());
}

/// Attention and its log-sum-exp by the definition, one query at a time.
void Reference(const Shape& s, const std::vector<double>& qkv, std::vector<double>* o,
               std::vector<double>* lse) {
  o->assign(static_cast<size_t>(s.tokens() * s.heads * s.d), 0.0);
  lse->assign(static_cast<size_t>(s.batch * s.heads * s.sequence), 0.0);
  const auto at = [&](int64_t position, int64_t b, int64_t head, int64_t j) {
    return qkv[static_cast<size_t>((position * s.batch + b) * s.packed() + head * s.d + j)];
  };
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t head = 0; head < s.heads; ++head) {
      const int64_t kv = head * s.kv_heads / s.heads;
      for (int64_t i = 0; i < s.sequence; ++i) {
        double sum = 0;
        std::vector<double> out(static_cast<size_t>(s.d));
        for (int64_t k = 0; k < s.sequence; ++k) {
          if (s.causal && k > i) continue;
          if (s.window > 0 && std::abs(i - k) >= s.window) continue;
          double score = 0;
          for (int64_t j = 0; j < s.d; ++j) score += at(i, b, head, j) * at(k, b, s.heads + kv, j);
          const double e = std::exp(0.37 * score);
          sum += e;
          for (int64_t j = 0; j < s.d; ++j) {
            out[static_cast<size_t>(j)] += e * at(k, b, s.heads + s.kv_heads + kv, j);
          }
        }
        (*lse)[static_cast<size_t>((b * s.heads + head) * s.sequence + i)] = std::log(sum);
        for (int64_t j = 0; j < s.d; ++j) {
          (*o)[static_cast<size_t>(((i * s.batch + b) * s.heads + head) * s.d + j)] =
              out[static_cast<size_t>(j)] / sum;
        }
      }
    }
  }
}

class AttentionTest : public testing::TestWithParam<Shape> {};

TEST_P(AttentionTest, MatchesDefinition) {
  const Shape& s = GetParam();
  for (DType dtype : {DType::kF64, DType::kF32}) {
    KernelHarness h = MakeAttention(s, dtype);
    Forward(h);
    std::vector<double> o, lse;
    Reference(s, h.Get("qkv"), &o, &lse);
    const double tolerance = dtype == DType::kF64 ? 1e-13 : 1e-5;
    ExpectClose(h.Get("o"), o, tolerance, "o");
    ExpectClose(h.Get("lse"), lse, tolerance, "lse");
  }
}

TEST_P(AttentionTest, GradientMatchesDifferences) {
  const Shape& s = GetParam();
  KernelHarness h = MakeAttention(s);
  Forward(h);
  Backward(h);
  const auto dqkv = h.Get("dqkv");
  if (s.sequence <= 16) {
    ExpectGradient(
        h, "qkv",
        [&] {
          Forward(h);
          return Dot(h.Get("do"), h.Get("o"));
        },
        dqkv);
    return;
  }
  // Long sequences: along a random direction, which every element enters.
  const auto qkv = h.Get("qkv");
  const auto direction = Random(static_cast<int64_t>(qkv.size()), 9);
  double difference = 0;
  constexpr double kStep = 1e-5;
  for (double sign : {1.0, -1.0}) {
    auto moved = qkv;
    for (size_t i = 0; i < moved.size(); ++i) moved[i] += sign * kStep * direction[i];
    h.Set("qkv", moved);
    Forward(h);
    difference += sign * Dot(h.Get("do"), h.Get("o")) / (2 * kStep);
  }
  EXPECT_NEAR(Dot(dqkv, direction), difference, 1e-6 * std::fabs(difference));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionTest,
    testing::Values(Shape{5, 2, 3, 3, 4, true, 0}, Shape{7, 1, 4, 2, 3, true, 0},
                    Shape{9, 2, 2, 1, 4, true, 3}, Shape{6, 2, 2, 2, 5, false, 0},
                    Shape{8, 1, 2, 1, 3, false, 3}, Shape{1, 1, 1, 1, 2, true, 0},
                    Shape{130, 2, 2, 1, 4, true, 0}, Shape{150, 1, 2, 2, 3, true, 70},
                    Shape{129, 1, 1, 1, 4, false, 0}));

/// Two tensor ranks with half of the heads each compute what one rank with all heads does.
TEST(AttentionKernel, HeadsSplitOverRanksGiveTheSameHeads) {
  const Shape whole = {70, 2, 4, 2, 4, true, 0};
  KernelHarness h = MakeAttention(whole);
  Forward(h);
  Backward(h);
  const auto qkv = h.Get("qkv"), o = h.Get("o"), d_o = h.Get("do"), dqkv = h.Get("dqkv");
  const Shape half = {70, 2, 2, 1, 4, true, 0};
  for (int64_t rank = 0; rank < 2; ++rank) {
    KernelHarness part = MakeAttention(half);
    std::vector<double> local, local_do, local_o, local_dqkv;
    for (int64_t t = 0; t < whole.tokens(); ++t) {
      // q heads 2r, 2r+1; k head r; v head r.
      for (int64_t head : {2 * rank, 2 * rank + 1, 4 + rank, 6 + rank}) {
        for (int64_t j = 0; j < 4; ++j) {
          const auto i = static_cast<size_t>(t * whole.packed() + head * 4 + j);
          local.push_back(qkv[i]);
          local_dqkv.push_back(dqkv[i]);
        }
      }
      for (int64_t j = 0; j < 8; ++j) {
        local_do.push_back(d_o[static_cast<size_t>(t * 16 + rank * 8 + j)]);
        local_o.push_back(o[static_cast<size_t>(t * 16 + rank * 8 + j)]);
      }
    }
    part.Set("qkv", local);
    part.Set("do", local_do);
    Forward(part);
    Backward(part);
    ExpectClose(part.Get("o"), local_o, 1e-15, "o");
    ExpectClose(part.Get("dqkv"), local_dqkv, 1e-15, "dqkv");
  }
}

TEST(AttentionKernel, LargeScoresDoNotOverflow) {
  const Shape s = {4, 1, 1, 1, 2, true, 0};
  KernelHarness h = MakeAttention(s, DType::kF32);
  auto qkv = h.Get("qkv");
  for (double& v : qkv) v *= 1e4;
  h.Set("qkv", qkv);
  Forward(h);
  Backward(h);
  for (const char* name : {"o", "lse", "dqkv"}) {
    for (double v : h.Get(name)) EXPECT_TRUE(std::isfinite(v)) << name;
  }
}

TEST(AttentionKernelDeathTest, SmallWorkspaceIsABrokenInvariant) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  KernelHarness h = MakeAttention({5, 1, 1, 1, 2, true, 0});
  h.Add("small", {24});
  EXPECT_DEATH((void)h.Run(OpKind::kAttention,
                           {{"qkv", "qkv"}, {"o", "o"}, {"lse", "lse"}, {"workspace", "small"}}),
               "invariant broken");
}

// ---- rotary ----

KernelHarness MakeRotary(const Shape& s) {
  KernelHarness h;
  h.attributes = AttributesOf(s);
  h.attributes.rope_theta = 100.0;
  h.Add("qkv", {s.sequence, s.batch, s.packed()}, Random(s.tokens() * s.packed(), 3));
  return h;
}

TEST(RotaryKernel, TurnsPairsOfQueriesAndKeysByPosition) {
  const Shape s = {6, 2, 2, 1, 6, true, 0};
  KernelHarness h = MakeRotary(s);
  auto expected = h.Get("qkv");
  for (int64_t t = 0; t < s.tokens(); ++t) {
    for (int64_t head = 0; head < s.heads + s.kv_heads; ++head) {
      for (int64_t i = 0; i < 3; ++i) {
        const double angle =
            static_cast<double>(t / s.batch) * std::pow(100.0, -2.0 * static_cast<double>(i) / 6);
        double& x = expected[static_cast<size_t>(t * s.packed() + head * 6 + i)];
        double& y = expected[static_cast<size_t>(t * s.packed() + head * 6 + i + 3)];
        const double x0 = x, y0 = y;
        x = x0 * std::cos(angle) - y0 * std::sin(angle);
        y = x0 * std::sin(angle) + y0 * std::cos(angle);
      }
    }
  }
  ASSERT_TRUE(h.Run(OpKind::kRotary, {{"qkv", "qkv"}}).ok());
  ExpectClose(h.Get("qkv"), expected, 1e-14, "qkv");
}

TEST(RotaryKernel, InverseIsTheGradient) {
  const Shape s = {5, 1, 2, 1, 134, true, 0};  // 67 pairs: more than one block
  KernelHarness h = MakeRotary(s);
  const auto x = h.Get("qkv");
  ASSERT_TRUE(h.Run(OpKind::kRotary, {{"qkv", "qkv"}}).ok());
  const auto y = h.Get("qkv");
  EXPECT_NE(x, y);
  // <R x, w> = <x, R^T w> for any w: the inverse rotation is the transpose.
  const auto w = Random(static_cast<int64_t>(x.size()), 4);
  h.Set("qkv", w);
  h.attributes.inverse = true;
  ASSERT_TRUE(h.Run(OpKind::kRotary, {{"qkv", "qkv"}}).ok());
  EXPECT_NEAR(Dot(y, w), Dot(x, h.Get("qkv")), 1e-11);
  h.Set("qkv", y);
  ASSERT_TRUE(h.Run(OpKind::kRotary, {{"qkv", "qkv"}}).ok());
  ExpectClose(h.Get("qkv"), x, 1e-14, "qkv turned back");
}

}  // namespace
}  // namespace meshwright::runtime
