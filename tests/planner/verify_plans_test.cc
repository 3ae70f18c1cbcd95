// Random legal plans are proven.
#include <gtest/gtest.h>

#include <map>

#include "tests/planner/verify_common.h"

namespace meshwright::planner {
namespace {

using testing::Describe;
using testing::Draw;
using testing::LongForm;
using testing::RandomSplit;

TEST(VerifyPlans, RandomLegalPlansAreProven) {
  const int wanted = LongForm() ? 1000 : 100;
  std::mt19937 random(7);
  int legal = 0;
  std::map<std::string, int> seen;
  for (int drawn = 0; legal < wanted; ++drawn) {
    ASSERT_LT(drawn, 40 * wanted) << "the generator hardly draws legal plans";
    const RandomSplit split = Draw(random, 64);
    const Result<Plan> plan = MakePlan(split.model, split.request);
    if (!plan.ok()) continue;
    const Result<Programs> programs = Lower(*plan);
    ASSERT_TRUE(programs.ok()) << Describe(split) << ": " << programs.status().message();
    ++legal;
    ++seen[split.request.virtual_stages > 1 ? "interleaved" : "plain"];
    if (split.request.tp > 1) ++seen["tensor"];
    if (split.request.dp > 1 && split.request.sharding == Sharding::kZero1) ++seen["zero1"];
    const Status status = Verify(*programs, {});
    EXPECT_TRUE(status.ok()) << Describe(split) << ": " << status.message();
    VerifyLimits unfolded;
    unfolded.fold = false;
    if (programs->ranks.size() <= 16) {
      EXPECT_TRUE(Verify(*programs, unfolded).ok()) << Describe(split);
    }
  }
  for (const char* kind : {"plain", "interleaved", "tensor", "zero1"}) {
    EXPECT_GE(seen[kind], wanted / 20) << kind;
  }
}

}  // namespace
}  // namespace meshwright::planner
