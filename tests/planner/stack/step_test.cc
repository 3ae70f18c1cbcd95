#include "planner/stack/step.h"

#include <gtest/gtest.h>

#include <cmath>

#include "planner/ir/load_model.h"
#include "topologies/cluster_io.h"

namespace meshwright::planner::stack {
namespace {

std::unique_ptr<StackStageCosts> Costs(const std::string& model, const std::string& stack,
                                       int64_t sequence, const std::string& cluster = "dgx-h100",
                                       const std::string& profile = "h100-sxm") {
  CostInputs inputs;
  inputs.module = LoadModel(model)->modules.front();
  inputs.stack = LoadStack(stack).value();
  inputs.fabric =
      FabricOf(topologies::ResolveCluster(cluster, {})->WithDevices(64).value()).value();
  inputs.profile = cost::LoadDeviceProfile(profile).value();
  inputs.sequence = sequence;
  return StackStageCosts::Make(std::move(inputs)).value();
}

StepPrediction Predict(StackStageCosts& costs, const Split& split,
                       LayerMode mode = LayerMode::kKeep) {
  return PredictStep(costs, split, EvenStages(costs.module(), split, mode).value());
}

TEST(EvenStages, CountsEmbeddingAndHeadWhereLayersDoNotDivide) {
  ModuleSpec module = LoadModel("llama-3.1-405b")->modules.front();
  ASSERT_EQ(module.layer_count(), 126);
  Split split;
  split.pp = 8;
  split.virtual_stages = 8;
  const auto stages = EvenStages(module, split, LayerMode::kKeep).value();
  EXPECT_EQ(stages.front().kinds[0].total(), 15);
  EXPECT_EQ(stages[1].kinds[0].total(), 16);
  EXPECT_EQ(stages.back().kinds[0].total(), 15);
  EXPECT_TRUE(stages.front().embedding && stages.back().head);
}

TEST(EvenStages, NoLayerIsLostOrDoubled) {
  for (int64_t layers = 1; layers <= 40; ++layers) {
    ModuleSpec module = LoadModel("llama-3-8b")->modules.front();
    module.layers.assign(static_cast<size_t>(layers), 0);
    for (int64_t pp = 1; pp <= 8; ++pp) {
      for (int64_t v = 1; v <= 3; ++v) {
        Split split;
        split.pp = pp;
        split.virtual_stages = v;
        const auto stages = EvenStages(module, split, LayerMode::kFull);
        if (layers < pp * v && layers + 2 != pp * v) {
          EXPECT_EQ(stages.status().code(), StatusCode::kInfeasible);
          continue;
        }
        int64_t sum = 0;
        for (const StageContent& stage : *stages) {
          sum += stage.kinds[0].total();
          EXPECT_GE(stage.kinds[0].total(), v - 2);  // chunks of embedding and head alone
        }
        EXPECT_EQ(sum, layers) << "pp " << pp << " v " << v;
      }
    }
  }
}

TEST(PredictStep, PartsAddUpAndTheBubbleShrinks) {
  const auto costs = Costs("llama-3-8b", "megatron", 4096);
  Split split;
  split.pp = 4;
  split.dp = 2;
  split.micro_batches = 8;
  split.sharding = ShardingLevel::kZero1;
  const StepPrediction plain = Predict(*costs, split);
  EXPECT_NEAR(plain.parts.total, plain.parts.work + plain.parts.bubble + plain.parts.end, 1e-9);
  EXPECT_GT(plain.parts.bubble, 0);
  EXPECT_LT(plain.low_s, plain.parts.total);
  EXPECT_GT(plain.high_s, plain.parts.total);
  Split interleaved = split;
  interleaved.virtual_stages = 4;
  interleaved.schedule = Schedule::kInterleaved;
  EXPECT_LT(Predict(*costs, interleaved).parts.total, plain.parts.total);
  Split zero_bubble = split;
  zero_bubble.schedule = Schedule::kZeroBubbleH1;
  EXPECT_LT(Predict(*costs, zero_bubble).parts.total, plain.parts.total);
  Split more = split;
  more.micro_batches = 16;
  const StepPrediction longer = Predict(*costs, more);
  EXPECT_NEAR(longer.parts.total - plain.parts.total, plain.parts.work, 1e-6);
}

TEST(PredictStep, RecomputationCostsTimeAndSavesMemory) {
  const auto costs = Costs("gpt3-175b", "megatron-2022", 2048, "dgx-a100-80", "a100-80");
  Split split;
  split.tp = 8;
  split.pp = 8;
  split.micro_batches = 64;
  split.sequence_parallel = true;
  split.format = LinearFormat::kFp16;
  const StepPrediction keep = Predict(*costs, split, LayerMode::kKeep);
  const StepPrediction selective = Predict(*costs, split, LayerMode::kSelective);
  const StepPrediction full = Predict(*costs, split, LayerMode::kFull);
  EXPECT_LT(keep.parts.total, selective.parts.total);
  EXPECT_LT(selective.parts.total, full.parts.total);
  EXPECT_GT(keep.memory[0].activations, selective.memory[0].activations);
  EXPECT_GT(selective.memory[0].activations, full.memory[0].activations);
  // Full recomputation runs forward again: about a third more of the products.
  EXPECT_NEAR(full.parts.work / keep.parts.work, 4.0 / 3, 0.06);
}

TEST(PredictStep, ShardingDividesStates) {
  const auto costs = Costs("llama-3-8b", "fsdp2", 4096);
  Split split;
  split.dp = 8;
  const auto memory = [&](ShardingLevel level) {
    split.sharding = level;
    return Predict(*costs, split).memory.front();
  };
  const StageMemory none = memory(ShardingLevel::kNone);
  const StageMemory zero1 = memory(ShardingLevel::kZero1);
  const StageMemory zero2 = memory(ShardingLevel::kZero2);
  const StageMemory zero3 = memory(ShardingLevel::kZero3);
  EXPECT_DOUBLE_EQ(zero1.optimizer, none.optimizer / 8);
  EXPECT_DOUBLE_EQ(zero1.gradients, none.gradients);
  EXPECT_DOUBLE_EQ(zero2.gradients, none.gradients / 8);
  EXPECT_DOUBLE_EQ(zero2.parameters, none.parameters);
  EXPECT_DOUBLE_EQ(zero3.parameters, none.parameters / 8);
}

TEST(PredictStep, PipelinesKeepWholeParametersUnlessTheyReshard) {
  Split split;
  split.pp = 4;
  split.dp = 2;
  split.micro_batches = 4;
  split.sharding = ShardingLevel::kZero3;
  const auto whole = Costs("llama-3-8b", "fsdp2", 4096);
  const StageMemory stays = Predict(*whole, split).memory[1];
  const double parameters = stays.optimizer * 2 / 8;  // two ranks share 8 bytes of each
  EXPECT_DOUBLE_EQ(stays.parameters, parameters * (4.0 / 2 + 2));
  EXPECT_DOUBLE_EQ(stays.gradients, parameters * 4);
  const auto freed = Costs("llama-3-8b", "galvatron", 4096);
  const StageMemory shards = Predict(*freed, split).memory[1];
  EXPECT_DOUBLE_EQ(shards.parameters, parameters * 4 / 2);
  EXPECT_DOUBLE_EQ(shards.gradients, parameters * 4 / 2);
}

TEST(PredictStep, StagesKeepWhatTheySendWhereTheStackDoes) {
  Split split;
  split.pp = 4;
  split.micro_batches = 8;
  const auto activations = [&](bool outputs, int64_t chunks) {
    split.virtual_stages = chunks;
    split.schedule = chunks > 1 ? Schedule::kInterleaved : Schedule::kOneForwardOneBackward;
    CostInputs inputs = Costs("llama-3-8b", "fsdp2", 4096)->inputs();
    inputs.stack.lowering.keeps_stage_outputs = outputs;
    const auto costs = StackStageCosts::Make(std::move(inputs)).value();
    std::vector<double> bytes;
    for (const StageMemory& m : Predict(*costs, split).memory) bytes.push_back(m.activations);
    return bytes;
  };
  for (const int64_t chunks : {1, 2}) {
    const std::vector<double> without = activations(false, chunks),
                              with = activations(true, chunks);
    for (int64_t p = 0; p < 4; ++p) {
      const double sent = p == 3 ? 0.0 : 2.0 * 4096 * 4096 * static_cast<double>(chunks);
      EXPECT_DOUBLE_EQ(with[static_cast<size_t>(p)] - without[static_cast<size_t>(p)],
                       sent * InFlight(split, p));
    }
  }
}

TEST(PredictStep, EndsThatTensorRanksDoNotShareAreGatheredWhole) {
  Split split;
  split.tp = 4;
  split.dp = 2;
  split.sequence_parallel = true;
  split.sharding = ShardingLevel::kZero3;
  const auto transient = [&](bool shared) {
    CostInputs inputs = Costs("llama-3-8b", "galvatron", 8192)->inputs();
    inputs.stack.lowering.vocabulary_parallel = shared;
    return Predict(*StackStageCosts::Make(std::move(inputs)).value(), split).memory[0].transient;
  };
  // Three quarters of the head's weights in 16 bits; the logits are the largest temporary in both,
  // padded to 4 x 128 columns where they are cut.
  const double logits = 8192.0 / 4 * 4 * 3;
  EXPECT_NEAR(transient(false) - transient(true), 2.0 * 128256 * 4096 * 3 / 4, 512 * logits);
}

TEST(PredictStep, ExpertsOfOtherRanksAreNotHeld) {
  const auto costs = Costs("mixtral-8x7b", "megatron", 4096);
  Split split;
  split.dp = 8;
  split.sharding = ShardingLevel::kZero1;
  const double alone = Predict(*costs, split).memory.front().parameters;
  split.ep = 8;
  const double shared = Predict(*costs, split).memory.front().parameters;
  const ModuleSpec& m = costs->module();
  const double experts = 2.0 * 32 * 8 * 3 * static_cast<double>(m.hidden) * 14336;
  EXPECT_NEAR(alone - shared, experts * 7 / 8, 1);
}

/// 16 bytes a parameter without sharding: 2 + 2 of weights and gradients in 16 bits, 12 of fp32
/// master weights and moments; 18 where gradients accumulate in fp32 (Megatron).
TEST(PredictStep, StatesAreEighteenBytesAParameterInMegatron) {
  const auto costs = Costs("llama-3-8b", "megatron", 4096);
  Split split;
  split.sharding = ShardingLevel::kNone;
  const StageMemory m = Predict(*costs, split).memory.front();
  const double parameters = m.parameters / 2;
  EXPECT_NEAR((m.parameters + m.gradients + m.optimizer) / parameters, 18.0, 1e-9);
  split.dp = 16;
  split.sharding = ShardingLevel::kZero1;
  const StageMemory sharded = Predict(*costs, split).memory.front();
  EXPECT_NEAR((sharded.parameters + sharded.gradients + sharded.optimizer) / parameters,
              6.0 + 12.0 / 16, 1e-9);
}

TEST(StackCosts, ProfilesOfCpusAreRefused) {
  CostInputs inputs;
  inputs.profile.name = "cpu";
  const auto made = StackStageCosts::Make(inputs);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidInput);
}

TEST(StackCosts, TablesDependOnWhatTheyShouldAlone) {
  const auto costs = Costs("llama-3-8b", "megatron", 4096);
  Split split;
  split.tp = 2;
  split.dp = 4;
  const ItemTable* first = &costs->Items(split);
  split.micro_batches = 7;
  EXPECT_EQ(first, &costs->Items(split));
  split.micro_batch = 2;
  const ItemTable& larger = costs->Items(split);
  EXPECT_NE(first, &larger);
  EXPECT_GT(larger.layers[0][0].forward_s, first->layers[0][0].forward_s);
}

}  // namespace
}  // namespace meshwright::planner::stack
