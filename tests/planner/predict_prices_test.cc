// Prices of ops and groups, and model FLOPs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

#include "planner/ir/op_schema.h"
#include "planner/predict/model_flops.h"
#include "planner/predict/prices.h"
#include "tests/cost_models/cpu_profile.h"
#include "tests/planner/predict_fixtures.h"

namespace meshwright::planner {
namespace {

using ::testing::HasSubstr;

SplitRequest Request(int64_t tp, int64_t pp, int64_t dp, DType dtype = DType::kBf16) {
  SplitRequest r;
  r.tp = tp;
  r.pp = pp;
  r.dp = dp;
  r.sequence = 128;
  r.global_batch = 8 * dp;
  r.dtype = dtype;
  return r;
}

ModelSpec DeepGpt() {
  ModelSpec model = ShippedModel("gpt-tiny");
  model.modules.front().layers.assign(16, 0);
  return model;
}

TEST(Prices, QueriesOnePathAShapeOfGroup) {
  const Plan plan = PlanOf(DeepGpt(), Request(4, 8, 8));
  const Programs programs = Lowered(plan);
  const Prices prices = PricesOf(plan, ShippedCluster("dgx-h100", 256), ShippedCosts("h100-sxm"));
  for (const Group& group : programs.groups) ASSERT_TRUE(prices.PathOf(group.ranks).ok());
  const int64_t queries = prices.path_queries();
  EXPECT_GE(queries, 3);
  EXPECT_LE(queries, 16) << programs.groups.size() << " groups";
  for (const Group& group : programs.groups) ASSERT_TRUE(prices.PathOf(group.ranks).ok());
  EXPECT_EQ(prices.path_queries(), queries);
}

TEST(Prices, RememberedPathsAreThoseOfTheGroups) {
  const Plan plan = PlanOf(DeepGpt(), Request(4, 2, 4));
  const Programs programs = Lowered(plan);
  const auto cluster = ShippedCluster("aws-p4d", 32);
  const Prices warm = PricesOf(plan, cluster, ShippedCosts("a100-40"));
  for (const Group& group : programs.groups) {
    const Prices cold = PricesOf(plan, cluster, ShippedCosts("a100-40"));
    const auto a = warm.PathOf(group.ranks);
    const auto b = cold.PathOf(group.ranks);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(*a, *b) << group.name;
  }
}

TEST(Prices, PathTellsHostsApart) {
  Plan plan = PlanOf(DeepGpt(), Request(2, 1, 8));
  const Prices prices = PricesOf(plan, ShippedCluster("dgx-h100", 16), ShippedCosts("h100-sxm"));
  const auto inside = prices.PathOf(std::array<int32_t, 2>{0, 1});
  const auto across = prices.PathOf(std::array<int32_t, 2>{0, 8});
  ASSERT_TRUE(inside.ok() && across.ok());
  EXPECT_EQ(inside->hosts, 1);
  EXPECT_DOUBLE_EQ(inside->local_bandwidth.value(), 450e9);
  EXPECT_EQ(across->hosts, 2);
  EXPECT_DOUBLE_EQ(across->network_bandwidth.value(), 50e9);
  EXPECT_EQ(inside->fabric, cost::Fabric::kUsual);
  EXPECT_EQ(across->fabric, cost::Fabric::kInfiniBand);
  const Prices efa = PricesOf(plan, ShippedCluster("aws-p5", 16), ShippedCosts("h100-sxm"));
  EXPECT_EQ(efa.PathOf(std::array<int32_t, 2>{0, 8})->fabric, cost::Fabric::kEfa);
}

/// Rows of 50257 elements start anywhere, which the products' copies of tiles cannot use.
TEST(Prices, ProductsOfAVocabularyThatIsNotPaddedTakeLonger) {
  Plan plan = PlanOf(DeepGpt(), Request(1, 1, 1));
  const auto head_time = [&](int64_t vocab) {
    ModelSpec model = DeepGpt();
    model.modules.front().vocab = vocab;
    const Programs programs = Lowered(PlanOf(model, Request(1, 1, 1)));
    const Prices prices = PricesOf(plan, ShippedCluster("h200-x2", 2), ShippedCosts("h200-sxm"));
    const RankProgram& program = programs.programs.front();
    const auto all = prices.PriceBlocks(program);
    Nanoseconds sum(0);
    for (size_t b = 0; b < program.blocks.size(); ++b) {
      for (size_t o = 0; o < program.blocks[b].ops.size(); ++o) {
        const OpWork work = WorkOf(program.blocks[b], program.blocks[b].ops[o], program);
        const bool product = work.kind == WorkKind::kMatrixProduct;
        if (product && std::max({work.m, work.n, work.k}) == vocab) sum += all[b][o].time;
      }
    }
    return static_cast<double>(sum.value());
  };
  EXPECT_GT(head_time(50257), 2 * head_time(50304));
}

TEST(Prices, GpuOpsCostWhatTheCostModelSays) {
  const Plan plan = PlanOf(DeepGpt(), Request(2, 1, 1));
  const Programs programs = Lowered(plan);
  const cost::CostModel costs = ShippedCosts("h100-sxm");
  const Prices prices = PricesOf(plan, ShippedCluster("dgx-h100", 8), costs);
  const RankProgram& program = programs.programs.front();
  const auto all = prices.PriceBlocks(program);
  int products = 0;
  for (size_t b = 0; b < program.blocks.size(); ++b) {
    for (size_t o = 0; o < program.blocks[b].ops.size(); ++o) {
      const Op& op = program.blocks[b].ops[o];
      if (IsCollective(op.kind) || IsMessage(op.kind)) continue;
      const OpWork work = WorkOf(program.blocks[b], op, program);
      EXPECT_EQ(all[b][o].core_milli, 0);
      if (work.kind != WorkKind::kMatrixProduct) continue;
      ++products;
      cost::Work expected;
      expected.kind = cost::WorkKind::kGemm;
      expected.precision = cost::Precision::kBf16;
      expected.flops =
          Flops(2.0 * static_cast<double>(work.m * work.n) * static_cast<double>(work.k));
      expected.m = work.m;
      expected.n = work.n;
      expected.k = work.k;
      expected.accumulate = op.kind == OpKind::kLinearWeightGrad;
      expected.read = Bytes(work.bytes_read);
      expected.written = Bytes(work.bytes_written);
      EXPECT_EQ(all[b][o].time, costs.PriceOp(expected));
    }
  }
  EXPECT_GT(products, 8);
}

/// Price of an all-reduce of 1,000 elements of four CPU ranks on `cores` cores.
NodePrice AllReduceOfFour(int64_t cores) {
  const Plan plan = PlanOf(DeepGpt(), Request(4, 1, 1, DType::kF32));
  cost::DeviceProfile profile = cost::InventedCpu();
  profile.cpu->cores.value = cores;
  profile.cpu->kernels.push_back(
      {"all_reduce", cost::Precision::kFp32, cost::Invented(BytesPerSecond(2e9))});
  const Prices prices = PricesOf(plan, CpuRanks(4, static_cast<int>(cores)),
                                 ModelOf(profile, {cost::Precision::kFp32}));
  RankProgram program;
  Block block;
  block.tensors = {{"x", DType::kF32, {1000}, Region::kScratch, 0}};
  Op op;
  op.kind = OpKind::kAllReduce;
  op.operands = {{0, Access::kReadWrite}};
  return prices.PriceCommunication(program, CommunicatorKind::kTensor, block, op,
                                   prices.PathOf(std::array<int32_t, 4>{0, 1, 2, 3}).value());
}

// 4 members read and written, 4000 bytes each, at 2 GB/s; 2 further members of 1 us.
constexpr double kMovedSeconds = 8 * 4000 / 2e9;
constexpr double kFurtherSeconds = 2e-6;

TEST(Prices, OpsOfSeveralGpusCostALaunchMore) {
  const auto costs = ShippedCosts("h200-sxm");
  const auto cluster = ShippedCluster("h200-x2", 2);
  const Plan alone = PlanOf(DeepGpt(), Request(1, 1, 1));
  const Plan both = PlanOf(DeepGpt(), Request(1, 1, 2));
  const RankProgram program = Lowered(alone).programs.front();
  const Prices one = PricesOf(alone, cluster, costs), two = PricesOf(both, cluster, costs);
  const int64_t more = ToNanoseconds(costs.profile().gpu->partnered_launch.value).value();
  EXPECT_EQ(more, 1000);
  for (const Block& block : program.blocks) {
    for (const Op& op : block.ops) {
      if (IsCollective(op.kind) || IsMessage(op.kind)) continue;
      const int64_t difference = two.PriceOp(program, block, op).time.value() -
                                 one.PriceOp(program, block, op).time.value();
      EXPECT_EQ(difference, IsHost(op.kind) ? 0 : more) << ToString(op.kind);
    }
  }
}

TEST(Prices, CpuCollectiveOnSharedCoresTakesACoreAllTheTime) {
  const NodePrice price = AllReduceOfFour(3);
  EXPECT_NEAR(static_cast<double>(price.time.value()),
              (kMovedSeconds + 5e-6 + kFurtherSeconds) * 1e9, 2);
  EXPECT_EQ(price.core_milli, 1000);
}

TEST(Prices, CpuCollectiveOnOwnCoresTakesTheLatencyOfThePath) {
  const NodePrice price = AllReduceOfFour(4);
  const double seconds = kMovedSeconds + 3e-6 + kFurtherSeconds;
  EXPECT_NEAR(static_cast<double>(price.time.value()), seconds * 1e9, 2);
  EXPECT_NEAR(price.core_milli, 1000 * kMovedSeconds / seconds, 1);
}

TEST(Prices, CpuRanksShareCoresByReplicaThenByPipeline) {
  EXPECT_EQ(CorePlacesOf(4, 2, 2, 4), CorePlaces::kOwn);
  EXPECT_EQ(CorePlacesOf(8, 2, 2, 2), CorePlaces::kReplica);
  EXPECT_EQ(CorePlacesOf(8, 2, 2, 4), CorePlaces::kPipeline);
  EXPECT_EQ(CorePlacesOf(4, 2, 1, 2), CorePlaces::kPipeline);
  EXPECT_EQ(CorePlacesOf(4, 1, 1, 2), CorePlaces::kAny);
}

TEST(Prices, CpuOpsAreSlowerOnSharedCores) {
  const Plan plan = PlanOf(DeepGpt(), Request(4, 1, 1, DType::kF32));
  const Programs programs = Lowered(plan);
  const auto sum = [&](int64_t cores) {
    cost::DeviceProfile profile = cost::InventedCpu();
    profile.cpu->cores.value = cores;
    profile.cpu->shared_core_efficiency.value = 0.8;
    const Prices prices = PricesOf(plan, CpuRanks(4, static_cast<int>(cores)),
                                   ModelOf(profile, {cost::Precision::kFp32}));
    double seconds = 0;
    for (const auto& block : prices.PriceBlocks(programs.programs.front())) {
      for (const NodePrice& price : block) seconds += ToSeconds(price.time).value();
    }
    return seconds;
  };
  EXPECT_NEAR(sum(4) / sum(2), 0.8, 1e-3);
}

TEST(Prices, ZeroOneCountsTheOwnedShareOfBuckets) {
  SplitRequest request = Request(1, 1, 4, DType::kF32);
  request.sharding = Sharding::kZero1;
  const Plan sharded = PlanOf(DeepGpt(), request);
  const Programs programs = Lowered(sharded);
  const RankProgram& program = programs.programs.front();
  for (const Block& block : program.blocks) {
    for (const Op& op : block.ops) {
      if (op.kind != OpKind::kOptimizerStep) continue;
      const OpWork whole = WorkOf(block, op, program);
      const cost::Work owned = CostWork(program, block, op, 0.25);
      const int64_t state = Find(block, op, "state")->bytes();
      EXPECT_NEAR(static_cast<double>(owned.read.value()),
                  static_cast<double>(state) + static_cast<double>(whole.bytes_read - state) / 4,
                  1);
    }
  }
}

TEST(Prices, NamesVariantsOfKernels) {
  OpAttributes a;
  a.norm = NormKind::kLayerNorm;
  a.activation = Activation::kSilu;
  EXPECT_EQ(KernelName(OpKind::kNormGrad, a), "norm_grad.layer_norm");
  EXPECT_EQ(KernelName(OpKind::kActivation, a), "activation.silu");
  a.gated = true;
  EXPECT_EQ(KernelName(OpKind::kActivation, a), "activation.silu.gated");
  EXPECT_EQ(KernelName(OpKind::kCopy, a), "copy");
}

TEST(Prices, RefuseWhatDoesNotFit) {
  Plan plan = PlanOf(DeepGpt(), Request(2, 1, 1));
  const cost::CostModel costs = ShippedCosts("h100-sxm");
  const auto cluster = ShippedCluster("dgx-h100", 8);
  const auto message = [&](const Plan& p, const topologies::Cluster& c, const cost::CostModel& m) {
    const auto prices = MakePrices(p, c, m);
    EXPECT_EQ(prices.status().code(), StatusCode::kInvalidInput);
    return prices.status().message();
  };
  Plan wrong = plan;
  wrong.placement = {0};
  EXPECT_THAT(message(wrong, cluster, costs), HasSubstr("1 entries for 2 ranks"));
  wrong.placement = {0, 8};
  EXPECT_THAT(message(wrong, cluster, costs), HasSubstr("device 8"));
  wrong.placement = {3, 3};
  EXPECT_THAT(message(wrong, cluster, costs), HasSubstr("two ranks"));
  EXPECT_THAT(message(plan, CpuRanks(2, 2), costs), HasSubstr("is of a gpu"));
  wrong = plan;
  wrong.dtype = DType::kF64;
  EXPECT_THAT(message(wrong, cluster, costs), HasSubstr("fp64"));
}

TEST(ModelFlops, DenseModelByHand) {
  // Llama-3-8B: q and o 4096^2, k and v 4096 x 1024, three matrices of 4096 x 14336, head 128256 x
  // 4096.
  const ModuleSpec m = ShippedModel("llama-3-8b").modules.front();
  const double layer = 2.0 * 4096 * 4096 + 2.0 * 4096 * 1024 + 3.0 * 4096 * 14336;
  const double weights = 32 * layer + 128256.0 * 4096;
  EXPECT_DOUBLE_EQ(MatmulParametersPerToken(m), weights);
  const double attention = 32 * 6.0 * 8192 * 8192 / 2 * 2 * 4096;
  EXPECT_DOUBLE_EQ(ModelFlopsPerStep(m, 8192, 3).value(), 3 * (6 * weights * 8192 + attention));
}

TEST(ModelFlops, ExpertsCountByTopKAndTheirOwnWidth) {
  // Qwen3-235B-A22B: 8 of 128 experts of width 1536; counting the dense width 12288 for each of 8
  // would be 8 times as much (bug report B54).
  const ModuleSpec m = ShippedModel("qwen3-235b-a22b").modules.front();
  const LayerSpec& layer = m.layer_kinds.front();
  ASSERT_TRUE(layer.mlp.moe.has_value());
  ASSERT_EQ(layer.mlp.moe->top_k * layer.mlp.moe->expert_ffn, 12288);
  ModuleSpec dense = m;
  for (LayerSpec& kind : dense.layer_kinds) {
    kind.mlp.moe.reset();
    kind.mlp.ffn = 12288;
  }
  const double routers = static_cast<double>(m.layer_count() * m.hidden * layer.mlp.moe->experts);
  EXPECT_DOUBLE_EQ(MatmulParametersPerToken(m) - routers, MatmulParametersPerToken(dense));
}

TEST(ModelFlops, MfuIsAgainstTheDensePeak) {
  // 420 TFLOP/s on an H200 are 42.4 % of the dense 989.5, not 21 % of the sparse figure (bug report
  // B52).
  const auto profile = cost::LoadDeviceProfile("h200-sxm");
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_NEAR(420e12 / cost::PeakOf(*profile, cost::Precision::kBf16)->value(), 0.424, 0.001);
}

TEST(ModelFlops, PairsOfWindowsAndMasks) {
  AttentionSpec a;
  a.causal = true;
  EXPECT_DOUBLE_EQ(AttentionPairs(a, 100), 5000);
  a.window = 10;  // 10 keys a query, fewer at the start
  EXPECT_DOUBLE_EQ(AttentionPairs(a, 100), 100 * 10 - 50);
  a.window = 1000;
  EXPECT_DOUBLE_EQ(AttentionPairs(a, 100), 5000);
  a.causal = false;
  a.window = 0;
  EXPECT_DOUBLE_EQ(AttentionPairs(a, 100), 10000);
}

TEST(ModelFlops, FrozenModulesComputeForwardOnly) {
  ModuleSpec m = ShippedModel("gpt2").modules.front();
  const double trained = ModelFlopsPerStep(m, 128, 2).value();
  m.trained = false;
  EXPECT_NEAR(ModelFlopsPerStep(m, 128, 2).value(), trained / 3, trained * 1e-12);
}

}  // namespace
}  // namespace meshwright::planner
