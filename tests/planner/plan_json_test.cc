// plan.json: what is written is read back equal; anything else is refused with the field's name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "planner/ir/plan.h"
#include "planner/lower/make_plan.h"
#include "tests/planner/search_cases.h"
#include "topologies/cluster_io.h"

namespace meshwright::planner {
namespace {

using testing::HasSubstr;

Plan SamplePlan() {
  Dice dice(3);
  SplitRequest r;
  r.tp = 2;
  r.pp = 2;
  r.global_batch = 4;
  r.sequence = 16;
  ModelSpec model = RandomModel(dice, 4, 1);
  model.modules.front().layer_kinds.front().attention.heads = 4;
  model.modules.front().layer_kinds.front().attention.kv_heads = 2;
  Plan plan = MakePlan(model, r).value();
  const auto cluster = topologies::ParseClusterYaml(kTwoHosts, "test").value();
  plan.cluster_name = cluster.name();
  plan.cluster_text = topologies::ToYaml(cluster.spec());
  plan.cluster_fingerprint = cluster.Fingerprint();
  plan.prediction.step_time_s = 0.125;
  plan.prediction.memory = {MemoryBreakdown{1, 2, 3, 4, 5, 6, 7, 8, 9}};
  plan.prediction.stage_time_s = {0.1, 1e-300};
  plan.reasons = {"tp 2: \"quoted\"\n\ttab, \xC3\xA9"};
  plan.warnings = {"careful"};
  plan.runners_up = {{"tp1", 0.5, "bubble"}};
  return plan;
}

/// The plan's text with `from` replaced by `to` once.
std::string Edited(const std::string& from, const std::string& to) {
  std::string text = WritePlanJson(SamplePlan());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string ErrorOf(const std::string& text) {
  const auto plan = ParsePlanJson(text, "p.json");
  EXPECT_FALSE(plan.ok());
  if (plan.ok()) return {};
  EXPECT_EQ(plan.status().code(), StatusCode::kInvalidInput);
  EXPECT_THAT(plan.status().message(), HasSubstr("p.json"));
  EXPECT_LT(plan.status().message().size(), 20000u);
  return plan.status().message();
}

TEST(PlanJson, KeepsDeterministicRuns) {
  Plan plan = SamplePlan();
  plan.deterministic = true;
  EXPECT_NE(Fingerprint(plan), Fingerprint(SamplePlan())) << "the arena is another one";
  const std::string text = WritePlanJson(plan);
  const auto again = ParsePlanJson(text, "p.json");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_TRUE(again->deterministic);
  EXPECT_EQ(*again, plan);
  EXPECT_THAT(ErrorOf(Edited("\"workspace_bytes\"", "\"deterministic\": 1, \"workspace_bytes\"")),
              HasSubstr("deterministic"));
}

TEST(PlanJson, ChunksOfLogitsAreOfThePlan) {
  Plan plan = SamplePlan();
  EXPECT_THAT(WritePlanJson(plan), Not(HasSubstr("logits_chunk_bytes")))
      << "as of before the field";
  plan.modules.front().logits_chunk_bytes = 1 << 30;
  EXPECT_NE(Fingerprint(plan), Fingerprint(SamplePlan()));
  const auto again = ParsePlanJson(WritePlanJson(plan), "p.json");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, plan);
  EXPECT_THAT(
      ErrorOf(Edited("\"zero\": \"none\"", "\"logits_chunk_bytes\": 0, \"zero\": \"none\"")),
      HasSubstr("modules[0].logits_chunk_bytes: found 0"));
}

TEST(PlanJson, ReadsBackWhatItWrote) {
  const Plan plan = SamplePlan();
  const auto again = ParsePlanJson(WritePlanJson(plan), "p.json");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, plan);
  EXPECT_EQ(WritePlanJson(*again), WritePlanJson(plan));
}

RC_GTEST_PROP(PlanJson, ReadsBackRandomPlans, (uint64_t seed)) {
  Dice dice(seed);
  const int64_t layers = dice.Between(1, 12);
  const ModelSpec model = RandomModel(dice, layers, static_cast<int>(dice.Between(1, 2)));
  auto made = MakePlan(model, RandomSplit(dice, layers));
  RC_PRE(made.ok());
  Plan plan = *made;
  plan.placement.back() += dice.Between(0, 1000);
  plan.prediction.step_time_s = static_cast<double>(dice.Between(0, 1 << 30)) / 7.0;
  plan.prediction.mfu = 1.0 / static_cast<double>(dice.Between(1, 99));
  for (int64_t p = 0; p < dice.Between(0, 3); ++p) {
    plan.prediction.memory.push_back({dice.Between(0, int64_t{1} << 59), 1, 2, 3, 4, 5, 6, 7, 8});
  }
  plan.reasons.push_back(*rc::gen::container<std::string>(rc::gen::inRange('\x01', '\x7f')));
  plan.runners_up.push_back({"x", plan.prediction.mfu, plan.reasons.back()});
  const auto again = ParsePlanJson(WritePlanJson(plan), "p.json");
  if (!again.ok()) RC_LOG() << again.status().message();
  RC_ASSERT(again.ok());
  RC_ASSERT(*again == plan);
}

TEST(PlanJson, NamesTheFieldThatIsWrong) {
  EXPECT_THAT(ErrorOf(Edited("\"tp\": 2", "\"tp\": 0")),
              HasSubstr("modules[0].tp: found 0, allowed: an integer from 1"));
  EXPECT_THAT(ErrorOf(Edited("\"tp\": 2", "\"tp\": 2.0")), HasSubstr("modules[0].tp: found 2.0"));
  EXPECT_THAT(ErrorOf(Edited("\"tp\": 2", "\"tp\": \"2\"")), HasSubstr("modules[0].tp"));
  EXPECT_THAT(ErrorOf(Edited("\"tp\": 2", "\"tq\": 2")), HasSubstr("modules[0].tp: found nothing"));
  EXPECT_THAT(ErrorOf(Edited("\"tp\": 2", "\"tq\": 2")), HasSubstr("unknown key \"tq\""));
  EXPECT_THAT(ErrorOf(Edited("\"tp\": 2", "\"tp\": 2, \"tp\": 2")), HasSubstr("\"tp\" twice"));
  EXPECT_THAT(ErrorOf(Edited("\"tp\": 2", "\"tp\": 18446744073709551615")),
              HasSubstr("modules[0].tp"));
  EXPECT_THAT(ErrorOf(Edited("\"zero\": \"none\"", "\"zero\": \"zero9\"")), HasSubstr("zero1"));
  EXPECT_THAT(ErrorOf(Edited("\"dtype\": \"bf16\"", "\"dtype\": \"fp8\"")),
              HasSubstr("allowed: bf16"));
  EXPECT_THAT(ErrorOf(Edited("\"step_time_s\": 0.125", "\"step_time_s\": -1")),
              HasSubstr("step_time_s"));
  EXPECT_THAT(ErrorOf(Edited("\"step_time_s\": 0.125", "\"step_time_s\": 1e999")),
              HasSubstr("p.json"));
  EXPECT_THAT(ErrorOf(Edited("\"global_batch\": 4", "\"global_batch\": null")),
              HasSubstr("global_batch: found null"));
  EXPECT_THAT(ErrorOf(Edited("\"meshwright_plan\": 2", "\"meshwright_plan\": 1")),
              HasSubstr("found version 1, this program reads 2"));
}

TEST(PlanJson, SaysWhatWasChangedAfterPlanning) {
  const std::string step = ErrorOf(Edited("\"global_batch\": 4", "\"global_batch\": 8"));
  EXPECT_THAT(step, HasSubstr("p.json: plan: the file states fingerprint 0x"));
  EXPECT_THAT(ErrorOf(Edited("hidden: ", "hidden: 8")), HasSubstr("model"));
  EXPECT_THAT(ErrorOf(Edited("memory: 80", "memory: 81")),
              HasSubstr("p.json: cluster: the file states"));
}

TEST(PlanJson, RefusesWhatIsNoPlan) {
  const std::string whole = WritePlanJson(SamplePlan());
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("{}"),
        std::string("\xff\xfe{}"), std::string(100000, '['),
        std::string("{\"a\":") + std::string(50000, '{'), std::string("{\"meshwright_plan\": 1}"),
        std::string("\0\0\0", 3)}) {
    ErrorOf(text);
  }
  for (size_t cut = 0; cut < whole.size() - 2; cut += 97) ErrorOf(whole.substr(0, cut));
  EXPECT_THAT(ErrorOf(std::string(20, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(ErrorOf("{\n\n  oops"), HasSubstr("line 3"));
}

TEST(PlanJson, RefusesSizesThatWouldOverflow) {
  EXPECT_THAT(ErrorOf(Edited("\"dp\": 1", "\"dp\": 131072")), HasSubstr("p.json"));
  std::string text = Edited("\"dp\": 1", "\"dp\": 131072");
  const size_t at = text.find("\"cp\": 1");
  text.replace(at, 7, "\"cp\": 131072");
  EXPECT_THAT(ErrorOf(text), HasSubstr("tp x cp x ep x dp x pp up to"));
}

}  // namespace
}  // namespace meshwright::planner
