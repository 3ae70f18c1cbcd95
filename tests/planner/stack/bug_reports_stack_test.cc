// Public failure reports that concern stacks other than ours: the right answer to each, and to
// others of its kind. Bnn: the report's number in the project's list; links in the comments.
#include <gtest/gtest.h>

#include "planner/ir/load_model.h"
#include "planner/predict/model_flops.h"
#include "planner/space/legal.h"
#include "planner/stack/step.h"
#include "topologies/cluster_io.h"

namespace meshwright::planner::stack {
namespace {

constexpr double kGB = 1e9;

struct Machine {
  std::unique_ptr<StackStageCosts> costs;
  double device_bytes = 0.0;
};

Machine On(const ModuleSpec& module, const std::string& stack, const std::string& cluster,
           int64_t gpus, const std::string& profile, int64_t sequence, bool frozen = false) {
  CostInputs inputs;
  inputs.module = module;
  inputs.stack = LoadStack(stack).value();
  inputs.fabric =
      FabricOf(topologies::ResolveCluster(cluster, {})->WithDevices(gpus).value()).value();
  inputs.profile = cost::LoadDeviceProfile(profile).value();
  inputs.sequence = sequence;
  inputs.frozen = frozen;
  const double bytes = static_cast<double>(inputs.profile.memory.value.value());
  return {StackStageCosts::Make(std::move(inputs)).value(), bytes};
}

ModuleSpec Model(const std::string& name) {
  return LoadModel(name)->modules.front();
}

StageMemory Fullest(Machine& m, const Split& split, LayerMode mode) {
  const StepPrediction p =
      PredictStep(*m.costs, split, EvenStages(m.costs->module(), split, mode).value());
  StageMemory fullest = p.memory.front();
  for (const StageMemory& stage : p.memory) {
    if (stage.total() > fullest.total()) fullest = stage;
  }
  return fullest;
}

std::vector<std::string> WhyIllegal(Machine& m, const Split& split, int64_t gpus) {
  space::SpaceOptions options;
  options.gpus = {gpus};
  options.global_batch = split.dp * split.micro_batch * split.micro_batches;
  const std::vector<space::DeviceGroup> groups = {{"gpus", m.costs.get(), m.device_bytes, gpus}};
  return space::WhyIllegal(groups, options, gpus, split);
}

/// github.com/hiyouga/LlamaFactory/issues/747: 70B with adapters on 24 x A100 40 GB,
/// micro-batch 16.
TEST(BugReports, B08FrozenWeightsNeedZero3AndSmallMicroBatches) {
  Machine m = On(Model("llama-2-70b"), "fsdp", "dgx-a100-40", 24, "a100-40", 2048, true);
  Split split;
  split.dp = 24;
  split.micro_batches = 4;
  split.micro_batch = 16;
  split.sharding = ShardingLevel::kZero2;
  const StageMemory whole = Fullest(m, split, LayerMode::kFull);
  EXPECT_GT(whole.parameters, m.device_bytes);  // frozen weights alone
  split.sharding = ShardingLevel::kZero3;
  const StageMemory sixteen = Fullest(m, split, LayerMode::kFull);
  EXPECT_GT(sixteen.total(), m.device_bytes);
  // The layers' inputs: 2 x 2048 x 16 x 8192 x 80 B = 42.9 GB; embedding and head keep some more.
  EXPECT_GE(sixteen.activations / kGB, 42.9);
  EXPECT_LE(sixteen.activations / kGB, 1.06 * 42.9);
  split.micro_batch = 4;
  EXPECT_LT(Fullest(m, split, LayerMode::kFull).total(), m.device_bytes);
  EXPECT_EQ(sixteen.optimizer, 0.0);
  EXPECT_EQ(sixteen.gradients, 0.0);
}

/// github.com/NVIDIA-NeMo/Megatron-Bridge/issues/771: 8B in fp8 on one H100 host.
TEST(BugReports, B12EightBillionInFp8NeedsTensorRanksOrRecomputation) {
  Machine m = On(Model("llama-3-8b"), "megatron", "dgx-h100", 8, "h100-sxm", 8192);
  Split split;
  split.dp = 8;
  split.format = LinearFormat::kFp8;
  split.sharding = ShardingLevel::kZero1;
  split.micro_batches = 16;
  const StageMemory keep = Fullest(m, split, LayerMode::kKeep);
  EXPECT_NEAR((keep.parameters + keep.gradients) / kGB, 48.2, 0.3);
  EXPECT_NEAR(keep.optimizer / kGB, 12.0, 0.1);
  EXPECT_GT(keep.total(), m.device_bytes);
  EXPECT_LT(Fullest(m, split, LayerMode::kFull).total(), m.device_bytes);
  split.tp = 2;
  split.dp = 4;
  split.sequence_parallel = true;
  EXPECT_LT(Fullest(m, split, LayerMode::kKeep).total(), m.device_bytes);
}

/// github.com/NVIDIA/Megatron-LM/issues/597: LLaMA-7B on 8 GPUs.
TEST(BugReports, B15SevenBillionFitsWithMicroBatchesOfOneNotTwo) {
  Machine m = On(Model("llama-2-7b"), "megatron", "dgx-a100-80", 8, "a100-80", 4096);
  Split split;
  split.dp = 8;
  split.sharding = ShardingLevel::kZero1;
  split.micro_batch = 2;
  split.micro_batches = 8;
  const StageMemory two = Fullest(m, split, LayerMode::kKeep);
  EXPECT_NEAR((two.parameters + two.gradients + two.optimizer) / kGB, 50.5, 0.3);
  // 30.9 GB by the estimator of the report; kernels that keep their inputs too keep more.
  EXPECT_NEAR(two.activations / kGB, 30.9, 0.15 * 30.9);
  EXPECT_GT(two.total(), m.device_bytes);
  split.micro_batch = 1;
  split.micro_batches = 16;
  EXPECT_LT(Fullest(m, split, LayerMode::kKeep).total(), m.device_bytes);
}

/// github.com/NVIDIA/Megatron-LM/issues/654: bytes of states by gradients' format and sharding.
TEST(BugReports, B14StatesAreSixPlusTwelveOverRanks) {
  Machine m = On(Model("llama-3-8b"), "megatron", "dgx-h100", 64, "h100-sxm", 4096);
  for (const int64_t dp : {2, 4, 64}) {
    Split split;
    split.dp = dp;
    split.sharding = ShardingLevel::kZero1;
    const StageMemory memory = Fullest(m, split, LayerMode::kFull);
    const double parameters = memory.parameters / 2;
    EXPECT_NEAR((memory.parameters + memory.gradients + memory.optimizer) / parameters,
                6.0 + 12.0 / static_cast<double>(dp), 1e-9);
  }
}

/// github.com/NVIDIA-NeMo/Speech/issues/14838: the expert product of tp1 pp2 ep2 etp1 is 4.
TEST(BugReports, B18ExpertProductDividesTheWorldAndChunksNeedLayers) {
  Machine m = On(Model("mixtral-8x7b"), "megatron", "dgx-h100", 8, "h100-sxm", 4096);
  Split split;
  split.pp = 2;
  split.ep = 2;
  split.dp = 2;
  split.micro_batches = 256;
  EXPECT_TRUE(WhyIllegal(m, split, 4).empty());
  EXPECT_EQ(split.expert_dp(), 1);
  split.virtual_stages = 24;
  split.schedule = Schedule::kInterleaved;
  EXPECT_FALSE(WhyIllegal(m, split, 4).empty());  // 48 chunks for 32 layers
  split.virtual_stages = 1;
  split.schedule = Schedule::kOneForwardOneBackward;
  split.ep = 4;
  EXPECT_FALSE(WhyIllegal(m, split, 4).empty());  // 4 does not divide tp x cp x dp = 2
}

/// github.com/deepspeedai/DeepSpeed/issues/237: 27B, model parallel 8, ZeRO-2 on 8 V100.
TEST(BugReports, B62ShardingOverOneRankShardsNothing) {
  ModuleSpec module = Model("gpt3-175b");
  module.hidden = 6144;
  module.layer_kinds[0].attention.heads = 48;
  module.layer_kinds[0].attention.kv_heads = 48;
  module.layer_kinds[0].mlp.ffn = 4 * 6144;
  module.layers.assign(60, 0);
  Machine m = On(module, "deepspeed", "dgx-1-v100", 8, "v100-32", 1024);
  Split split;
  split.tp = 8;
  split.format = LinearFormat::kFp16;
  split.sharding = ShardingLevel::kZero2;
  split.micro_batch = 8;
  const StageMemory one = Fullest(m, split, LayerMode::kFull);
  EXPECT_NEAR((one.parameters + one.gradients + one.optimizer) / kGB, 54.4, 1.0);
  EXPECT_GT(one.total(), m.device_bytes);
  split.dp = 8;
  split.micro_batch = 1;
  const StageMemory eight = Fullest(m, split, LayerMode::kFull);
  EXPECT_NEAR((eight.parameters + eight.gradients + eight.optimizer) / kGB, 12.8, 0.3);
  EXPECT_LT(eight.total(), m.device_bytes);
}

/// github.com/hpcaitech/ColossalAI/issues/6202: pp 3 on 8 ranks.
TEST(BugReports, B65StagesMustDivideTheWorld) {
  Machine m = On(Model("deepseek-v3"), "megatron", "dgx-h100", 8, "h100-sxm", 4096);
  for (const int64_t pp : {1, 2, 4, 8}) {
    Split split;
    split.pp = pp;
    split.dp = 8 / pp;
    split.micro_batches = pp;
    EXPECT_TRUE(WhyIllegal(m, split, 8).empty()) << pp;
    const auto stages = EvenStages(m.costs->module(), split, LayerMode::kFull).value();
    int64_t layers = 0;
    for (const StageContent& stage : stages) {
      for (const ModeCounts& kind : stage.kinds) layers += kind.total();
    }
    EXPECT_EQ(layers, 61) << pp;
  }
  Split split;
  split.pp = 3;
  split.dp = 2;
  split.micro_batches = 3;
  EXPECT_FALSE(WhyIllegal(m, split, 8).empty());
}

/// github.com/NVIDIA/Megatron-LM/issues/1459: expert and context parallelism together.
TEST(BugReports, B67ExpertAndContextRanksShareTheWorld) {
  Machine m = On(Model("mixtral-8x7b"), "megatron", "dgx-h100", 8, "h100-sxm", 4096);
  Split split;
  split.cp = 2;
  split.ep = 4;
  split.dp = 4;
  EXPECT_TRUE(WhyIllegal(m, split, 8).empty());
  EXPECT_EQ(split.expert_dp(), 2);
}

/// github.com/alibaba/Pai-Megatron-Patch/issues/485: FLOPs of experts by their own width.
TEST(BugReports, B54ExpertFlopsUseTheExpertsWidth) {
  const ModuleSpec module = Model("qwen3-235b-a22b");
  const MoeSpec& moe = *module.layer_kinds.back().mlp.moe;
  EXPECT_EQ(moe.expert_ffn, 1536);
  EXPECT_EQ(moe.top_k, 8);
  const StackSpec stack = LoadStack("megatron").value();
  const Split split;
  const ItemContext context{stack, module, split, 1024};
  double expert_flops = 0;
  for (const StackOp& op : LayerOps(context, module.layer_kinds.back()).ops) {
    if (op.phase == Phase::kForward && op.work.batch == 128) {
      expert_flops += op.work.flops.value();
    }
  }
  // 2 x 3 matrices x tokens x top-k x expert width x hidden.
  EXPECT_NEAR(expert_flops, 6.0 * 1024 * 8 * 1536 * static_cast<double>(module.hidden), 1.0);
}

/// github.com/ai-dynamo/dynamo/issues/8571: which expert splits of a 671B model hold its weights.
TEST(BugReports, B73ExpertRanksDecideWhatWeightsFit) {
  Machine m = On(Model("deepseek-v3"), "megatron", "dgx-h100", 32, "h100-sxm", 4096, true);
  const auto one_byte_weights = [&](int64_t tp, int64_t ep, int64_t dp) {
    Split split;
    split.tp = tp;
    split.ep = ep;
    split.dp = dp;
    split.sequence_parallel = tp > 1;
    // Weights in 16 bits; the report's are in 8.
    return Fullest(m, split, LayerMode::kFull).parameters / 2 / kGB;
  };
  EXPECT_NEAR(one_byte_weights(1, 8, 8), 98.8, 3.0);  // over 80: to be dropped
  EXPECT_NEAR(one_byte_weights(1, 16, 16), 58.0, 3.0);
  EXPECT_NEAR(one_byte_weights(1, 32, 32), 37.5, 3.0);
  EXPECT_GT(one_byte_weights(8, 8, 1), 80.0);
}

/// github.com/uw-syfi/piper/issues/13: tied embeddings on two stages.
TEST(BugReports, B47TiedEmbeddingsAreHeldByBothEndsAndSummed) {
  const ModuleSpec module = Model("gpt2");
  const StackSpec stack = LoadStack("megatron").value();
  Split split;
  const auto head = [&] { return HeadOps({stack, module, split, 1024}).parameters.dense; };
  const double rows = static_cast<double>(ItemContext{stack, module, split, 1024}.padded_vocab());
  const double norm = 2 * 768;
  EXPECT_DOUBLE_EQ(head(), norm);
  split.pp = 2;
  EXPECT_DOUBLE_EQ(head(), norm + rows * 768);
}

}  // namespace
}  // namespace meshwright::planner::stack
