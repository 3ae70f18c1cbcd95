// Wrong model files: every message says where, what was found, what is allowed, what to do.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "planner/ir/load_model.h"
#include "planner/ir/model_yaml.h"

namespace meshwright::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string Refused(const Result<ModelSpec>& model) {
  EXPECT_FALSE(model.ok());
  if (model.ok()) return "";
  EXPECT_EQ(model.status().code(), StatusCode::kInvalidInput);
  EXPECT_EQ(ExitCode(model.status()), 2);
  return model.status().message();
}

std::string JsonError(const std::string& json) {
  return Refused(ParseHfConfig(json, "m.json"));
}
std::string YamlError(const std::string& yaml) {
  return Refused(ParseModelYaml(yaml, "m.yaml"));
}

struct Wrong {
  const char* name;
  std::string text;
  std::string message;  ///< the whole of it
};
void PrintTo(const Wrong& wrong, std::ostream* out) {
  *out << wrong.name;
}

class WrongConfig : public ::testing::TestWithParam<Wrong> {};
TEST_P(WrongConfig, SaysWhy) {
  EXPECT_EQ(JsonError(GetParam().text), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Json, WrongConfig,
    ::testing::Values(
        Wrong{"negative", "{\"model_type\": \"llama\",\n\"hidden_size\": -4096, \"head_dim\": 8}",
              "m.json: line 2, field hidden_size: found -4096; allowed: a whole number from 1 to "
              "1048576; correct the number"},
        Wrong{"zero", R"({"model_type": "llama", "num_hidden_layers": 0})",
              "m.json: line 1, field num_hidden_layers: found 0; allowed: a whole number from 1 to "
              "10000; correct the number"},
        Wrong{"huge", R"({"model_type": "llama", "vocab_size": 1000000000000000000})",
              "m.json: line 1, field vocab_size: found 1000000000000000000; allowed: a whole "
              "number from 1 to 67108864; correct the number"},
        Wrong{"huge_float", R"({"model_type": "llama", "vocab_size": 1e18})",
              "m.json: line 1, field vocab_size: found 1e+18; allowed: a whole number from 1 to "
              "67108864; correct the number"},
        Wrong{"beyond_64_bits", R"({"model_type": "llama", "vocab_size": 18446744073709551615})",
              "m.json: line 1, field vocab_size: found 18446744073709551615; allowed: a whole "
              "number from 1 to 67108864; correct the number"},
        Wrong{"fraction", R"({"model_type": "gpt2", "n_layer": 2.5})",
              "m.json: line 1, field n_layer: found 2.5; allowed: a whole number from 1 to 10000; "
              "correct the number"},
        Wrong{"number_in_quotes", R"({"model_type": "gpt2", "n_layer": "12"})",
              "m.json: line 1, field n_layer: found \"12\"; allowed: a whole number from 1 to "
              "10000; write the number without quotes"},
        Wrong{"null_number", R"({"model_type": "gpt2", "n_layer": null})",
              "m.json: line 1, field n_layer: found null; allowed: a whole number from 1 to 10000; "
              "correct the number"},
        Wrong{"list_for_number", R"({"model_type": "gpt2", "n_layer": [12]})",
              "m.json: line 1, field n_layer: found a list; allowed: a whole number from 1 to "
              "10000; correct the number"},
        Wrong{"real_in_quotes", R"({"model_type": "llama", "rope_theta": "big"})",
              "m.json: line 1, field rope_theta: found \"big\"; allowed: a number from 0.001 to "
              "1000000000000000; write the number without quotes"},
        Wrong{"negative_epsilon", R"({"model_type": "llama", "rms_norm_eps": -1e-5})",
              "m.json: line 1, field rms_norm_eps: found -1e-05; allowed: a number from 0 to 1; "
              "correct the number"},
        Wrong{"flag_as_text", R"({"model_type": "llama", "tie_word_embeddings": "yes"})",
              "m.json: line 1, field tie_word_embeddings: found \"yes\"; allowed: true or false; "
              "correct the value"},
        Wrong{"heads_and_hidden", R"({"model_type": "llama", "num_attention_heads": 30,
                                     "num_key_value_heads": 30})",
              "m.json: line 1, field num_attention_heads: found 30 for a hidden size of 4096; "
              "allowed: a divisor of 4096, or a head_dim beside it; correct the number, or state "
              "head_dim"},
        Wrong{"gpt2_heads_and_hidden", R"({"model_type": "gpt2", "n_head": 7})",
              "m.json: line 1, field n_head: found 7 for n_embd = 768; allowed: a divisor of 768; "
              "correct one of the two"},
        Wrong{"kv_heads", R"({"model_type": "llama", "num_key_value_heads": 5})",
              "m.json: line 1, field num_key_value_heads: found 5 for 32 heads; allowed: a divisor "
              "of num_attention_heads = 32; every kv head serves equally many heads: correct one "
              "of the two"},
        Wrong{"odd_head", R"({"model_type": "llama", "head_dim": 65})",
              "m.json: line 1, field head_dim: found a rotary width of 65; allowed: an even width; "
              "rotation works on pairs: correct the sizes"},
        Wrong{"two_names_of_a_field",
              "{\"model_type\": \"gpt2\", \"n_embd\": 768,\n\"hidden_size\": 1024}",
              "m.json: line 2, field hidden_size: found 1024 beside n_embd = 768; allowed: one "
              "value: both names mean the same field; remove one of the two"},
        Wrong{"field_twice", "{\"model_type\": \"gpt2\", \"n_layer\": 8,\n\"n_layer\": 9}",
              "m.json: line 2, field n_layer: found the field twice; allowed: once; remove one of "
              "the two"},
        Wrong{"activation", R"({"model_type": "llama", "hidden_act": "mish"})",
              "m.json: line 1, field hidden_act: found \"mish\"; allowed: gelu, gelu_python, "
              "gelu_new, gelu_pytorch_tanh, gelu_fast, silu, swish, relu, quick_gelu; no other "
              "activation can be planned: correct the name"},
        Wrong{"more_visits_than_experts",
              R"({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5})",
              "m.json: line 1, field num_experts_per_tok: found 5; allowed: a whole number from 1 "
              "to 4; correct the number"},
        Wrong{"layer_types_too_short",
              R"({"model_type": "qwen2", "layer_types": ["full_attention"]})",
              "m.json: line 1, field layer_types: found 1 entries; allowed: 32, one a layer; "
              "correct the list or num_hidden_layers"},
        Wrong{"layer_types_unknown", R"({"model_type": "qwen2", "num_hidden_layers": 1,
                                        "layer_types": ["linear_attention"]})",
              "m.json: line 2, field layer_types: found \"linear_attention\"; allowed: "
              "full_attention, sliding_attention; other layers cannot be planned: write the model "
              "as Meshwright YAML"},
        Wrong{"cross_attention", R"({"model_type": "gpt2", "add_cross_attention": true})",
              "m.json: line 1, field add_cross_attention: found true; allowed: false; this variant "
              "cannot be planned"},
        Wrong{"encoder_decoder", R"({"model_type": "llama", "is_encoder_decoder": true})",
              "m.json: line 1, field is_encoder_decoder: found true; allowed: false; "
              "encoder-decoder models cannot be planned"},
        Wrong{"nested", R"({"model_type": "llava", "text_config": {"vocab_size": 0}})",
              "m.json: line 1, field text_config.vocab_size: found 0; allowed: a whole number from "
              "1 to 67108864; correct the number"},
        Wrong{"text_config_no_object", R"({"model_type": "llava", "text_config": 3})",
              "m.json: line 1, field text_config: found 3; allowed: an object; correct the value"},
        Wrong{"deepseek_kv_heads", R"({"model_type": "deepseek_v3", "num_key_value_heads": 64})",
              "m.json: line 1, field num_key_value_heads: found 64 for 128 heads; allowed: as many "
              "as num_attention_heads: keys and values come from one latent; correct one of the "
              "two"},
        Wrong{"too_many_parameters", R"({"model_type": "mixtral", "hidden_size": 1048576,
              "intermediate_size": 4194304, "num_local_experts": 65536, "head_dim": 128,
              "num_hidden_layers": 10000})",
              "m.json: field modules: found 8.65e+21 parameters together; allowed: at most 1e+15; "
              "check hidden, layers, experts, vocab"},
        Wrong{"nan", "{\"model_type\": \"llama\",\n \"rope_theta\": NaN}",
              "m.json: line 2: not valid JSON: syntax error while parsing value - invalid literal; "
              "last read: '\"rope_theta\": N'; correct the syntax"},
        Wrong{"not_an_object", "[]",
              "m.json: found a list; allowed: a JSON object, as in a config.json; is this the "
              "right file?"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(ConfigErrors, UnknownFamilyListsTheKnownOnes) {
  for (const char* json :
       {R"({"model_type": "t5"})", R"({"hidden_size": 8})", "{}", R"({"model_type": 3})",
        R"({"model_type": "llava", "text_config": {"model_type": "opt"}})"}) {
    SCOPED_TRACE(json);
    EXPECT_THAT(JsonError(json),
                AllOf(HasSubstr("model_type: found"),
                      HasSubstr("deepseek_v2, deepseek_v3, gemma, gemma2, gpt2, gpt_neox, llama, "
                                "llava, llava_next, mistral, mixtral, phi3, qwen2, qwen2_5_vl, "
                                "qwen2_5_vl_text, qwen2_moe, qwen2_vl, qwen2_vl_text, qwen3, "
                                "qwen3_moe"),
                      HasSubstr("own YAML (planner/ir/README.md")));
  }
}

TEST(ConfigErrors, AllProblemsAtOnce) {
  const std::string message = JsonError(R"({"model_type": "llama", "hidden_size": 0,
    "num_hidden_layers": "32", "vocab_size": -1,
    "num_key_value_heads": 3, "hidden_act": "?", "rms_norm_eps": []})");
  EXPECT_THAT(message, StartsWith("m.json: 6 problems\n  line 1, field hidden_size: found 0;"));
  for (const char* field : {"line 2, field num_hidden_layers", "line 2, field vocab_size",
                            "line 3, field num_key_value_heads", "line 3, field hidden_act",
                            "line 3, field rms_norm_eps"}) {
    EXPECT_THAT(message, HasSubstr(field));
  }
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 6);
}

TEST(ConfigErrors, BrokenText) {
  EXPECT_THAT(JsonError(R"({"model_type": "llama")"), HasSubstr("not valid JSON"));
  EXPECT_THAT(JsonError("{\"model_type\": \"ll\xFF\"}"), HasSubstr("byte 0xFF at offset 18"));
  EXPECT_THAT(JsonError(std::string("{\"a\": 1\0}", 9)), HasSubstr("NUL byte"));
  EXPECT_THAT(JsonError(std::string(100000, '[')), HasSubstr("nested deeper than 64 levels"));
  EXPECT_THAT(JsonError("{\"a\": 1e999}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(JsonError(std::string((4 << 20) + 1, ' ')), HasSubstr("at most 4194304 bytes"));
  EXPECT_THAT(JsonError("{} {}"), HasSubstr("not valid JSON"));
}

TEST(ConfigErrors, LongValuesAreShortened) {
  const std::string message = JsonError(R"({"model_type": ")" + std::string(100000, 'x') + "\"}");
  EXPECT_LT(message.size(), 1000U);
}

TEST(ConfigErrors, ManyProblemsAreCountedNotListed) {
  std::string json = R"({"model_type": "llama")";
  for (int i = 0; i < 5000; ++i) json += fmt::format(", \"k{0}\": 1, \"k{0}\": 2", i);
  const std::string message = JsonError(json + "}");
  EXPECT_THAT(message, HasSubstr("and 4900 more"));
  EXPECT_LT(message.size(), 20000U);
}

// -- our own YAML ---------------------------------------------------------------------------------

const char* const kGood = R"(meshwright_model: 1
name: m
modules:
  - name: language
    kind: language
    hidden: 64
    norm: rms_norm
    positions: rotary
    vocab: 256
    tied_embeddings: false
    layer_kinds:
      - attention: {heads: 8, kv_heads: 4}
        mlp: {ffn: 192, gated: true, activation: silu}
    layers: 4
)";

/// kGood with one piece replaced.
std::string Edited(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

class WrongYaml : public ::testing::TestWithParam<Wrong> {};
TEST_P(WrongYaml, SaysWhy) {
  EXPECT_EQ(YamlError(GetParam().text), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Yaml, WrongYaml,
    ::testing::Values(
        Wrong{"no_version", Edited("meshwright_model: 1\n", ""),
              "m.yaml: line 1, field meshwright_model: found nothing; allowed: a whole number; "
              "state the field"},
        Wrong{"other_version", Edited("meshwright_model: 1", "meshwright_model: 2"),
              "m.yaml: line 1, field meshwright_model: found version 2; allowed: 1; this build "
              "reads that version only: convert the file"},
        Wrong{"missing", Edited("    hidden: 64\n", ""),
              "m.yaml: line 4, field modules[0].hidden: found nothing; allowed: a whole number; "
              "state the field"},
        Wrong{"missing_part", Edited("attention: {heads: 8, kv_heads: 4}\n        ", ""),
              "m.yaml: line 12, field modules[0].layer_kinds[0].attention: found nothing; allowed: "
              "a mapping of fields; state the part"},
        Wrong{"misspelt", Edited("vocab: 256", "vocab: 256\n    vocabulary: 256"),
              "m.yaml: line 10, field modules[0].\"vocabulary\": found a field that is not known "
              "here; allowed: name, kind, hidden, norm, norm_eps, norm_one_plus, positions, "
              "max_positions, vocab, head, tied_embeddings, head_bias, final_norm, "
              "embedding_scale, logit_softcap, init_std, next_token_layers, trained, layer_kinds, "
              "layers; correct the spelling, or remove it"},
        Wrong{"twice", Edited("vocab: 256", "vocab: 256\n    vocab: 512"),
              "m.yaml: line 10, field modules[0].\"vocab\": found the field twice; allowed: once; "
              "remove one of the two"},
        Wrong{"number_in_quotes", Edited("hidden: 64", "hidden: \"64\""),
              "m.yaml: line 6, field modules[0].hidden: found \"64\"; allowed: a whole number; "
              "correct the value"},
        Wrong{"negative", Edited("hidden: 64", "hidden: -64"),
              "m.yaml: line 6, field modules[0].hidden: found -64; allowed: a whole number from 1 "
              "to 1048576; correct the number"},
        Wrong{"huge", Edited("vocab: 256", "vocab: 1000000000000000000"),
              "m.yaml: line 9, field modules[0].vocab: found 1000000000000000000; allowed: a whole "
              "number from 0 to 67108864; correct the number"},
        Wrong{"beyond_64_bits", Edited("vocab: 256", "vocab: 99999999999999999999"),
              "m.yaml: line 9, field modules[0].vocab: found \"99999999999999999999\"; allowed: a "
              "whole number; correct the value"},
        Wrong{"nan", Edited("vocab: 256", "vocab: 256\n    norm_eps: .nan"),
              "m.yaml: line 10, field modules[0].norm_eps: found \".nan\"; allowed: a finite "
              "number; correct the value"},
        Wrong{"infinite", Edited("vocab: 256", "vocab: 256\n    init_std: 1e999"),
              "m.yaml: line 10, field modules[0].init_std: found \"1e999\"; allowed: a finite "
              "number; correct the value"},
        Wrong{"choice", Edited("rms_norm", "batch_norm"),
              "m.yaml: line 7, field modules[0].norm: found \"batch_norm\"; allowed: rms_norm, "
              "layer_norm; correct the value"},
        Wrong{"kv_heads", Edited("kv_heads: 4", "kv_heads: 3"),
              "m.yaml: line 12, field modules[0].layer_kinds[0].attention.kv_heads: found 3 for 8 "
              "heads; allowed: a divisor of 8; every kv head serves equally many heads"},
        Wrong{"heads", Edited("heads: 8, kv_heads: 4", "heads: 7"),
              "m.yaml: line 12, field modules[0].layer_kinds[0].attention.heads: found 7 for "
              "hidden = 64; allowed: a divisor of 64, or a head_dim beside it; correct the number, "
              "or state head_dim"},
        Wrong{"ffn_beside_moe",
              Edited("ffn: 192,", "ffn: 192, moe: {experts: 4, top_k: 2, expert_ffn: 8},"),
              "m.yaml: line 13, field modules[0].layer_kinds[0].mlp.ffn: found 192 beside moe; "
              "allowed: 0 or absent with moe; state the width of an expert in moe.expert_ffn"},
        Wrong{"top_k", Edited("ffn: 192,", "moe: {experts: 4, top_k: 5, expert_ffn: 8},"),
              "m.yaml: line 13, field modules[0].layer_kinds[0].mlp.moe.top_k: found 5; allowed: a "
              "whole number from 1 to 4; correct the number"},
        Wrong{"no_vocab", Edited("    vocab: 256\n", ""),
              "m.yaml: field modules[0].vocab: found 0 with a head; allowed: 1 to 67108864; state "
              "the vocabulary, or set head: false"},
        Wrong{"layers", Edited("layers: 4", "layers: 100000000"),
              "m.yaml: line 14, field modules[0].layers: found \"100000000\"; allowed: a number up "
              "to 10000 (with one layer kind), or a list of {kinds: [0], count: n}; state how many "
              "layers of which kind there are"},
        Wrong{"layer_run", Edited("layers: 4", "layers: [{kinds: [0, 0], count: 5001}]"),
              "m.yaml: line 14, field modules[0].layers[0]: found 5001 x 2 layers; allowed: at "
              "least one, at most 10000 in all; correct count and kinds"},
        Wrong{"layer_kind", Edited("layers: 4", "layers: [{kinds: [1], count: 5}]"),
              "m.yaml: line 14, field modules[0].layers: found layer kind 1; allowed: 0 to 0; name "
              "a layer kind of the module"},
        Wrong{"edge", std::string(kGood) + "edges: [{from: 0, to: 1}]\n",
              "m.yaml: field edges[0]: found 0 to 1; allowed: two different modules of 0 to 0; "
              "correct the edge"},
        Wrong{"name_with_break", Edited("name: m\n", "name: \"a\\nb\"\n"),
              "m.yaml: line 2, field name: found \"a?b\"; allowed: 1 to 200 bytes without control "
              "characters; choose another name"},
        Wrong{"alias", Edited("name: m", "name: &a m\nfamily: *a"),
              "m.yaml: line 2: found a YAML anchor ('&'); allowed: plain values; write the value "
              "out, or quote the text"},
        Wrong{"two_documents", std::string(kGood) + "---\n" + kGood,
              "m.yaml: found text after the first YAML document; allowed: one document; remove the "
              "rest"},
        Wrong{"no_mapping", "- 1\n",
              "m.yaml: line 1, field (document): found a list; allowed: a mapping of fields; write "
              "`field: value` lines"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(YamlErrors, TheTemplateItselfIsGood) {
  const Result<ModelSpec> model = ParseModelYaml(kGood, "m.yaml");
  ASSERT_TRUE(model.ok()) << model.status().message();
}

TEST(YamlErrors, AllProblemsAtOnce) {
  std::string text = Edited("hidden: 64", "hidden: x");
  text.replace(text.find("256"), 3, "-1");
  text.replace(text.find("kv_heads: 4"), 11, "kv_heads: 5");
  const std::string message = YamlError(text + "extra: 1\n");
  EXPECT_THAT(message, StartsWith("m.yaml: "));
  for (const char* field :
       {"modules[0].hidden", "modules[0].vocab", "attention.kv_heads", "\"extra\""}) {
    EXPECT_THAT(message, HasSubstr(field));
  }
}

TEST(YamlErrors, BrokenText) {
  EXPECT_THAT(YamlError("a: [1"), HasSubstr("not valid YAML"));
  EXPECT_THAT(YamlError(std::string(100000, '[')), HasSubstr("nested deeper than 64 levels"));
  EXPECT_THAT(YamlError("name: \xC0\xAF"), HasSubstr("not UTF-8"));
  EXPECT_THAT(YamlError(std::string((4 << 20) + 1, ' ')), HasSubstr("at most 4194304 bytes"));
  EXPECT_THAT(YamlError(""), HasSubstr("m.yaml"));
}

TEST(YamlErrors, CyclesOfModules) {
  const std::string module = std::string(kGood).substr(std::string(kGood).find("  - name"));
  std::string text = kGood;
  for (const char* name : {"b", "c"}) {
    std::string other = module;
    text += other.replace(other.find("language"), 8, name);
  }
  ASSERT_TRUE(ParseModelYaml(text + "edges: [{from: 0, to: 1}, {from: 1, to: 2}]\n", "m").ok());
  EXPECT_THAT(YamlError(text + "edges: [{from: 0, to: 1}, {from: 1, to: 2}, {from: 2, to: 0}]\n"),
              HasSubstr("field edges: found a cycle"));
  EXPECT_THAT(YamlError(text + "edges: [{from: 0, to: 1}, {from: 0, to: 1}]\n"),
              HasSubstr("0 to 1 again"));
  EXPECT_THAT(YamlError(text + module), HasSubstr("a name that no other module has"));
}

TEST(YamlErrors, ManyModulesDoNotFillMemory) {
  std::string text = "meshwright_model: 1\nname: m\nmodules:\n";
  const std::string module =
      "  - {name: a, kind: projector, hidden: 1, norm: rms_norm, positions: none, head: false, "
      "layer_kinds: [{attention: {heads: 1}, mlp: {ffn: 1, gated: false, activation: relu}}], "
      "layers: 10000}\n";
  for (int i = 0; i < 2000; ++i) text += module;
  EXPECT_THAT(YamlError(text), AllOf(HasSubstr("65 modules"), Not(HasSubstr("layers"))));
}

}  // namespace
}  // namespace meshwright::planner
