// plan, estimate, simulate, verify: happy paths, documents and refusals.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/tools/cli.h"

namespace meshwright::tools {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using EstimateTest = CliTest;
using PlanTest = CliTest;

constexpr const char* kEstimateFields[] = {"parameters",
                                           "fits",
                                           "step_time_s",
                                           "tokens_per_s_per_gpu",
                                           "model_tflops_per_gpu",
                                           "mfu",
                                           "peak_memory_bytes",
                                           "stages",
                                           "errors"};

/// Fields whose sum is the arena, as named in the documents.
int64_t ArenaSum(const json& memory) {
  int64_t sum = 0;
  for (const char* part :
       {"parameters", "gradients", "optimizer", "saved", "scratch", "communication", "io"}) {
    sum += memory.at(part).get<int64_t>();
  }
  return sum;
}

TEST_F(EstimateTest, DocumentHasEveryFieldAndAddsUp) {
  const CliResult result = Meshwright(
      "estimate --model llama-3-8b --cluster dgx-h100 --global-batch 64 --tp 2 --pp 2 "
      "--zero 1 --recompute selective --seq 4096 --json");
  ASSERT_EQ(result.exit, 0) << result.err;
  const json d = result.Json();
  for (const char* field : kEstimateFields) EXPECT_TRUE(d.contains(field)) << field;
  EXPECT_EQ(d["parameters"], 8030261248);
  EXPECT_EQ(d["fits"], true);
  EXPECT_THAT(d["errors"], IsEmpty());
  EXPECT_EQ(d["split"]["dp"], 2) << "8 GPUs / (2 x 2)";
  ASSERT_EQ(d["stages"].size(), 2U);
  int64_t layers = 0, peak = 0;
  for (const json& stage : d["stages"]) {
    layers += stage["layers"].get<int64_t>();
    EXPECT_EQ(ArenaSum(stage["memory"]), stage["memory"]["arena"]);
    EXPECT_EQ(stage["memory"]["arena"].get<int64_t>() + stage["memory"]["outside"].get<int64_t>(),
              stage["memory"]["total"]);
    peak = std::max(peak, stage["memory"]["total"].get<int64_t>());
  }
  EXPECT_EQ(layers, 32);
  EXPECT_EQ(d["peak_memory_bytes"], peak);
  // Throughput, arithmetic and step time state the same thing (H100: 989.4 TFLOP/s dense bf16).
  const double step = d["step_time_s"], mfu = d["mfu"], tflops = d["model_tflops_per_gpu"];
  EXPECT_NEAR(d["tokens_per_s_per_gpu"].get<double>() * step * 8, 64.0 * 4096, 1.0);
  EXPECT_NEAR(tflops / mfu, 989.4, 1.0);
  EXPECT_GT(mfu, 0.05);
  EXPECT_LT(mfu, 0.8);
}

TEST_F(EstimateTest, CapturesNodesAndGpusMakeTheClusterBigger) {
  const std::string base =
      "estimate --model llama-3-8b --global-batch 128 --seq 2048 --tp 8 --json --gpu H100-SXM "
      "--cluster " +
      kH100Capture;
  const json nodes = Meshwright(base + " --nodes 2").Json();
  const json gpus = Meshwright(base + " --gpus 16").Json();
  EXPECT_EQ(nodes["split"]["dp"], 2);
  EXPECT_EQ(nodes, gpus);
  const CliResult both = Meshwright(base + " --nodes 1 --gpus 16");
  EXPECT_EQ(both.exit, 2);
  EXPECT_THAT(both.err, HasSubstr("8 GPUs"));
}

TEST_F(EstimateTest, WhatDoesNotFitIsSaidWithTheLargestPart) {
  const CliResult result = Meshwright(
      "estimate --model llama-3-70b --cluster dgx-h100 --global-batch 8 --seq 2048 --json");
  EXPECT_EQ(result.exit, 1);
  const json d = result.Json();
  EXPECT_EQ(d["parameters"], 70553706496);
  EXPECT_EQ(d["fits"], false);
  EXPECT_GT(d["peak_memory_bytes"].get<int64_t>(), int64_t{1000} << 30)
      << "18 bytes a parameter on one GPU";
  ASSERT_EQ(d["errors"].size(), 1U);
  EXPECT_THAT(d["errors"][0].get<std::string>(), AllOf(HasSubstr("stage 0"), HasSubstr("--tp")));
}

TEST_F(EstimateTest, EveryProblemIsAnErrorOfItsOwn) {
  const CliResult result = Meshwright(
      "estimate --model llama-3-8b --cluster dgx-h100 --global-batch 7 --seq 2048 --tp 3 --pp 2 "
      "--vpp 2 --gpus 6 --json");
  EXPECT_EQ(result.exit, 1);
  const json errors = result.Json()["errors"];
  ASSERT_GE(errors.size(), 2U) << errors;
  EXPECT_THAT(errors[0].get<std::string>(), Not(HasSubstr("problems:")));
  EXPECT_NE(errors[0], errors[1]);
}

TEST_F(EstimateTest, IllegalSplitsExitWith1AndStillCountParameters) {
  const std::string base =
      "estimate --model llama-3-8b --cluster dgx-h100 --global-batch 8 --json ";
  for (const char* bad : {"--tp 3 --gpus 3", "--tp 16 --gpus 24", "--pp 33 --gpus 33", "--dp 16",
                          "--layers 16,15 --pp 2", "--vpp 2", "--micro-batch 3", "--seq 1000000",
                          "--ep 2 --gpus 2", "--gpus 16 --tp 2 --dp 2"}) {
    const CliResult result = Meshwright(base + bad);
    EXPECT_EQ(result.exit, 1) << bad << "\n" << result.err;
    const json d = result.Json();
    EXPECT_EQ(d["parameters"], 8030261248) << bad;
    EXPECT_EQ(d["fits"], false) << bad;
    EXPECT_FALSE(d["errors"].empty()) << bad;
    for (const char* field : kEstimateFields) EXPECT_TRUE(d.contains(field)) << field;
  }
}

TEST_F(EstimateTest, ModelsThatCannotBeLoweredCountTheirParameters) {
  const std::pair<const char*, int64_t> models[] = {
      {"mixtral-8x7b", 46702792704}, {"deepseek-v3", 671026419200}, {"qwen3-30b-a3b", 0}};
  for (const auto& [model, parameters] : models) {
    const CliResult result = Meshwright(
        std::string("estimate --cluster dgx-h100 --global-batch 8 --seq 2048 --json --model ") +
        model);
    EXPECT_EQ(result.exit, 1) << model;
    const json d = result.Json();
    if (parameters > 0) {
      EXPECT_EQ(d["parameters"], parameters) << model;
    }
    EXPECT_GT(d["parameters"].get<int64_t>(), int64_t{1000000000}) << model;
    ASSERT_FALSE(d["errors"].empty()) << model;
  }
}

TEST_F(EstimateTest, HuggingFaceConfigsAreModels) {
  const CliResult result = Meshwright("estimate --model " + kSource +
                                      "/tests/data/models/gpt2.json --cluster "
                                      "workstation-1gpu --global-batch 8 --json");
  const json d = result.Json();
  EXPECT_EQ(d["parameters"], 124439808) << result.err;
}

TEST_F(PlanTest, PlanSimulateVerifyAgree) {
  const CliResult plan = Meshwright(
      "plan --model llama-3-8b --cluster dgx-h100 --gpus 16 --global-batch 64 --seq 4096 "
      "--json -o " +
      Path("p.json"));
  ASSERT_EQ(plan.exit, 0) << plan.err;
  const json d = plan.Json();
  EXPECT_EQ(d["fits"], true);
  EXPECT_FALSE(d["reasons"].empty());
  EXPECT_FALSE(d["runners_up"].empty());
  EXPECT_EQ(d["split"]["gpus"], 16);

  const CliResult simulate =
      Meshwright("simulate " + Path("p.json") + " --json --trace " + Path("t.json"));
  ASSERT_EQ(simulate.exit, 0) << simulate.err;
  const json s = simulate.Json();
  EXPECT_EQ(s["step_time_s"], d["step_time_s"]);
  EXPECT_EQ(s["stages"].size(), d["stages"].size());
  EXPECT_TRUE(s.contains("bubble_fraction"));
  const json trace = json::parse(ReadFile(Path("t.json")), nullptr, false);
  ASSERT_FALSE(trace.is_discarded());
  EXPECT_FALSE(trace.empty());

  const CliResult verify = Meshwright("verify " + Path("p.json") + " --json");
  ASSERT_EQ(verify.exit, 0) << verify.err;
  const json v = verify.Json();
  EXPECT_EQ(v["proven"], true);
  EXPECT_EQ(v["counts"]["ranks"], 16);
  EXPECT_EQ(v["counts"]["checks"], v["checks"].size());
  EXPECT_GT(v["counts"]["ops"].get<int64_t>(), 0);
  EXPECT_LE(v["counts"]["classes"].get<int64_t>(), 16);
}

TEST_F(PlanTest, TablesForPeople) {
  const CliResult plan = Meshwright(
      "plan --model llama-3-8b --cluster dgx-h100 --global-batch 64 --seq 4096 --explain --top 3 "
      "-o " +
      Path("p.json"));
  ASSERT_EQ(plan.exit, 0) << plan.err;
  EXPECT_THAT(plan.out,
              AllOf(HasSubstr("8,030,261,248 parameters"), HasSubstr("stages, memory of one rank"),
                    HasSubstr("GiB"), HasSubstr("reasons"), HasSubstr("runners-up"),
                    HasSubstr("the search")));
  const CliResult verify = Meshwright("verify " + Path("p.json"));
  EXPECT_THAT(verify.out, AllOf(HasSubstr("proven"), HasSubstr("deadlock"), HasSubstr("races")));
  const CliResult simulate = Meshwright("simulate " + Path("p.json"));
  EXPECT_THAT(simulate.out, AllOf(HasSubstr("step time"), HasSubstr("pipeline bubble")));
}

TEST_F(PlanTest, HeldAxesAreHeld) {
  const CliResult plan = Meshwright(
      "plan --model llama-3-8b --cluster dgx-h100 --global-batch 64 --seq 2048 --tp 4 --pp 2 --dp "
      "1 "
      "--micro-batch 2 --recompute full --zero none --vpp 2 --json");
  ASSERT_EQ(plan.exit, 0) << plan.err;
  const json split = plan.Json()["split"];
  EXPECT_EQ(split["tp"], 4);
  EXPECT_EQ(split["pp"], 2);
  EXPECT_EQ(split["dp"], 1);
  EXPECT_EQ(split["vpp"], 2);
  EXPECT_EQ(split["micro_batch"], 2);
  EXPECT_EQ(split["zero"], 0);
  const json stages = plan.Json()["stages"];
  for (const json& stage : stages) EXPECT_EQ(stage["recompute"], "full");
}

TEST_F(PlanTest, NothingFitsIsExit1WithTheSmallestChange) {
  const CliResult plan = Meshwright(
      "plan --model llama-3-70b --cluster workstation-1gpu --global-batch 8 --seq 2048 --json");
  EXPECT_EQ(plan.exit, 1);
  const json d = plan.Json();
  EXPECT_EQ(d["fits"], false);
  EXPECT_FALSE(d["errors"].empty());
}

TEST_F(PlanTest, FilesAreWrittenWholeOrNotAtAll) {
  const CliResult folder = Meshwright(
      "plan --model gpt2 --cluster workstation-1gpu --global-batch 8 -o " + Path("no/such/p.json"));
  EXPECT_EQ(folder.exit, 2);
  EXPECT_THAT(folder.err, HasSubstr("cannot write"));
  const CliResult into_folder =
      Meshwright("plan --model gpt2 --cluster workstation-1gpu --global-batch 8 -o " + Path(""));
  EXPECT_EQ(into_folder.exit, 2);
  const std::string plan = TinyPlan("--gpus 1");
  const std::string before = ReadFile(plan);
  ASSERT_FALSE(before.empty());
  TinyPlan("--gpus 2");
  EXPECT_NE(ReadFile(plan), before) << "-o overwrites";
  for (const auto& entry : std::filesystem::directory_iterator(Path(""))) {
    EXPECT_NE(entry.path().extension(), ".tmp");
  }
}

TEST_F(PlanTest, ChangedPlansAreRefused) {
  const std::string path = TinyPlan("--tp 2 --pp 2 --dp 2 --gpus 8");
  json plan = json::parse(ReadFile(path));
  // A layer more on the first stage: no layer may be computed twice.
  json& chunk = plan.at("modules").at(0).at("chunks").at(0);  // [first layer, layers]
  chunk[1] = chunk[1].get<int64_t>() + 1;
  WriteFile(path, plan.dump());
  for (const char* command : {"verify ", "simulate ", "run --data mock --steps 1 "}) {
    const CliResult result = Meshwright(command + path);
    EXPECT_TRUE(result.exit == 1 || result.exit == 2) << command << result.exit << "\n"
                                                      << result.err;
    EXPECT_THAT(result.err, HasSubstr("error:"));
  }
}

}  // namespace
}  // namespace meshwright::tools
