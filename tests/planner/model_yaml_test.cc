// Our own YAML: what it means, that writing and reading are inverse, fingerprints.
#include "planner/ir/model_yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "planner/ir/load_model.h"

namespace meshwright::planner {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelSpec Parsed(const std::string& yaml) {
  const Result<ModelSpec> model = ParseModelYaml(yaml, "test.yaml");
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? *model : ModelSpec{};
}

ModelSpec Shipped(const std::string& name) {
  const Result<ModelSpec> model = LoadModel(name);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? *model : ModelSpec{};
}

const char* const kSmall = R"(# a comment
meshwright_model: 1
name: small
modules:
  - name: language
    kind: language
    hidden: 64
    norm: layer_norm
    positions: rotary
    vocab: 256
    tied_embeddings: false
    layer_kinds:
      - attention: {heads: 4}
        mlp: {ffn: 256, gated: false, activation: gelu}
      - attention: {heads: 4, kv_heads: 2, window: 32}
        mlp: {gated: true, activation: silu, moe: {experts: 4, top_k: 2, expert_ffn: 96}}
    layers:
      - {kinds: [0], count: 1}
      - {kinds: [1, 0], count: 2}
)";

TEST(ModelYaml, MeansWhatItSays) {
  const ModelSpec model = Parsed(kSmall);
  ASSERT_EQ(model.modules.size(), 1U);
  const ModuleSpec& module = model.modules[0];
  EXPECT_THAT(module.layers, ElementsAre(0, 1, 0, 1, 0));
  EXPECT_EQ(module.layer(0).attention.kv_heads, 4);
  EXPECT_EQ(module.layer(1).attention.kv_heads, 2);
  EXPECT_EQ(module.layer(1).attention.window, 32);
  EXPECT_EQ(module.layer(1).attention.head_dim, 16);
  ASSERT_TRUE(module.layer(1).mlp.moe.has_value());
  EXPECT_EQ(module.layer(1).mlp.moe->expert_ffn, 96);
  EXPECT_TRUE(module.head && module.final_norm && module.trained);
  const ParameterCount count = CountParameters(module);
  EXPECT_EQ(count.embedding, 256 * 64);
  EXPECT_EQ(count.head, 256 * 64);
  EXPECT_EQ(count.attention, 3 * 4 * 64 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32));
  EXPECT_EQ(count.mlp, 3 * 2 * 64 * 256 + 2 * (4 * 3 * 64 * 96 + 64 * 4));
  EXPECT_EQ(count.active_mlp, 3 * 2 * 64 * 256 + 2 * (2 * 3 * 64 * 96 + 64 * 4));
  EXPECT_EQ(count.norms, 5 * 2 * 2 * 64 + 2 * 64);
}

TEST(ModelYaml, DefaultsAreListed) {
  const std::string kind = "modules[0].layer_kinds[";
  EXPECT_THAT(
      Parsed(kSmall).defaults_filled,
      ElementsAre("modules[0].norm_eps = 1e-05 (absent: the usual value)",
                  "modules[0].init_std = 0.02 (absent: the usual value)",
                  kind + "0].attention.kv_heads = 4 (absent: as many as heads)",
                  kind + "0].attention.head_dim = 16 (absent: hidden / heads)",
                  kind + "0].attention.rope_theta = 10000 (absent: the value of the rotary paper)",
                  kind + "1].attention.head_dim = 16 (absent: hidden / heads)",
                  kind + "1].attention.rope_theta = 10000 (absent: the value of the rotary paper)",
                  kind + "1].mlp.moe.score = softmax (absent: the usual router)",
                  kind + "1].mlp.moe.normalize_top_k = true (absent: the usual router)"));
}

TEST(ModelYaml, TheExampleOfTheReadmeIsAModel) {
  std::ifstream file(MESHWRIGHT_SOURCE_DIR "/planner/ir/README.md");
  const std::string readme{std::istreambuf_iterator<char>(file), {}};
  const std::string fence = "```yaml\n";
  const size_t start = readme.find(fence + "meshwright_model");
  ASSERT_NE(start, std::string::npos);
  const size_t end = readme.find("```", start + fence.size());
  const ModelSpec model = Parsed(readme.substr(start + fence.size(), end - start - fence.size()));
  EXPECT_EQ(model.name, "two-kinds");
  EXPECT_THAT(model.modules.at(0).layers, ElementsAre(0, 1, 0, 1, 0, 1, 0));
}

TEST(ModelYaml, ReadingWhatWasWrittenChangesNothing) {
  std::vector<ModelSpec> models = {Parsed(kSmall)};
  for (const std::string& name : ShippedModels()) models.push_back(Shipped(name));
  for (const auto& entry :
       std::filesystem::directory_iterator(MESHWRIGHT_SOURCE_DIR "/tests/data/models")) {
    if (entry.path().extension() == ".json") models.push_back(Shipped(entry.path().string()));
  }
  EXPECT_GE(models.size(), 38U);
  for (const ModelSpec& model : models) {
    SCOPED_TRACE(model.name);
    EXPECT_EQ(Parsed(PrintModelYaml(model)), model);
  }
}

// The last letter of each text decides how it must be quoted.
rc::Gen<std::string> Texts() {
  return rc::gen::map(
      rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
          "a", "Z", "9", " ", "-", "_", ".", ":", "#", "'", "\"", "\\", "{", "]", "&", "*", "é",
          "中", "true", "null", "~", "!", "%", "@", ",", "\xE2\x80\xA8", "\xEF\xBB\xBF")),
      [](const std::vector<std::string>& pieces) {
        std::string text;
        for (size_t i = 0; i < std::min<size_t>(pieces.size(), 20); ++i) text += pieces[i];
        return text;
      });
}

int64_t Whole(int64_t low, int64_t high) {
  return *rc::gen::inRange<int64_t>(low, high + 1);
}
bool Flag() {
  return *rc::gen::arbitrary<bool>();
}
/// A positive number of any size and precision that fields accept.
double Real(double low, double high) {
  const double share = static_cast<double>(Whole(0, int64_t{1} << 53)) / 9007199254740992.0;
  return low + (high - low) * share;
}
template <typename Enum>
Enum OneOf(std::initializer_list<Enum> values) {
  return *rc::gen::elementOf(std::vector<Enum>(values));
}

AttentionSpec AnyAttention() {
  AttentionSpec a;
  a.kv_heads = Whole(1, 16);
  a.heads = a.kv_heads * Whole(1, 8);
  a.head_dim = 2 * Whole(1, 128);
  a.qkv_bias = Flag();
  a.output_bias = Flag();
  a.causal = Flag();
  a.window = Flag() ? Whole(1, 1 << 20) : 0;
  a.rope_theta = Flag() ? 10000.0 : Real(1, 1e9);
  a.score_scale = Flag() ? 0 : Real(0, 1);
  a.score_softcap = Flag() ? 0 : Real(0, 100);
  if (Flag()) {
    a.latent = LatentAttentionSpec{Whole(0, 2000), Whole(1, 2000), Whole(1, 200), 2 * Whole(1, 100),
                                   Whole(1, 200)};
    a.kv_heads = a.heads;
    a.head_dim = a.latent->nope_dim + a.latent->rope_dim;
  } else {
    a.qk_norm = Flag();
    a.rotary_dim = Flag() ? a.head_dim / 2 * 2 : 0;
  }
  return a;
}

MoeSpec AnyMoe() {
  MoeSpec m;
  m.groups = Whole(1, 8);
  m.top_groups = Whole(1, m.groups);
  const int64_t group = Whole(1, 32);
  m.experts = m.groups * group;
  m.top_k = Whole(1, group * m.top_groups);
  m.expert_ffn = Whole(1, 20000);
  if (Flag()) {
    m.shared_experts = Whole(1, 4);
    m.shared_ffn = Whole(1, 20000);
    m.shared_gate = Flag();
  }
  m.router_bias = Flag();
  m.score = OneOf({RouterScore::kSoftmax, RouterScore::kSigmoid});
  m.normalize_top_k = Flag();
  m.routed_scale = Flag() ? 1 : Real(0.1, 10);
  return m;
}

LayerSpec AnyLayer() {
  LayerSpec layer;
  layer.attention = AnyAttention();
  layer.mlp.gated = Flag();
  layer.mlp.bias = Flag();
  layer.mlp.activation = OneOf({Activation::kGelu, Activation::kGeluTanh, Activation::kSilu,
                                Activation::kRelu, Activation::kQuickGelu});
  if (Flag()) {
    layer.mlp.moe = AnyMoe();
  } else {
    layer.mlp.ffn = Whole(1, 100000);
  }
  layer.post_norms = Flag();
  layer.parallel_residual = !layer.post_norms && Flag();
  return layer;
}

ModuleSpec AnyModule(const std::string& name) {
  ModuleSpec m;
  m.name = name;
  m.kind = OneOf(
      {ModuleKind::kLanguage, ModuleKind::kVision, ModuleKind::kAudio, ModuleKind::kProjector});
  m.hidden = Whole(1, 20000);
  const auto kinds = static_cast<int>(Whole(1, 3));
  for (int i = 0; i < kinds; ++i) m.layer_kinds.push_back(AnyLayer());
  for (int i = 0; i < kinds; ++i) m.layers.push_back(i);
  const int64_t more = Whole(0, 30);
  for (int64_t i = 0; i < more; ++i) m.layers.push_back(static_cast<int>(Whole(0, kinds - 1)));
  m.norm = OneOf({NormKind::kRmsNorm, NormKind::kLayerNorm});
  m.norm_eps = Real(0, 1e-3);
  m.norm_one_plus = Flag();
  m.positions = OneOf({PositionKind::kNone, PositionKind::kLearned, PositionKind::kRotary});
  m.max_positions = Whole(1, 1 << 20);
  m.vocab = Whole(1, 300000);
  m.head = Flag();
  m.tied_embeddings = m.head && Flag();
  m.head_bias = m.head && Flag();
  m.final_norm = Flag();
  m.embedding_scale = Flag() ? 1 : Real(0.1, 200);
  m.logit_softcap = Flag() ? 0 : Real(1, 100);
  m.init_std = Real(0, 1);
  m.next_token_layers = Whole(0, 2);
  m.trained = Flag();
  return m;
}

ModelSpec AnyModel() {
  ModelSpec model;
  model.name = "n" + *Texts();
  model.family = *Texts();
  const int64_t modules = Whole(1, 3);
  for (int64_t i = 0; i < modules; ++i) {
    model.modules.push_back(AnyModule(std::to_string(i) + *Texts()));
    if (i > 0 && Flag()) model.edges.push_back({static_cast<int>(i) - 1, static_cast<int>(i)});
  }
  model.defaults_filled = *rc::gen::container<std::vector<std::string>>(Texts());
  model.notes = *rc::gen::container<std::vector<std::string>>(Texts());
  return model;
}

TEST(ModelYamlProperty, ParseOfPrintIsTheSame) {
  EXPECT_TRUE(rc::check("parse(print(x)) == x", [] {
    const ModelSpec model = AnyModel();
    const Status sane = CheckModel(model, "generated");
    if (!sane.ok()) RC_FAIL(sane.message());
    const std::string text = PrintModelYaml(model);
    const Result<ModelSpec> again = ParseModelYaml(text, "printed");
    if (!again.ok()) RC_FAIL(again.status().message() + "\n" + text);
    RC_ASSERT(*again == model);
    RC_ASSERT(PrintModelYaml(*again) == text);
    RC_ASSERT(Fingerprint(*again) == Fingerprint(model));
  }));
}

TEST(ModelYamlProperty, CountsAreSumsOfPositiveParts) {
  EXPECT_TRUE(rc::check("counts", [] {
    const ModelSpec model = AnyModel();
    for (const ModuleSpec& module : model.modules) {
      const ParameterCount c = CountParameters(module);
      RC_ASSERT(c.embedding > 0);
      RC_ASSERT((c.head > 0) == (module.head && (!module.tied_embeddings || module.head_bias)));
      RC_ASSERT(c.attention > 0);
      RC_ASSERT(c.active_mlp > 0 && c.active_mlp <= c.mlp);
      ModuleSpec longer = module;  // one more layer adds what one layer has
      longer.layers.push_back(module.layers[0]);
      ModuleSpec one = module;
      one.layers = {module.layers[0]};
      ModuleSpec two = one;
      two.layers.push_back(module.layers[0]);
      RC_ASSERT(CountParameters(longer).total() - c.total() ==
                CountParameters(two).total() - CountParameters(one).total());
    }
  }));
}

TEST(Fingerprint, IgnoresNamesAndTheOrderOfLayerKinds) {
  const ModelSpec model = Parsed(kSmall);
  ModelSpec same = model;
  same.name = "other";
  same.family = "gpt2";
  same.notes = {"x"};
  same.defaults_filled.clear();
  std::swap(same.modules[0].layer_kinds[0], same.modules[0].layer_kinds[1]);
  for (int& kind : same.modules[0].layers) kind = 1 - kind;
  EXPECT_EQ(Fingerprint(same), Fingerprint(model));
}

TEST(Fingerprint, SeesEveryChangeOfShape) {
  const ModelSpec model = Parsed(kSmall);
  std::vector<ModelSpec> changed(7, model);
  changed[0].modules[0].hidden = 128;
  changed[1].modules[0].layers.push_back(0);
  changed[2].modules[0].tied_embeddings = true;
  changed[3].modules[0].layer_kinds[0].attention.qkv_bias = true;
  changed[4].modules[0].layer_kinds[1].mlp.moe->top_k = 1;
  changed[5].modules[0].norm = NormKind::kRmsNorm;
  std::swap(changed[6].modules[0].layers[0], changed[6].modules[0].layers[1]);
  std::vector<uint64_t> seen = {Fingerprint(model)};
  for (const ModelSpec& other : changed) {
    EXPECT_THAT(seen, Each(::testing::Ne(Fingerprint(other))));
    seen.push_back(Fingerprint(other));
  }
}

TEST(Fingerprint, IsStable) {
  // Saved plans carry it: a change here must come with a new version of the plan format.
  EXPECT_EQ(Fingerprint(Shipped("gpt2")), 16119809314480341891U);
}

TEST(ChoiceNames, ParseIsTheReverseOfToString) {
  Activation activation = Activation::kRelu;
  EXPECT_TRUE(Parse("quick_gelu", &activation));
  EXPECT_EQ(activation, Activation::kQuickGelu);
  EXPECT_FALSE(Parse("Quick_GELU", &activation));
  EXPECT_EQ(activation, Activation::kQuickGelu);
  EXPECT_EQ(ToString(PositionKind::kLearned), "learned");
  EXPECT_EQ(KnownNames<ModuleKind>(), "language, vision, audio, projector");
}

}  // namespace
}  // namespace meshwright::planner
