// estimate --stack, plan --stack, validate: happy paths, documents and refusals.
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/tools/cli.h"

namespace meshwright::tools {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using StackEstimateTest = CliTest;
using StackPlanTest = CliTest;
class ValidateTest : public CliTest {
 protected:
  /// The path of a file of that text.
  std::string Write(const std::string& name, const std::string& text) const {
    WriteFile(Path(name), text);
    return Path(name);
  }
};

TEST_F(StackEstimateTest, DocumentHasTheFieldsOfEstimateAndAnInterval) {
  const CliResult result = Meshwright(
      "estimate --model mixtral-8x7b --cluster dgx-h100 --gpus 64 --global-batch 256 --seq 4096 "
      "--stack megatron --ep 8 --pp 4 --precision fp8 --recompute full --json");
  ASSERT_EQ(result.exit, 0) << result.err;
  const json d = result.Json();
  for (const char* field :
       {"parameters", "fits", "step_time_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu",
        "peak_memory_bytes", "stages", "errors", "interval_s", "split"}) {
    EXPECT_TRUE(d.contains(field)) << field;
  }
  EXPECT_EQ(d["parameters"], 46702792704);
  EXPECT_EQ(d["split"]["dp"], 16);
  EXPECT_EQ(d["stages"].size(), 4U);
  EXPECT_LT(d["interval_s"][0].get<double>(), d["step_time_s"].get<double>());
  EXPECT_GT(d["interval_s"][1].get<double>(), d["step_time_s"].get<double>());
  for (const json& stage : d["stages"]) {
    const json& m = stage["memory"];
    int64_t sum = 0;
    for (const char* part : {"parameters", "gradients", "optimizer", "activations", "transient",
                             "reserve", "outside"}) {
      sum += m[part].get<int64_t>();
    }
    EXPECT_NEAR(static_cast<double>(sum), m["total"].get<double>(), 8);
  }
}

TEST_F(StackEstimateTest, EveryBrokenRuleIsNamedAtOnce) {
  const CliResult result = Meshwright(
      "estimate --model mixtral-8x7b --cluster dgx-h100 --gpus 9 --global-batch 9 --seq 4096 "
      "--stack megatron --tp 3 --ep 3 --json");
  EXPECT_EQ(result.exit, 1);
  EXPECT_EQ(result.Json()["fits"], false);
  EXPECT_THAT(result.err, HasSubstr("heads"));
  EXPECT_THAT(result.err, HasSubstr("experts"));
}

TEST_F(StackEstimateTest, WhatOnlyOurStackDoesIsRefusedForOthers) {
  for (const char* option : {"--tensor-chunks 2", "--logits-chunk 64"}) {
    const CliResult result = Meshwright(
        std::string("estimate --model llama-3-8b --cluster dgx-h100 --global-batch 64 --tp 2 "
                    "--stack megatron ") +
        option);
    EXPECT_EQ(result.exit, 1) << option;
    EXPECT_THAT(result.err, HasSubstr("allowed: stack meshwright"));
  }
}

TEST_F(StackEstimateTest, WhatOnlyForeignStacksDoIsRefusedForOurs) {
  for (const char* option : {"--zero 3", "--recompute offload", "--schedule zb-h1", "--expert-tp 2",
                             "--precision fp8"}) {
    const CliResult result = Meshwright(
        std::string("estimate --model llama-3-8b --cluster dgx-h100 --global-batch 64 ") + option);
    EXPECT_NE(result.exit, 0) << option;
    EXPECT_THAT(result.err, HasSubstr("--stack megatron")) << option;
  }
  const CliResult unknown =
      Meshwright("estimate --model llama-3-8b --cluster dgx-h100 --global-batch 64 --stack nemo");
  EXPECT_EQ(unknown.exit, 2);
  EXPECT_THAT(unknown.err, HasSubstr("megatron"));
}

TEST_F(StackPlanTest, BestSplitComesWithACertificate) {
  const CliResult result = Meshwright(
      "plan --model llama-3-70b --cluster dgx-h100 --gpus 64 --global-batch 128 --seq 8192 "
      "--stack megatron --explain --json");
  ASSERT_EQ(result.exit, 0) << result.err;
  const json d = result.Json();
  for (const char* field :
       {"configurations", "evaluated", "bounded", "feasible", "seconds", "lower_bound_s", "gap"}) {
    EXPECT_TRUE(d["search"].contains(field)) << field;
  }
  EXPECT_EQ(d["search"]["configurations"].get<int64_t>(),
            d["search"]["evaluated"].get<int64_t>() + d["search"]["bounded"].get<int64_t>());
  EXPECT_LE(d["search"]["lower_bound_s"].get<double>(), d["step_time_s"].get<double>() + 1e-9);
  EXPECT_THAT(d["decisions"], Not(IsEmpty()));
  for (const json& decision : d["decisions"]) {
    if (decision["loss"].is_null()) continue;
    EXPECT_GE(decision["loss"].get<double>(), -1e-9);
  }
  // Held axes stay, and cannot make the plan faster.
  const CliResult held = Meshwright(
      "plan --model llama-3-70b --cluster dgx-h100 --gpus 64 --global-batch 128 --seq 8192 "
      "--stack megatron --pp 8 --json");
  ASSERT_EQ(held.exit, 0) << held.err;
  EXPECT_EQ(held.Json()["split"]["pp"], 8);
  EXPECT_GE(held.Json()["step_time_s"].get<double>(), d["step_time_s"].get<double>() - 1e-9);
}

TEST_F(StackPlanTest, NothingFitsNamesTheStageAndWhatWould) {
  const CliResult result = Meshwright(
      "plan --model llama-3-70b --cluster dgx-a100-40 --gpus 8 --global-batch 16 --seq 4096 "
      "--stack megatron --json");
  EXPECT_EQ(result.exit, 1);
  EXPECT_THAT(result.err, HasSubstr("nothing fits"));
  EXPECT_THAT(result.err, HasSubstr("optimizer"));
  EXPECT_EQ(result.Json()["fits"], false);
  EXPECT_THAT(result.Json()["would_fit"], Not(IsEmpty()));
}

TEST_F(StackPlanTest, FrontFallsInMemoryAndCostsGoWithTime) {
  const CliResult result = Meshwright(
      "plan --model llama-3-8b --cluster dgx-h100 --gpus 16 --any-gpus --global-batch 64 --seq "
      "4096 "
      "--stack megatron --front --price 2 --train-tokens 1e12 --json");
  ASSERT_EQ(result.exit, 0) << result.err;
  const json front = result.Json()["front"];
  ASSERT_GE(front.size(), 2U);
  for (size_t i = 1; i < front.size(); ++i) {
    if (front[i]["gpus"] != front[i - 1]["gpus"]) continue;
    EXPECT_LT(front[i]["memory_bytes"].get<double>(), front[i - 1]["memory_bytes"].get<double>());
    EXPECT_GE(front[i]["objective_s"].get<double>(), front[i - 1]["objective_s"].get<double>());
  }
  const json& first = front[0];
  const double steps = 1e12 / (64.0 * 4096);
  EXPECT_NEAR(first["cost"].get<double>(),
              first["gpus"].get<double>() * 2 * steps * first["objective_s"].get<double>() / 3600,
              1e-6 * first["cost"].get<double>());
}

TEST_F(StackPlanTest, UnlikeGpusGetLayersBySpeedAndMemory) {
  const CliResult result = Meshwright("plan --model llama-3-70b --cluster " + kSource +
                                      "/tests/data/clusters/a100-and-h100.yaml --global-batch 128 "
                                      "--seq 8192 --stack megatron --json");
  ASSERT_EQ(result.exit, 0) << result.err;
  int64_t layers = 0, slow = 0, fast = 0, slow_stages = 0, fast_stages = 0;
  const json document = result.Json();
  for (const json& stage : document["stages"]) {
    const int64_t n = stage["layers"];
    layers += n;
    const bool h100 = stage["device"] == "dgx-h100";
    (h100 ? fast : slow) += n;
    ++(h100 ? fast_stages : slow_stages);
    EXPECT_LE(stage["memory"]["total"].get<int64_t>(), stage["device_bytes"].get<int64_t>());
  }
  EXPECT_EQ(layers, 80);
  ASSERT_GT(slow_stages, 0);
  ASSERT_GT(fast_stages, 0);
  EXPECT_GT(fast * slow_stages, slow * fast_stages);
  // The choice is by simulation, not by the search's formula.
  EXPECT_EQ(document["step_time_s"], document["simulated_step_s"]);
  ASSERT_FALSE(document["runners_up"].empty());
  for (const json& other : document["runners_up"]) {
    EXPECT_GE(other["simulated_step_s"].get<double>(), document["simulated_step_s"].get<double>());
  }
}

TEST_F(StackPlanTest, WhichModelFits) {
  const CliResult result = Meshwright(
      "plan --model any --cluster dgx-a100-80 --gpus 8 --global-batch 64 --seq 2048 "
      "--stack megatron --json");
  ASSERT_EQ(result.exit, 0) << result.err;
  bool small = false, large = true;
  const json document = result.Json();
  for (const json& model : document["models"]) {
    if (model["model"] == "llama-2-7b") small = model["fits"];
    if (model["model"] == "llama-3.1-405b") large = model["fits"];
  }
  EXPECT_TRUE(small);
  EXPECT_FALSE(large);
}

constexpr const char* kRows =
    "id,model,layers,hidden,heads,seq,gpu,gpus,tp,pp,micro_batch,global_batch,measured_step_s\n"
    "X-1,GPT,24,2048,16,2048,A100-80GB,8,1,1,4,64,2.0\n"
    "X-2,GPT,24,2048,16,2048,A100-80GB,8,2,1,4,64,2.2\n"
    "X-3,GPT,24,2048,16,2048,A100-80GB,8,1,2,4,64,2.1\n"
    "X-4,GPT,,2048,16,2048,A100-80GB,8,1,1,4,64,2.0\n";

TEST_F(ValidateTest, DocumentHasRowsSummariesAndReasons) {
  const std::string path = Write("rows.csv", kRows);
  const CliResult result = Meshwright("validate --rows " + path + " --stack megatron --json");
  ASSERT_EQ(result.exit, 0) << result.err;
  const json d = result.Json();
  ASSERT_EQ(d["rows"].size(), 4U);
  for (const json& row : d["rows"]) {
    for (const char* field :
         {"id", "predicted_step_s", "predicted_peak_gib", "interval", "assumptions", "reason"}) {
      EXPECT_TRUE(row.contains(field)) << field;
    }
  }
  EXPECT_TRUE(d["rows"][3]["predicted_step_s"].is_null());
  EXPECT_THAT(d["rows"][3]["reason"].get<std::string>(), HasSubstr("layers"));
  ASSERT_EQ(d["summaries"].size(), 1U);
  EXPECT_EQ(d["summaries"][0]["name"], "X");
  EXPECT_EQ(d["summaries"][0]["predicted"], 3);
  ASSERT_EQ(d["choice"].size(), 1U);
  EXPECT_EQ(d["choice"][0]["groups"], 1);
}

TEST_F(ValidateTest, OwnRunsArePredictedWithinTheirInterval) {
  const CliResult result = Meshwright(
      "validate --rows " MESHWRIGHT_SOURCE_DIR
      "/cost_models/validation/own_h200.csv --stack meshwright --cluster h200-x2 --json");
  ASSERT_EQ(result.exit, 0) << result.err;
  const json d = result.Json();
  double squares = 0;
  double sum = 0;
  double half_width = 0;
  for (const json& row : d["rows"]) {
    ASSERT_FALSE(row["predicted_step_s"].is_null()) << row;
    const double step = row["predicted_step_s"].get<double>();
    const double error = step / row["measured_step_s"].get<double>() - 1;
    EXPECT_LE(std::abs(error), 0.08) << row["id"];
    squares += error * error;
    sum += std::abs(error);
    half_width = row["interval"][1].get<double>() / step - 1;
    if (row["measured_peak_gib"].is_null()) continue;
    EXPECT_NEAR(row["predicted_peak_gib"].get<double>() / row["measured_peak_gib"].get<double>(), 1,
                0.025)
        << row["id"];
  }
  const double count = static_cast<double>(d["rows"].size());
  EXPECT_GE(count, 31);
  EXPECT_LE(sum / count, 0.04);
  EXPECT_NEAR(2 * std::sqrt(squares / count), half_width, 0.002);
}

TEST_F(ValidateTest, BadTablesAreBadInput) {
  EXPECT_EQ(Meshwright("validate --cluster h200-x2 --rows " + Write("rows.csv", kRows)).exit, 2);
  const auto error_of = [&](const std::string& column, const std::string& value) {
    const std::string rows = "id,model,gpu,gpus,seq,micro_batch,global_batch," + column +
                             "\nX-1,gpt2,H200,1,1024,1,1," + value + "\n";
    const CliResult result =
        Meshwright("validate --stack meshwright --rows " + Write(column + ".csv", rows));
    EXPECT_EQ(result.exit, 2) << column << " " << value;
    return result.err;
  };
  EXPECT_THAT(error_of("stage_layers", "six"), HasSubstr("stage_layers"));
  EXPECT_THAT(error_of("tensor_chunks", "0.5"), HasSubstr("tensor_chunks"));
  EXPECT_THAT(error_of("tensor_chunks", "2 4"),
              HasSubstr("tensor_chunks: found 2 4; allowed: one whole number"));
  EXPECT_THAT(error_of("logits_chunk_mib", "99999999999999"),
              HasSubstr("logits_chunk_mib: found 99999999999999; allowed: one whole number from 1 "
                        "to 1048576, or nothing"));

  EXPECT_EQ(Meshwright("validate --rows /nowhere.csv").exit, 2);
  const CliResult ragged = Meshwright("validate --rows " + Write("ragged.csv", "id,model\nX-1\n"));
  EXPECT_EQ(ragged.exit, 2);
  EXPECT_THAT(ragged.err, HasSubstr("line 2"));
  EXPECT_EQ(Meshwright("validate --rows /tmp").exit, 2);
}

TEST_F(ValidateTest, FitWritesAStackThatReadsBack) {
  const std::string rows = Write("rows.csv", kRows);
  const std::string stack = Path("mine.yaml");
  const CliResult fit =
      Meshwright("validate --rows " + rows + " --stack megatron --fit gemm --all-rows -o " + stack);
  ASSERT_EQ(fit.exit, 0) << fit.err;
  EXPECT_EQ(Meshwright("validate --rows " + rows + " --stack " + stack).exit, 0);
  EXPECT_EQ(Meshwright("validate --rows " + rows + " --stack megatron --fit speed").exit, 2);
}

}  // namespace
}  // namespace meshwright::tools
