// Reading models: exact parameter counts, what the families mean, shipped models, where from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include "planner/ir/load_model.h"
#include "planner/ir/model_yaml.h"

namespace meshwright::planner {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

const fs::path kModels = MESHWRIGHT_SOURCE_DIR "/tests/data/models";

ModelSpec Load(const std::string& path_or_name) {
  const Result<ModelSpec> model = LoadModel(path_or_name);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? *model : ModelSpec{};
}

ModelSpec FromJson(const std::string& json) {
  const Result<ModelSpec> model = ParseHfConfig(json, "test.json");
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? *model : ModelSpec{};
}

const ModuleSpec& OnlyModule(const ModelSpec& model) {
  return model.modules.at(0);
}

/// file -> exact number of parameters.
std::map<std::string, int64_t> Index() {
  std::map<std::string, int64_t> index;
  std::ifstream file(kModels / "index.csv");
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream cells(line);
    std::string name, count;
    std::getline(cells, name, ',');
    std::getline(cells, count, ',');
    index[name] = std::stoll(count);
  }
  return index;
}

TEST(ModelFiles, EveryCommittedConfigHasItsExactCount) {
  const std::map<std::string, int64_t> index = Index();
  size_t configs = 0;
  for (const auto& entry : fs::directory_iterator(kModels)) {
    if (entry.path().extension() != ".json") continue;
    ++configs;
    const std::string file = entry.path().filename().string();
    SCOPED_TRACE(file);
    ASSERT_TRUE(index.contains(file));
    const ModelSpec model = Load(entry.path().string());
    EXPECT_EQ(TotalParameters(model), index.at(file));
    EXPECT_EQ(model.name, entry.path().stem().string());
    EXPECT_TRUE(CheckModel(model, file).ok());
  }
  EXPECT_EQ(configs, index.size());
  EXPECT_EQ(configs, 17U);
}

TEST(ModelFiles, SharedConfigsReadAsTheCommittedOnes) {
  const fs::path shared = MESHWRIGHT_SHARED_DIR "/data/models";
  if (!fs::exists(shared)) GTEST_SKIP() << "no " << shared;
  for (const auto& entry : fs::directory_iterator(shared)) {
    if (entry.path().extension() != ".json") continue;
    SCOPED_TRACE(entry.path());
    EXPECT_EQ(Load(entry.path().string()), Load((kModels / entry.path().filename()).string()));
  }
}

struct Known {
  const char* name;
  int64_t parameters;
  const char* json;
};

// Sizes that the models' pages and checkpoints state.
class KnownModel : public ::testing::TestWithParam<Known> {};

TEST_P(KnownModel, HasItsExactCount) {
  EXPECT_EQ(TotalParameters(FromJson(GetParam().json)), GetParam().parameters);
}

INSTANTIATE_TEST_SUITE_P(
    Families, KnownModel,
    ::testing::Values(
        Known{"gpt2_defaults", 124439808, R"({"model_type": "gpt2"})"},
        Known{"llama_7b_is_all_defaults", 6738415616, R"({"model_type": "llama"})"},
        Known{"mistral_7b_is_all_defaults", 7241732096, R"({"model_type": "mistral"})"},
        Known{"mixtral_8x7b_is_all_defaults", 46702792704, R"({"model_type": "mixtral"})"},
        Known{"gemma_7b_is_all_defaults", 8537680896, R"({"model_type": "gemma"})"},
        Known{"gemma_2b", 2506172416,
              R"({"model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384,
                  "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1})"},
        Known{"gemma_2_2b_is_all_defaults", 2614341888, R"({"model_type": "gemma2"})"},
        Known{"gemma_2_27b", 27227128320,
              R"({"model_type": "gemma2", "hidden_size": 4608, "intermediate_size": 36864,
                  "num_hidden_layers": 46, "num_attention_heads": 32, "num_key_value_heads": 16,
                  "head_dim": 128, "query_pre_attn_scalar": 144})"},
        Known{"phi_3_mini_is_all_defaults", 3821079552, R"({"model_type": "phi3"})"},
        Known{"qwen1_5_moe_a2_7b_is_all_defaults", 14315784192, R"({"model_type": "qwen2_moe"})"},
        Known{"deepseek_v3_is_all_defaults", 671026419200, R"({"model_type": "deepseek_v3"})"},
        Known{"deepseek_v2_lite", 15706484224,
              R"({"model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944,
                  "moe_intermediate_size": 1408, "num_hidden_layers": 27,
                  "num_attention_heads": 16, "num_key_value_heads": 16, "n_routed_experts": 64,
                  "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
                  "q_lora_rank": null, "vocab_size": 102400})"},
        Known{"deepseek_v2", 235741434880,
              R"({"model_type": "deepseek_v2", "hidden_size": 5120, "intermediate_size": 12288,
                  "moe_intermediate_size": 1536, "num_hidden_layers": 60,
                  "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 160,
                  "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
                  "n_group": 8, "topk_group": 3, "vocab_size": 102400})"},
        Known{"gpt_neox_20b", 20554567680, R"({"model_type": "gpt_neox", "vocab_size": 50432})"},
        Known{"pythia_70m", 70426624,
              R"({"model_type": "gpt_neox", "hidden_size": 512, "num_hidden_layers": 6,
                  "num_attention_heads": 8, "intermediate_size": 2048, "vocab_size": 50304})"}),
    [](const auto& test) { return test.param.name; });

TEST(HfFamily, Gpt2TiesAndDerivesTheMlpWidth) {
  const ModelSpec model = Load((kModels / "gpt2.json").string());
  const ModuleSpec& module = OnlyModule(model);
  EXPECT_EQ(module.name, "language");
  EXPECT_TRUE(module.tied_embeddings);
  EXPECT_EQ(module.norm, NormKind::kLayerNorm);
  EXPECT_EQ(module.positions, PositionKind::kLearned);
  EXPECT_EQ(module.max_positions, 1024);
  const LayerSpec& layer = module.layer(11);
  EXPECT_EQ(layer.mlp.ffn, 3072);
  EXPECT_EQ(layer.mlp.activation, Activation::kGeluTanh);
  EXPECT_TRUE(layer.mlp.bias && layer.attention.qkv_bias && layer.attention.output_bias);
  EXPECT_FALSE(layer.mlp.gated);
  EXPECT_THAT(model.defaults_filled,
              IsSupersetOf({"n_inner = 3072 (absent: 4 x n_embd)",
                            "tie_word_embeddings = true (absent: default of GPT2Config)"}));
}

TEST(HfFamily, GemmaTwoTiesCapsScalesAndAlternatesWindows) {
  const ModelSpec model = Load((kModels / "gemma-2-9b.json").string());
  const ModuleSpec& module = OnlyModule(model);
  EXPECT_TRUE(module.tied_embeddings && module.norm_one_plus);
  EXPECT_DOUBLE_EQ(module.embedding_scale, std::sqrt(3584.0));
  EXPECT_EQ(module.logit_softcap, 30);
  EXPECT_EQ(module.layer(0).attention.window, 4096);
  EXPECT_EQ(module.layer(1).attention.window, 0);
  EXPECT_EQ(module.layer(40).attention.window, 4096);
  EXPECT_EQ(module.layer(0).attention.score_softcap, 50);
  EXPECT_EQ(module.layer(0).attention.score_scale, 0);  // 256 is the size of a head already
  EXPECT_EQ(module.layer(0).attention.head_dim, 256);   // not hidden / heads
  EXPECT_TRUE(module.layer(0).post_norms);
  EXPECT_THAT(model.defaults_filled,
              Contains("tie_word_embeddings = true (absent: default of Gemma2Config)"));
}

TEST(HfFamily, GemmaTwo27bScalesScoresByItsOwnNumber) {
  const ModelSpec model =
      FromJson(R"({"model_type": "gemma2", "head_dim": 128, "query_pre_attn_scalar": 144})");
  EXPECT_DOUBLE_EQ(OnlyModule(model).layer(0).attention.score_scale, 1.0 / 12);
}

TEST(HfFamily, QwenTwoHasBiasesThatNoFieldStates) {
  const ModelSpec model = Load((kModels / "qwen2.5-0.5b.json").string());
  const AttentionSpec& attention = OnlyModule(model).layer(0).attention;
  EXPECT_TRUE(attention.qkv_bias);
  EXPECT_FALSE(attention.output_bias);
  EXPECT_EQ(attention.head_dim, 64);
  EXPECT_TRUE(OnlyModule(model).tied_embeddings);
  EXPECT_THAT(model.defaults_filled,
              Contains("q, k and v bias = true (absent: built into the family)"));
}

TEST(HfFamily, QwenThreeNormalisesHeads) {
  const ModelSpec model = Load((kModels / "qwen3-8b.json").string());
  EXPECT_TRUE(OnlyModule(model).layer(0).attention.qk_norm);
  EXPECT_EQ(CountParameters(OnlyModule(model)).norms, 36 * (2 * 4096 + 2 * 128) + 4096);
}

TEST(HfFamily, MoeWidthIsTheExpertsNotTheDenseOne) {
  const ModelSpec model = Load((kModels / "qwen3-235b-a22b.json").string());
  const MlpSpec& mlp = OnlyModule(model).layer(0).mlp;
  ASSERT_TRUE(mlp.moe.has_value());
  EXPECT_EQ(mlp.ffn, 0);
  EXPECT_EQ(mlp.moe->expert_ffn, 1536);
  EXPECT_EQ(mlp.moe->experts, 128);
  EXPECT_EQ(mlp.moe->top_k, 8);
  const ParameterCount count = CountParameters(OnlyModule(model));
  // 8 visited experts of 1536 are 12288 wide together.
  EXPECT_EQ(count.active_mlp, 94 * (3 * int64_t{4096} * 8 * 1536 + 4096 * 128));
  EXPECT_LT(count.active(), 22'200'000'000);
}

TEST(HfFamily, QwenMoeLayersMayBeSpared) {
  const ModelSpec model = FromJson(R"({"model_type": "qwen3_moe", "num_hidden_layers": 6,
    "decoder_sparse_step": 2, "mlp_only_layers": [3]})");
  std::vector<bool> moe;
  for (int64_t i = 0; i < 6; ++i) moe.push_back(OnlyModule(model).layer(i).mlp.moe.has_value());
  EXPECT_THAT(moe, ElementsAre(false, true, false, false, false, true));
}

TEST(HfFamily, DeepSeekV3CountsRouterBiasAndPredictionLayerApart) {
  const ModelSpec model = Load((kModels / "deepseek-v3.json").string());
  const ModuleSpec& module = OnlyModule(model);
  EXPECT_FALSE(module.layer(2).mlp.moe.has_value());
  ASSERT_TRUE(module.layer(3).mlp.moe.has_value());
  const MoeSpec& moe = *module.layer(3).mlp.moe;
  EXPECT_TRUE(moe.router_bias && moe.normalize_top_k);
  EXPECT_EQ(moe.score, RouterScore::kSigmoid);
  EXPECT_EQ(moe.groups, 8);
  EXPECT_EQ(moe.top_groups, 4);
  EXPECT_EQ(moe.routed_scale, 2.5);
  ASSERT_TRUE(module.layer(0).attention.latent.has_value());
  EXPECT_EQ(module.layer(0).attention.latent->kv_rank, 512);
  EXPECT_EQ(module.next_token_layers, 1);
  const ParameterCount count = CountParameters(module);
  // The paper's 11.5B of a prediction module; 37B active with embedding and head.
  EXPECT_EQ(count.next_token, 11610068224);
  EXPECT_EQ(count.active(), 37552297472);
  EXPECT_THAT(model.notes, Contains(HasSubstr("rope_scaling (type \"yarn\")")));
}

TEST(HfFamily, WindowsComeFromLayerTypesToo) {
  const ModelSpec model = FromJson(R"({"model_type": "qwen2", "num_hidden_layers": 3,
    "use_sliding_window": true, "sliding_window": 128,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"]})");
  EXPECT_EQ(OnlyModule(model).layer(0).attention.window, 0);
  EXPECT_EQ(OnlyModule(model).layer(1).attention.window, 128);
}

TEST(HfFamily, WindowsOfQwenStartWhereTheClassSays) {
  const auto first = [](const char* json) {
    const ModelSpec model = FromJson(json);
    for (int64_t i = 0; i < OnlyModule(model).layer_count(); ++i) {
      if (OnlyModule(model).layer(i).attention.window > 0) return i;
    }
    return int64_t{-1};
  };
  EXPECT_EQ(first(R"({"model_type": "qwen2", "use_sliding_window": true})"), 28);
  EXPECT_EQ(first(R"({"model_type": "qwen2_vl_text", "use_sliding_window": true,
                      "num_hidden_layers": 82})"),
            80);
  EXPECT_EQ(first(R"({"model_type": "qwen3_moe", "use_sliding_window": true})"), 0);
}

TEST(HfFamily, QwenTwoMoeMayLeaveOutItsBiases) {
  const ModelSpec model = FromJson(R"({"model_type": "qwen2_moe"})");
  EXPECT_TRUE(OnlyModule(model).layer(0).attention.qkv_bias);
  const ModelSpec plain = FromJson(R"({"model_type": "qwen2_moe", "qkv_bias": false})");
  EXPECT_EQ(TotalParameters(model) - TotalParameters(plain), 24 * 3 * 2048);
}

TEST(HfFamily, DeepSeekV2HasTheDefaultsOfItsClass) {
  const ModelSpec model = FromJson(R"({"model_type": "deepseek_v2", "num_experts_per_tok": 6})");
  const ModuleSpec& module = OnlyModule(model);
  EXPECT_EQ(module.vocab, 32000);
  EXPECT_EQ(module.layer_count(), 32);
  ASSERT_TRUE(module.layer(0).mlp.moe.has_value());  // first_k_dense_replace = 0
  EXPECT_EQ(module.layer(0).mlp.moe->experts, 64);
  EXPECT_EQ(module.layer(0).mlp.moe->expert_ffn, 1407);
  EXPECT_EQ(module.layer(0).mlp.moe->shared_experts, 2);
  // DeepseekV2Config leaves the number of experts a token open.
  const Result<ModelSpec> open = ParseHfConfig(R"({"model_type": "deepseek_v2"})", "test.json");
  ASSERT_FALSE(open.ok());
  EXPECT_THAT(open.status().message(), HasSubstr("num_experts_per_tok: found nothing"));
}

TEST(HfFamily, MistralsWindowIsFourThousandUnlessNull) {
  const auto window = [](const char* json) {
    return OnlyModule(FromJson(json)).layer(0).attention.window;
  };
  EXPECT_EQ(window(R"({"model_type": "mistral"})"), 4096);
  EXPECT_EQ(window(R"({"model_type": "mistral", "sliding_window": null})"), 0);
  EXPECT_EQ(window(R"({"model_type": "mixtral"})"), 0);
}

TEST(HfFamily, LlamaBiasesCoverAllProjections) {
  const ModelSpec plain = FromJson(R"({"model_type": "llama"})");
  const ModelSpec biased =
      FromJson(R"({"model_type": "llama", "attention_bias": true, "mlp_bias": true})");
  EXPECT_EQ(TotalParameters(biased) - TotalParameters(plain), 32 * (4 * 4096 + 2 * 11008 + 4096));
}

TEST(HfFamily, NeoXRotatesAQuarterAndAddsInParallel) {
  const ModelSpec model = FromJson(R"({"model_type": "gpt_neox"})");
  EXPECT_EQ(OnlyModule(model).layer(0).attention.rotary_dim, 24);  // of 6144 / 64 = 96
  EXPECT_TRUE(OnlyModule(model).layer(0).parallel_residual);
  EXPECT_FALSE(OnlyModule(model).tied_embeddings);
}

TEST(HfFamily, RopeThetaMayBeInAnObject) {
  const ModelSpec model =
      FromJson(R"({"model_type": "llama", "rope_parameters": {"rope_theta": 500000.0}})");
  EXPECT_EQ(OnlyModule(model).layer(0).attention.rope_theta, 500000);
}

TEST(HfVision, OnlyTheLanguagePartIsRead) {
  const ModelSpec llava = Load((kModels / "llava-1.5-7b.json").string());
  EXPECT_EQ(llava.family, "llama");
  EXPECT_EQ(OnlyModule(llava).vocab, 32064);
  EXPECT_EQ(OnlyModule(llava).layer_count(), 32);
  EXPECT_THAT(llava.notes, Contains(HasSubstr("only the language part of this llava model")));
  EXPECT_THAT(llava.defaults_filled,
              IsSupersetOf({"text_config.hidden_size = 4096 (absent: default of LlamaConfig)",
                            "text_config.num_hidden_layers = 32 (absent: default of LlamaConfig)",
                            "text_config.num_attention_heads = 32 (absent: default of LlamaConfig)",
                            "text_config.intermediate_size = 11008 (absent: default of "
                            "LlamaConfig)"}));
  const ModelSpec qwen = Load((kModels / "qwen2-vl-7b.json").string());
  EXPECT_EQ(qwen.family, "qwen2_vl");
  EXPECT_EQ(OnlyModule(qwen).hidden, 3584);
  EXPECT_TRUE(OnlyModule(qwen).layer(0).attention.qkv_bias);
}

TEST(HfVision, NestedTextConfigOfQwen) {
  const ModelSpec model = FromJson(R"({"model_type": "qwen2_vl", "vision_config": {},
    "text_config": {"model_type": "qwen2_vl_text", "num_hidden_layers": 2}})");
  EXPECT_EQ(OnlyModule(model).layer_count(), 2);
  EXPECT_EQ(model.family, "qwen2_vl");
}

TEST(ShippedModels, AllLoadAndCountAsTheyShould) {
  const std::map<std::string, int64_t> parameters = {{"deepseek-coder-1.3b", 1346471936},
                                                     {"deepseek-v3", 671026419200},
                                                     {"gemma-2-9b", 9241705984},
                                                     {"gpt-tiny", 249216},
                                                     {"gpt2", 124439808},
                                                     {"gpt2-large", 774030080},
                                                     {"gpt2-medium", 354823168},
                                                     {"gpt2-xl", 1557611200},
                                                     {"gpt3-175b", 174615846912},
                                                     {"llama-1.1b-16k", 1100048384},
                                                     {"llama-1.8b-mha", 1820428288},
                                                     {"llama-160m", 162417408},
                                                     {"llama-1b-untied", 1498482688},
                                                     {"llama-2-70b", 68976648192},
                                                     {"llama-2-7b", 6738415616},
                                                     {"llama-3-70b", 70553706496},
                                                     {"llama-3-8b", 8030261248},
                                                     {"llama-3.1-405b", 405853388800},
                                                     {"llama-3.2-1b", 1235814400},
                                                     {"llama-3.2-3b-untied", 3606752256},
                                                     {"llama-tiny", 229952},
                                                     {"mixtral-8x7b", 46702792704},
                                                     {"qwen2.5-0.5b", 494032768},
                                                     {"qwen2.5-1.5b", 1543714304},
                                                     {"qwen2.5-32b", 32763876352},
                                                     {"qwen2.5-3b", 3085938688},
                                                     {"qwen2.5-7b", 7615616512},
                                                     {"qwen3-235b-a22b", 235093634560},
                                                     {"qwen3-30b-a3b", 30532122624},
                                                     {"qwen3-8b", 8190735360},
                                                     {"smollm2-1.7b", 1711376384},
                                                     {"smollm2-360m", 361821120},
                                                     {"tinyllama-1.1b", 1100048384},
                                                     {"yi-6b", 6061035520}};
  std::vector<std::string> names;
  for (const auto& [name, count] : parameters) {
    SCOPED_TRACE(name);
    names.push_back(name);
    const ModelSpec model = Load(name);
    EXPECT_EQ(model.name, name);
    EXPECT_EQ(TotalParameters(model), count);
    EXPECT_THAT(model.defaults_filled, IsEmpty());
  }
  EXPECT_EQ(ShippedModels(), names);
}

TEST(ShippedModels, AreTheModelsOfTheirConfigs) {
  for (const char* name : {"gpt2", "llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gemma-2-9b",
                           "qwen2.5-0.5b", "qwen2.5-7b", "qwen3-30b-a3b"}) {
    SCOPED_TRACE(name);
    const ModelSpec config = Load((kModels / (std::string(name) + ".json")).string());
    EXPECT_EQ(Fingerprint(Load(name)), Fingerprint(config));
    EXPECT_EQ(Load(name).modules, config.modules);
  }
}

/// A folder that is removed again, and MESHWRIGHT_DATA_DIR that is put back.
class FilesTest : public ::testing::Test {
 protected:
  FilesTest() {
    folder_ =
        fs::temp_directory_path() /
        ("model_load_test_" + std::to_string(::testing::UnitTest::GetInstance()->random_seed()) +
         "_" + std::to_string(reinterpret_cast<uintptr_t>(this)));
    fs::create_directories(folder_);
  }
  ~FilesTest() override {
    unsetenv("MESHWRIGHT_DATA_DIR");
    fs::remove_all(folder_);
  }
  std::string Write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  static std::string Message(const std::string& path, StatusCode code) {
    const Result<ModelSpec> model = LoadModel(path);
    EXPECT_FALSE(model.ok());
    EXPECT_EQ(model.status().code(), code);
    return model.status().message();
  }
  fs::path folder_;
};

TEST_F(FilesTest, ContentTellsJsonFromYaml) {
  const std::string json = R"({"model_type": "gpt2", "n_layer": 3})";
  EXPECT_EQ(OnlyModule(Load(Write("a.txt", json))).layer_count(), 3);
  EXPECT_EQ(OnlyModule(Load(Write("b.yaml", "\xEF\xBB\xBF  \n" + json))).layer_count(), 3);
  const std::string yaml = PrintModelYaml(Load("gpt-tiny"));
  EXPECT_EQ(Load(Write("c.conf", yaml)), Load("gpt-tiny"));
}

TEST_F(FilesTest, FolderOfACheckpoint) {
  Write("my-llama/config.json", R"({"model_type": "llama"})");
  EXPECT_EQ(Load((folder_ / "my-llama").string()).name, "my-llama");
  EXPECT_THAT(Message(folder_.string(), StatusCode::kNotFound), HasSubstr("config.json"));
}

TEST_F(FilesTest, DataFolderReplacesTheShippedModels) {
  ModelSpec mine = Load("llama-tiny");
  mine.name = "mine";
  Write("models/mine.yaml", PrintModelYaml(mine));
  setenv("MESHWRIGHT_DATA_DIR", folder_.c_str(), 1);
  EXPECT_THAT(ShippedModels(), ElementsAre("mine"));
  EXPECT_EQ(Load("mine"), mine);
  EXPECT_FALSE(LoadModel("gpt2").ok());
}

TEST_F(FilesTest, UnknownNameListsTheShippedOnes) {
  const std::string message = Message("gpt-5", StatusCode::kNotFound);
  EXPECT_THAT(message, HasSubstr("gpt-5"));
  EXPECT_THAT(message, HasSubstr("llama-3-8b"));
}

TEST_F(FilesTest, FilesThatAreNoModels) {
  EXPECT_THAT(Message(Write("empty.yaml", " \n"), StatusCode::kInvalidInput), HasSubstr("empty"));
  EXPECT_THAT(Message(Write("list.json", "[1]"), StatusCode::kInvalidInput),
              HasSubstr("a JSON object"));
  EXPECT_THAT(Message(Write("text.json", "hello"), StatusCode::kInvalidInput),
              HasSubstr("not valid JSON"));
  EXPECT_THAT(Message(Write("text.yaml", "hello"), StatusCode::kInvalidInput),
              HasSubstr("a mapping"));
  EXPECT_THAT(Message(Write("big.json", std::string(5 << 20, ' ')), StatusCode::kInvalidInput),
              HasSubstr("4194304 bytes"));
  EXPECT_THAT(Message("/dev/zero", StatusCode::kInvalidInput), HasSubstr("regular file"));
}

TEST(Describe, NamesShapesAndNumbers) {
  const std::string text = DescribeModel(Load((kModels / "mixtral-8x7b.json").string()));
  EXPECT_THAT(text, HasSubstr("mixtral-8x7b (family mixtral)"));
  EXPECT_THAT(text, HasSubstr("46,702,792,704 parameters, 12,879,925,248 active"));
  EXPECT_THAT(text, HasSubstr("32 x 32 heads x 128, 8 kv heads; 8 experts of 14336"));
  EXPECT_THAT(text, HasSubstr("default: head_dim = 128"));
  EXPECT_THAT(DescribeModel(Load("gpt2")), Not(HasSubstr("active")));
}

}  // namespace
}  // namespace meshwright::planner
