// Public failure reports that legality and the search cover: each gets its right answer or a clear
// error. Numbers in the names are those of the reports.
#include "tests/planner/bug_reports_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "planner/lower/lower.h"

namespace meshwright::planner {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(BugReports, B01ThirtyLayersOnFourStagesLoseNone) {
  const ModelSpec model = Dense("gpt2-30", {30});
  SplitRequest r = Split(1, 4, 1, 8);
  EXPECT_THAT(LayersOf(MakePlan(model, r).value()), ElementsAre(7, 8, 8, 7));
  r.layers = {7, 7, 7, 7};
  EXPECT_THAT(ErrorOf(model, r), HasSubstr("cover 28 layers, the model has 30"));
  SearchOptions o = Step(8, 1024);
  o.pp = 4;
  o.virtual_stages = 1;
  const auto found = Find(model, 4, o);
  ASSERT_TRUE(found.ok()) << found.status().message();
  const auto layers = LayersOf(found->plans.front().plan);
  EXPECT_EQ(std::accumulate(layers.begin(), layers.end(), int64_t{0}), 30);
}

TEST(BugReports, B03SevenLayersOnTwoStages) {
  const ModelSpec model = Dense("seven", {7});
  EXPECT_THAT(LayersOf(MakePlan(model, Split(1, 2, 1, 8)).value()),
              AnyOf(ElementsAre(3, 4), ElementsAre(4, 3)));
}

TEST(BugReports, B05LayersOfTheOnlyStageAreAllLayers) {
  const ModelSpec model = Dense("twenty", {20});
  SplitRequest r = Split(1, 1, 1, 8);
  r.layers = {1};
  EXPECT_THAT(ErrorOf(model, r), HasSubstr("cover 1 layers, the model has 20"));
  SearchOptions o = Step(8, 1024);
  o.layers = {1};
  EXPECT_THAT(Find(model, 1, o).status().message(), HasSubstr("cover 1 layers, the model has 20"));
}

TEST(BugReports, B06KeyValueHeadsFewerThanTensorRanks) {
  const ModelSpec model = Dense("kv2", {4, 128, 8, 2});
  const Plan plan = MakePlan(model, Split(4, 1, 1, 8)).value();
  EXPECT_EQ(plan.modules.front().kv_copies, 2);
  SearchOptions o = Step(8, 1024);
  o.tp = 4;
  const auto found = Find(model, 4, o);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_THAT(found->plans.front().plan.reasons, Contains(HasSubstr("each is stored on 2 ranks")));
  EXPECT_THAT(ErrorOf(Dense("kv4", {4, 96, 12, 4, 252}), Split(6, 1, 1, 8)),
              HasSubstr("tp 6: 4 key-value heads"));
}

TEST(BugReports, B20BothProblemsAtOnce) {
  ModelSpec model = Dense("moe", {4, 4096, 64, 64});
  model.modules.front().layer_kinds.front().mlp.moe = MoeSpec{};
  MoeSpec& moe = *model.modules.front().layer_kinds.front().mlp.moe;
  moe.experts = 256;
  moe.top_k = 8;
  moe.expert_ffn = 1536;
  SplitRequest r = Split(3, 1, 1, 9);
  r.ep = 3;
  const std::string message = ErrorOf(model, r);
  EXPECT_THAT(message,
              HasSubstr("64 attention heads of module language do not divide (remainder 1)"));
  EXPECT_THAT(message, HasSubstr("256 experts do not divide (remainder 1)"));
}

TEST(BugReports, B23PaddedVocabularyIsWhatIsChecked) {
  const ModelSpec model = Dense("llama-3", {2, 4096, 32, 8, 14336, 128256, true});
  SplitRequest r = Split(8, 1, 1, 8);
  r.vocab_quantum = 64;
  Plan plan = MakePlan(model, r).value();
  EXPECT_EQ(plan.modules.front().padded_vocab, 128512);
  EXPECT_EQ(plan.modules.front().padded_vocab / 8, 16064);
  EXPECT_EQ(plan.model.modules.front().vocab, 128256);
  const auto programs = Lower(plan);
  ASSERT_TRUE(programs.ok());
  for (const ParameterEntry& e : programs->programs.front().parameters) {
    if (e.name != "language.head.weight") continue;
    EXPECT_EQ(e.local_shape, (std::vector<int64_t>{16064, 4096}));
    EXPECT_EQ(e.valid_rows, 128256);
  }
  plan.modules.front().padded_vocab = 128256;
  EXPECT_THAT(CheckPlan(plan).message(), HasSubstr("is 128512"));
}

TEST(BugReports, B25TwentyFourTensorRanks) {
  const ModelSpec model = Dense("v4", {2, 7168, 128, 128, 18432, 129280, true});
  SplitRequest r = Split(24, 1, 1, 8);
  r.vocab_quantum = 64;
  r.sequence_parallel = false;
  EXPECT_THAT(ErrorOf(model, r),
              HasSubstr("128 attention heads of module language do not divide (remainder 8)"));
  const ModelSpec divisible = Dense("v4", {2, 7168, 24, 24, 18432, 129280, true});
  const Plan plan = MakePlan(divisible, r).value();
  EXPECT_EQ(plan.modules.front().padded_vocab, 130560);
  EXPECT_EQ(plan.modules.front().padded_vocab / 24, 5440);
}

TEST(BugReports, B26PaddingIsMultipliedOnce) {
  const ModelSpec model = Dense("qwen3-0.6b", {2, 1024, 16, 8, 3072, 151936, true, true});
  SplitRequest r = Split(2, 1, 1, 8);
  EXPECT_EQ(MakePlan(model, r)->modules.front().padded_vocab, 151936);  // 75968 rows a rank
  r.vocab_quantum = 128;
  EXPECT_EQ(MakePlan(model, r)->modules.front().padded_vocab, 152064);  // 76032 rows a rank
}

TEST(BugReports, B33BatchesThatDoNotMultiply) {
  Plan plan = MakePlan(Dense("any", {2}),
                       [] {
                         SplitRequest r = Split(1, 1, 1, 64);
                         r.micro_batch = 4;
                         return r;
                       }())
                  .value();
  EXPECT_EQ(plan.micro_batches, 16);
  plan.micro_batches = 8;
  EXPECT_THAT(CheckPlan(plan).message(),
              HasSubstr("micro-batches 8: global batch 64 / (micro-batch 4 x dp 1) is 16"));
  // Eight micro-batches are those of two data-parallel ranks.
  SplitRequest two = Split(1, 1, 2, 64);
  two.micro_batch = 4;
  EXPECT_EQ(MakePlan(Dense("any", {2}), two)->micro_batches, 8);
}

TEST(BugReports, B35TensorGroupLargerThanTheWorld) {
  SearchOptions o = Step(8, 1024);
  o.tp = 2;
  EXPECT_THAT(Find(Dense("any", {2}), 1, o).status().message(),
              HasSubstr("1 GPUs: not a multiple of tp 2"));
  const auto cluster = topologies::ParseClusterYaml(R"(
meshwright_cluster: 1
name: two-pods
sources:
  test: {origin: assumed, text: "invented for a test"}
hosts:
  - name: pod
    count: 2
    device: {kind: gpu, name: H100-SXM, profile: h100-sxm, memory: 80 GB, source: test}
    nodes: [numa0, gpu0, nic0, rail0]
    links:
      - {from: gpu0, to: numa0, kind: pcie, each_way: 63 GB/s, latency: 0.5 us, source: test, latency_source: test}
      - {from: nic0, to: numa0, kind: pcie, each_way: 63 GB/s, latency: 0.5 us, source: test, latency_source: test}
      - {from: nic0, to: rail0, kind: network, each_way: 100 Gb/s, latency: 1 us, source: test, latency_source: test}
fabric: {name: test, oversubscription: 1, source: test, spine_latency: 1 us, latency_source: test}
)",
                                                    "pods");
  ASSERT_TRUE(cluster.ok()) << cluster.status().message();
  const auto found = FindPlans(Dense("any", {2}), *cluster, Costs("h100-sxm"), o);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_THAT(found->plans.front().plan.warnings,
              Contains(HasSubstr("tensor groups cross 2 hosts")));
}

TEST(BugReports, B37FewerMicroBatchesThanStages) {
  const ModelSpec model = Dense("eight", {8});
  SearchOptions o = Step(4, 1024);
  const auto free = Find(model, 8, o);
  ASSERT_TRUE(free.ok()) << free.status().message();
  for (const FoundPlan& f : free->plans) {
    EXPECT_GE(f.plan.micro_batches, f.plan.modules.front().pp);
  }
  o.pp = 8;
  o.micro_batch = 1;
  const auto held = Find(model, 8, o);
  ASSERT_TRUE(held.ok()) << held.status().message();
  EXPECT_EQ(held->plans.front().plan.micro_batches, 4);
  EXPECT_THAT(held->plans.front().plan.warnings, Contains(HasSubstr("63.6 %")));
  SplitRequest r = Split(1, 4, 1, 3);
  r.virtual_stages = 2;
  EXPECT_THAT(ErrorOf(model, r), HasSubstr("at least pp = 4 micro-batches, found 3"));
}

TEST(BugReports, B38MicroBatchesComeFromTheBatchAndChunksFromBoth) {
  const ModelSpec model = Dense("eight", {8});
  SplitRequest r = Split(1, 4, 1, 8);
  r.virtual_stages = 2;
  const Plan plan = MakePlan(model, r).value();
  EXPECT_EQ(plan.modules.front().chunks.size(), 8u);
  EXPECT_EQ(plan.micro_batches, 8);
  r.global_batch = 2;
  EXPECT_THAT(ErrorOf(model, r), HasSubstr("raise the global batch to 4"));
}

TEST(BugReports, B40InterleavingOnTwoStages) {
  SplitRequest r = Split(1, 2, 1, 4);
  r.virtual_stages = 2;
  const auto plan = MakePlan(Dense("four", {4}), r);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const auto programs = Lower(*plan);
  ASSERT_TRUE(programs.ok());
  // Next and previous are the same rank: every direction and class has a communicator of its own.
  std::vector<std::string> edges;
  for (const CommunicatorInfo& c : programs->programs.front().communicators) {
    if (c.kind == CommunicatorKind::kEdge) edges.push_back(c.name);
  }
  EXPECT_THAT(edges, testing::UnorderedElementsAre("edge act 1>0", "edge act 0>1", "edge grad 1>0",
                                                   "edge grad 0>1"));
}

TEST(BugReports, B47TiedEmbeddingIsCountedOnceAndSummed) {
  const ModelSpec model = Dense("gpt2", {12, 768, 12, 12, 3072, 50257, false, true});
  const ParameterCount count = CountParameters(model.modules.front());
  EXPECT_EQ(count.embedding, 50257 * 768);
  EXPECT_EQ(count.head, 0);
  const auto programs = Lower(MakePlan(model, Split(1, 2, 1, 4)).value());
  ASSERT_TRUE(programs.ok());
  for (const RankProgram& program : programs->programs) {
    int64_t summed = 0;
    for (const Block& block : program.blocks) {
      for (const Op& op : block.ops) {
        if (op.kind != OpKind::kAllReduce) continue;
        const auto c = static_cast<size_t>(op.attributes.communicator);
        if (program.communicators[c].kind != CommunicatorKind::kTied) continue;
        summed += block.tensors[static_cast<size_t>(op.operands.front().tensor)].elements();
      }
    }
    EXPECT_EQ(summed, 50257 * 768) << "stage " << program.stage;
  }
}

TEST(BugReports, B65WorldOfEightWithThreeStages) {
  SearchOptions o = Step(8, 1024);
  o.tp = 1;
  o.pp = 3;
  const auto found = Find(Dense("deepseek", {61}), 8, o);
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(found.status().message(), HasSubstr("8 GPUs: not a multiple of tp 1"));
  EXPECT_THAT(found.status().message(), HasSubstr("pp 3 (may be 1, 2, 4, 8)"));
  o.pp = 2;
  const auto two = Find(Dense("deepseek", {61}), 8, o);
  ASSERT_TRUE(two.ok()) << two.status().message();
}

}  // namespace
}  // namespace meshwright::planner
