// Public failure reports that a user meets on the command line: each gets its right answer.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/tools/cli.h"

namespace meshwright::tools {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class BugReportTest : public CliTest {
 protected:
  /// A GPT of `layers` layers and its path.
  std::string Gpt(int layers) const {
    const std::string path = Path("gpt-" + std::to_string(layers) + ".yaml");
    WriteFile(
        path,
        "meshwright_model: 1\nname: gpt\nfamily: gpt2\nmodules:\n  - name: language\n    kind: "
        "language\n"
        "    hidden: 64\n    norm: layer_norm\n    norm_eps: 1e-05\n    positions: learned\n    "
        "max_positions: 128\n"
        "    vocab: 256\n    tied_embeddings: true\n    init_std: 0.02\n    layer_kinds:\n"
        "      - attention: {heads: 4, kv_heads: 4, head_dim: 16, qkv_bias: true, output_bias: "
        "true}\n"
        "        mlp: {ffn: 256, gated: false, activation: gelu_tanh, bias: true}\n    layers: " +
            std::to_string(layers) + "\n");
    return path;
  }
  CliResult Estimate(const std::string& arguments) const {
    return Meshwright("estimate --json " + arguments);
  }
};

std::vector<int64_t> LayersOf(const json& document) {
  std::vector<int64_t> layers;
  for (const json& stage : document["stages"]) layers.push_back(stage["layers"]);
  return layers;
}

TEST_F(BugReportTest, B01LayersThatDoNotDivideAreNotDropped) {
  const CliResult result =
      Estimate("--model " + Gpt(30) + " --cluster dgx-h100 --gpus 4 --pp 4 --global-batch 8");
  ASSERT_EQ(result.exit, 0) << result.err;
  EXPECT_EQ(LayersOf(result.Json()), (std::vector<int64_t>{7, 8, 8, 7}));
}

TEST_F(BugReportTest, B03UnevenSplitsCanBeNamed) {
  const std::string base =
      "--model " + Gpt(7) + " --cluster dgx-h100 --gpus 2 --pp 2 --global-batch 8 ";
  for (const char* layers : {"3,4", "4,3"}) {
    const CliResult result = Estimate(base + "--layers " + layers);
    ASSERT_EQ(result.exit, 0) << result.err;
    EXPECT_EQ(LayersOf(result.Json()),
              (layers[0] == '3' ? std::vector<int64_t>{3, 4} : std::vector<int64_t>{4, 3}));
  }
}

TEST_F(BugReportTest, B05OneStageHoldsAllLayers) {
  const CliResult result = Estimate(
      "--model " + Gpt(20) + " --cluster dgx-h100 --gpus 1 --pp 1 --layers 1 --global-batch 8");
  EXPECT_EQ(result.exit, 1);
  EXPECT_THAT(result.Json()["errors"][0].get<std::string>(), HasSubstr("20"));
}

TEST_F(BugReportTest, B12EightBillionParametersWithoutRecomputationNeedMoreThan80GB) {
  const std::string base =
      "--model llama-3-8b --cluster dgx-h100 --dp 8 --tp 1 --global-batch 8 --zero 1 --seq 8192 ";
  const CliResult plain = Estimate(base);
  EXPECT_EQ(plain.exit, 1);
  const json memory = plain.Json()["stages"][0]["memory"];
  EXPECT_EQ(memory["parameters"].get<int64_t>() + memory["gradients"].get<int64_t>(),
            6 * 8030261248)
      << "2 + 4 bytes";
  EXPECT_NEAR(memory["optimizer"].get<double>(), 12.0 * 8030261248 / 8, 1e6)
      << "12 bytes over 8 ranks";
}

TEST_F(BugReportTest, B20TensorSizeMustDivideTheHeads) {
  const CliResult result = Estimate(
      "--model llama-3-70b --cluster dgx-h100 --gpus 3 --tp 3 --global-batch 8 --seq 2048");
  EXPECT_EQ(result.exit, 1);
  EXPECT_THAT(result.Json()["errors"][0].get<std::string>(),
              AllOf(HasSubstr("64 attention heads"), HasSubstr("tp may be")));
}

TEST_F(BugReportTest, B25VocabularyIsPaddedAndHeadsAreNot) {
  const CliResult padded = Estimate(
      "--model gpt2 --cluster dgx-h100 --gpus 4 --tp 4 --vocab-quantum 64 --global-batch 8");
  ASSERT_EQ(padded.exit, 0) << padded.err;
  EXPECT_EQ(padded.Json()["split"]["padded_vocab"], 50432) << "50257 up to a multiple of 64 x 4";
  const CliResult heads = Estimate(
      "--model llama-3-70b --cluster dgx-h200 --nodes 3 --tp 24 --vocab-quantum 64 --global-batch "
      "8");
  EXPECT_EQ(heads.exit, 1);
  EXPECT_THAT(heads.Json()["errors"][0].get<std::string>(), HasSubstr("64 attention heads"));
}

TEST_F(BugReportTest, ChunksOfLogitsGrowWithTheMemoryOfTheDevice) {
  const auto bytes = [&](const std::string& where) {
    const CliResult result = Estimate("--model gpt2 --gpus 1 --global-batch 8 " + where);
    EXPECT_EQ(result.exit, 0) << result.err;
    return result.Json()["split"]["logits_chunk_bytes"].get<int64_t>();
  };
  EXPECT_EQ(bytes("--cluster dgx-h200"), int64_t{1} << 30) << "141 GB / 128 down to a power of two";
  EXPECT_EQ(bytes("--cluster dgx-h100"), int64_t{512} << 20) << "80 GB";
  EXPECT_EQ(bytes("--cluster cpu"), int64_t{256} << 20);
  EXPECT_EQ(bytes("--cluster dgx-h200 --logits-chunk 64"), int64_t{64} << 20);
}

TEST_F(BugReportTest, B62ZeroWithoutReplicasCutsNothing) {
  const CliResult result =
      Estimate("--model gpt2 --cluster dgx-h100 --tp 4 --gpus 4 --zero 1 --global-batch 8");
  ASSERT_EQ(result.exit, 0) << result.err;
  EXPECT_THAT(result.Json()["warnings"].dump(), HasSubstr("ZeRO-1 cuts nothing"));
}

TEST_F(BugReportTest, B35OneHostWithOneGpuHasNoTensorGroupOfTwo) {
  const std::string base = "--model gpt2 --cluster workstation-1gpu --tp 2 --global-batch 8 ";
  const CliResult one = Estimate(base + "--nodes 1");
  EXPECT_EQ(one.exit, 1);
  EXPECT_THAT(one.Json()["errors"][0].get<std::string>(),
              AllOf(HasSubstr("1 hosts"), HasSubstr("--nodes")));
}

TEST_F(BugReportTest, B35TensorGroupsThatCrossHostsAreWarnedOf) {
  const CliResult result = Estimate(
      "--model llama-3-8b --cluster dgx-h100 --nodes 2 --tp 16 --global-batch 8 --seq 2048 "
      "--recompute full");
  ASSERT_EQ(result.exit, 0) << result.err;
  const json warnings = result.Json()["warnings"];
  ASSERT_FALSE(warnings.empty());
  EXPECT_THAT(warnings[0].get<std::string>(), HasSubstr("cross hosts"));
}

TEST_F(BugReportTest, B37FewerMicroBatchesThanStagesRunAndAreWarnedOf) {
  const CliResult result =
      Estimate("--model " + Gpt(8) + " --cluster dgx-h100 --gpus 8 --pp 8 --dp 1 --global-batch 2");
  ASSERT_EQ(result.exit, 0) << result.err;
  const json d = result.Json();
  EXPECT_GT(d["bubble_fraction"].get<double>(), 0.5);
  EXPECT_THAT(d["warnings"].dump(), HasSubstr("2 micro-batches for 8 pipeline stages"));
}

TEST_F(BugReportTest, B65EightRanksWithThreeStages) {
  const CliResult result = Estimate("--model gpt2 --cluster dgx-h100 --pp 3 --global-batch 8");
  EXPECT_EQ(result.exit, 1);
  EXPECT_THAT(result.Json()["errors"][0].get<std::string>(),
              AllOf(HasSubstr("remainder 2"), HasSubstr("multiple of 3")));
}

}  // namespace
}  // namespace meshwright::tools
