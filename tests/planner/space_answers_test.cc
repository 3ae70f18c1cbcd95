// Front, runners-up and "nothing fits" against searches that hold the answer fixed; a certificate
// under a time limit; mixed devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "planner/space/answers.h"
#include "tests/planner/space_cases.h"

namespace meshwright::planner::space {
namespace {

using testing::HasSubstr;

ModuleSpec Dense(int64_t layers) {
  ModuleSpec module;
  module.name = "language";
  module.hidden = 64;
  LayerSpec layer;
  layer.attention.heads = layer.attention.kv_heads = 8;
  layer.attention.head_dim = 8;
  layer.mlp.ffn = 256;
  module.layer_kinds = {layer};
  module.layers.assign(static_cast<size_t>(layers), 0);
  return module;
}

SpaceCase DenseCase(int64_t gpus, int64_t layers = 8) {
  SpaceCase c;
  c.costs.push_back(std::make_unique<InventedCosts>(Dense(layers), 16, InventedOptions{}));
  c.groups = {{"device", c.costs.back().get(), 1e9, 0}};
  c.options.gpus = {gpus};
  c.options.global_batch = 16;
  c.options.top = 1;
  return c;
}

TEST(SpaceAnswers, FrontPointsAreOptimalUnderTheirMemoryAndNoneIsBeaten) {
  SpaceCase c = DenseCase(8);
  c.options.gpus = {2, 4, 8};
  const FrontOptions front{0.9, 2.0, 1e6};
  const auto points = ParetoFront(c.groups, c.options, front);
  ASSERT_TRUE(points.ok()) << points.status().message();
  ASSERT_GT(points->size(), 4U);
  for (const FrontPoint& p : *points) {
    for (const FrontPoint& q : *points) {
      EXPECT_FALSE(&p != &q && q.gpus <= p.gpus && q.peak_bytes <= p.peak_bytes &&
                   q.solution.objective_s <= p.solution.objective_s);
    }
    SpaceOptions one = c.options;
    one.gpus = {p.gpus};
    const auto again = FindSplits({{"device", c.costs[0].get(), p.peak_bytes, 0}}, one);
    ASSERT_TRUE(again.ok());
    EXPECT_NEAR(again->best.front().objective_s, p.solution.objective_s, 1e-9);
    const double steps = 1e6 / (16.0 * 16.0);
    EXPECT_NEAR(p.cost, 2.0 * static_cast<double>(p.gpus) * steps * p.solution.objective_s / 3600.0,
                1e-9 * p.cost);
  }
}

TEST(SpaceAnswers, FrontRejectsBadNumbers) {
  SpaceCase c = DenseCase(2);
  EXPECT_EQ(ParetoFront(c.groups, c.options, {1.0, 0, 0}).status().code(),
            StatusCode::kInvalidInput);
  EXPECT_EQ(ParetoFront(c.groups, c.options, {0.5, -1, 0}).status().code(),
            StatusCode::kInvalidInput);
}

TEST(SpaceAnswers, RunnersUpDifferInTheirAxisAndAreBestThere) {
  SpaceCase c = DenseCase(8);
  c.options.held.cp = 1;
  const auto found = FindSplits(c.groups, c.options);
  ASSERT_TRUE(found.ok());
  const Solution& winner = found->best.front();
  const auto runners = RunnersUp(c.groups, c.options, winner);
  ASSERT_EQ(runners.size(), 12U);  // all axes but cp
  int64_t others = 0;
  for (const RunnerUp& r : runners) {
    EXPECT_EQ(r.other.has_value(), r.reason.empty());
    if (!r.other) continue;
    ++others;
    EXPECT_GE(r.loss, -1e-12);
    if (r.axis == "tp") {
      EXPECT_NE(r.other->tuple.split.tp, winner.tuple.split.tp);
      double best = std::numeric_limits<double>::infinity();
      for (const int64_t tp : {1, 2, 4, 8}) {
        if (tp == winner.tuple.split.tp) continue;
        SpaceOptions held = c.options;
        held.held.tp = tp;
        const auto with = FindSplits(c.groups, held);
        if (with.ok()) best = std::min(best, with->best.front().objective_s);
      }
      EXPECT_NEAR(r.other->objective_s, best, 1e-9 * best);
    }
  }
  EXPECT_GT(others, 5);
}

TEST(SpaceAnswers, NothingFitsNamesTheStageAndChangesThatFit) {
  SpaceCase c = DenseCase(4);
  c.options.held.tp = 1;
  c.options.held.sharding = stack::ShardingLevel::kNone;
  c.options.held.pp = 1;
  c.groups[0].memory_bytes = 2500;
  ASSERT_EQ(FindSplits(c.groups, c.options).status().code(), StatusCode::kInfeasible);
  const auto answer = WhatWouldFit(c.groups, c.options);
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_GT(answer->needed_share, 1.0);
  EXPECT_LE(answer->least.peak_bytes(), answer->needed_share * 2500 * (1 + 1e-12));
  EXPECT_EQ(
      FindSplits({{"device", c.costs[0].get(), 2500 * answer->needed_share / 1.02, 0}}, c.options)
          .ok(),
      false);
  ASSERT_GT(answer->changes.size(), 1U);
  for (size_t i = 0; i + 1 < answer->changes.size(); ++i) {
    EXPECT_LE(answer->changes[i].solution.peak_bytes(), 2500) << answer->changes[i].text;
  }
  EXPECT_THAT(answer->Text(), HasSubstr("stage 0"));
  EXPECT_THAT(answer->Text(), HasSubstr("free sharding"));
}

TEST(SpaceAnswers, SaysWhatMakesASplitIllegal) {
  SpaceCase c = DenseCase(6);
  c.options.held.tp = 3;
  const auto found = FindSplits(c.groups, c.options);
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(found.status().message(), HasSubstr("tp 3 does not divide 8 heads"));
}

TEST(SpaceAnswers, BadInputIsNamedAllAtOnce) {
  SpaceCase c = DenseCase(4);
  c.options.gpus = {0};
  c.options.global_batch = -1;
  c.groups[0].memory_bytes = std::numeric_limits<double>::quiet_NaN();
  const auto found = FindSplits(c.groups, c.options);
  ASSERT_EQ(found.status().code(), StatusCode::kInvalidInput);
  EXPECT_THAT(found.status().message(), HasSubstr("gpus: found 0"));
  EXPECT_THAT(found.status().message(), HasSubstr("global batch: found -1"));
  EXPECT_THAT(found.status().message(), HasSubstr("memory"));
  EXPECT_FALSE(FindSplits({}, c.options).ok());
}

TEST(Space, CertificateUnderATimeLimitHoldsForTheOptimum) {
  SpaceCase c = DenseCase(8);
  const auto exact = FindSplits(c.groups, c.options);
  ASSERT_TRUE(exact.ok());
  EXPECT_EQ(exact->certificate.gap, 0.0);
  c.options.time_limit_s = 1e-9;
  const auto limited = FindSplits(c.groups, c.options);
  const double best = exact->best.front().objective_s;
  if (limited.ok()) {
    EXPECT_LE(limited->certificate.lower_bound_s, best * (1 + 1e-12));
    EXPECT_GE(limited->best.front().objective_s, best * (1 - 1e-12));
  } else {
    EXPECT_THAT(limited.status().message(), HasSubstr("allow more time"));
  }
}

TEST(Space, FasterDevicesGetMoreLayers) {
  SpaceCase c;
  InventedOptions slow, fast;
  fast.speed = 3.0;
  for (const InventedOptions& o : {slow, fast}) {
    c.costs.push_back(std::make_unique<InventedCosts>(Dense(8), 16, o));
  }
  c.groups = {{"slow", c.costs[0].get(), 1e9, 2}, {"fast", c.costs[1].get(), 1e9, 2}};
  c.options.global_batch = 16;
  c.options.held.pp = 2;
  const auto found = FindSplits(c.groups, c.options);
  ASSERT_TRUE(found.ok()) << found.status().message();
  const Solution& s = found->best.front();
  ASSERT_EQ(s.layers.size(), 2U);
  const size_t fast_stage = s.groups[0] == 1 ? 0 : 1;
  EXPECT_GT(s.layers[fast_stage], s.layers[1 - fast_stage]);
}

}  // namespace
}  // namespace meshwright::planner::space
