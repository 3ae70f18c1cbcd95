// What the op lists of stacks add up to, against sums and formulas that share nothing with them.
#include "planner/stack/item_ops.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "planner/ir/load_model.h"
#include "planner/predict/model_flops.h"

namespace meshwright::planner::stack {
namespace {

ModuleSpec Module(const std::string& name) {
  const Result<ModelSpec> model = LoadModel(name);
  EXPECT_TRUE(model.ok()) << name << ": " << model.status().message();
  return model->modules.front();
}

StackSpec Stack(const std::string& name) {
  const Result<StackSpec> stack = LoadStack(name);
  EXPECT_TRUE(stack.ok()) << stack.status().message();
  return *stack;
}

/// Parameters of all ranks of one replica, experts counted once.
double AllParameters(const ModuleSpec& module, const Split& split) {
  const StackSpec stack = Stack("megatron");
  const ItemContext context{stack, module, split, 128};
  double dense = EmbeddingOps(context).parameters.dense + HeadOps(context).parameters.dense;
  double expert = 0;
  for (const int kind : module.layers) {
    const ItemOps item = LayerOps(context, module.layer_kinds[static_cast<size_t>(kind)]);
    dense += item.parameters.dense;
    expert += item.parameters.expert;
  }
  return dense + expert * static_cast<double>(split.ep * split.expert_tp);
}

TEST(ItemOps, ParametersOfOneRankAreTheModelsButForPadding) {
  for (const char* name : {"gpt2", "llama-3-8b", "qwen2.5-7b", "mixtral-8x7b", "deepseek-v3",
                           "qwen3-30b-a3b", "gpt3-175b"}) {
    const ModuleSpec module = Module(name);
    const Split split;
    const StackSpec stack = Stack("megatron");
    const ItemContext context{stack, module, split, 128};
    const ParameterCount count = CountParameters(module);
    const double padding = static_cast<double>((context.padded_vocab() - module.vocab) *
                                               module.hidden * (module.tied_embeddings ? 1 : 2));
    // Left out by the lists: norms of single heads, the router's bias (one number a head element
    // or an expert).
    const double total = static_cast<double>(count.total()) + padding;
    EXPECT_NEAR(AllParameters(module, split) / total, 1.0, 3e-5) << name;
  }
}

TEST(ItemOps, ExpertsAreCutOverExpertRanks) {
  const ModuleSpec module = Module("mixtral-8x7b");
  Split split;
  split.dp = 8;
  const double whole = AllParameters(module, split);
  split.ep = 4;
  EXPECT_DOUBLE_EQ(AllParameters(module, split), whole);
  split.expert_tp = 2;
  EXPECT_DOUBLE_EQ(AllParameters(module, split), whole);
}

double ForwardFlops(const ItemOps& item) {
  double flops = 0;
  for (const StackOp& op : item.ops) {
    if (op.phase == Phase::kForward) flops += op.work.flops.value();
  }
  return flops;
}

TEST(ItemOps, ForwardFlopsAreAThirdOfTheModelsFlops) {
  for (const char* name : {"gpt2", "llama-3-8b", "mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b"}) {
    const ModuleSpec module = Module(name);
    Split split;
    split.micro_batch = 2;
    const StackSpec stack = Stack("megatron");
    const ItemContext context{stack, module, split, 1024};
    double flops = ForwardFlops(HeadOps(context));
    for (const int kind : module.layers) {
      flops += ForwardFlops(LayerOps(context, module.layer_kinds[static_cast<size_t>(kind)]));
    }
    const double padded = static_cast<double>(context.padded_vocab() - module.vocab) * 2.0 *
                          static_cast<double>(module.hidden) * 2048;
    const double expected = ModelFlopsPerStep(module, 1024, 2).value() / 3 + padded;
    // Expert rows are rounded up to whole tokens.
    EXPECT_NEAR(flops / expected, 1.0, 2e-3) << name;
  }
}

TEST(ItemOps, TensorAndContextRanksShareTheFlops) {
  const ModuleSpec module = Module("llama-3-8b");
  const StackSpec stack = Stack("megatron");
  Split one;
  Split many;
  many.tp = 4;
  many.cp = 2;
  many.sequence_parallel = true;
  const LayerSpec& layer = module.layer_kinds.front();
  const double whole = ForwardFlops(LayerOps({stack, module, one, 4096}, layer));
  const double part = ForwardFlops(LayerOps({stack, module, many, 4096}, layer));
  EXPECT_NEAR(whole / part, 8.0, 1e-9);
}

/// Korthikanti et al. 2022, table 2: bytes kept per layer of a GPT in 16 bits with dropout.
TEST(ItemOps, KeptBytesOfAGptAreThoseOfTheSequenceParallelPaper) {
  const ModuleSpec module = Module("gpt3-175b");
  const StackSpec stack = Stack("megatron-2022");
  const LayerSpec& layer = module.layer_kinds.front();
  const double s = 2048, b = 2, h = static_cast<double>(module.hidden);
  const double a = static_cast<double>(layer.attention.heads);
  const auto saved = [&](int64_t tp, bool sp, LayerMode mode) {
    Split split;
    split.tp = tp;
    split.sequence_parallel = sp;
    split.micro_batch = 2;
    split.format = LinearFormat::kFp16;
    return LayerOps({stack, module, split, 2048}, layer).saved[static_cast<size_t>(mode)];
  };
  EXPECT_NEAR(saved(1, false, LayerMode::kKeep), s * b * h * (34 + 5 * a * s / h), 1);
  EXPECT_NEAR(saved(8, false, LayerMode::kKeep), s * b * h * (10 + 24.0 / 8 + 5 * a * s / h / 8),
              1);
  EXPECT_NEAR(saved(8, true, LayerMode::kKeep), s * b * h / 8 * (34 + 5 * a * s / h), 1);
  EXPECT_NEAR(saved(8, true, LayerMode::kSelective), s * b * h * 34 / 8, 1);
  EXPECT_NEAR(saved(8, true, LayerMode::kFull), s * b * h * 2 / 8, 1);
  EXPECT_NEAR(saved(8, false, LayerMode::kFull), s * b * h * 2, 1);
}

TEST(ItemOps, TensorTrafficIsFourPassesOfTheActivationALayerAndDirection) {
  const ModuleSpec module = Module("llama-3-8b");
  const StackSpec stack = Stack("megatron");
  Split split;
  split.tp = 8;
  const double activation = 2.0 * 4096 * 4096;
  double reduced = 0;
  for (const StackOp& op : LayerOps({stack, module, split, 4096}, module.layer_kinds[0]).ops) {
    if (op.work.kind != cost::WorkKind::kCollective) continue;
    EXPECT_EQ(op.collective.kind, cost::CollectiveKind::kAllReduce);
    reduced += static_cast<double>(op.collective.bytes.value());
  }
  EXPECT_DOUBLE_EQ(reduced, 4 * activation);  // two forward, two backward
  split.sequence_parallel = true;
  double gathered = 0, scattered = 0;
  for (const StackOp& op : LayerOps({stack, module, split, 4096}, module.layer_kinds[0]).ops) {
    if (op.work.kind != cost::WorkKind::kCollective) continue;
    (op.collective.kind == cost::CollectiveKind::kAllGather ? gathered : scattered) +=
        static_cast<double>(op.collective.bytes.value());
  }
  // Backward gathers the input again for the weight gradient: two more than all-reduces would move.
  EXPECT_DOUBLE_EQ(gathered, 6 * activation);
  EXPECT_DOUBLE_EQ(scattered, 4 * activation);
}

/// Per token of Llama 3 8B: the input, queries, values, gates and the result of attention with its
/// statistics; of seven products the first, third and fifth.
TEST(ItemOps, CheckpointsByOperatorKeepEveryOtherProduct) {
  const ModuleSpec module = Module("llama-3-8b");
  StackSpec stack = Stack("fsdp2");
  const Split split;
  const ItemOps layer = LayerOps({stack, module, split, 4096}, module.layer_kinds[0]);
  const double token = 2.0 * (4096 + 4096 + 1024 + 14336 + 4096) + 4 * 32;
  EXPECT_DOUBLE_EQ(layer.saved[static_cast<size_t>(LayerMode::kSelective)], 4096 * token);
  // Eager layers keep the seventh too.
  stack.lowering.compiled_norms = false;
  const ItemOps eager = LayerOps({stack, module, split, 4096}, module.layer_kinds[0]);
  EXPECT_DOUBLE_EQ(eager.saved[static_cast<size_t>(LayerMode::kSelective)],
                   4096 * (token + 2.0 * 4096));
}

TEST(ItemOps, GatheredInputsStayWhereTheStackKeepsThem) {
  const ModuleSpec module = Module("llama-3-8b");
  StackSpec stack = Stack("fsdp2");
  Split split;
  split.tp = 8;
  split.sequence_parallel = true;
  const auto kept = [&] {
    return LayerOps({stack, module, split, 4096}, module.layer_kinds[0])
        .saved[static_cast<size_t>(LayerMode::kKeep)];
  };
  const double gathered = kept();
  stack.lowering.keeps_gathered_inputs = false;
  EXPECT_DOUBLE_EQ(gathered - kept(), 2 * 2.0 * 4096 * 4096 * 7 / 8);
}

TEST(ItemOps, VocabularyIsPaddedToAMultipleOf128TimesTp) {
  const ModuleSpec module = Module("gpt2");
  const StackSpec stack = Stack("megatron");
  Split split;
  split.tp = 2;
  EXPECT_EQ((ItemContext{stack, module, split, 128}).padded_vocab(), 50432);
  split.tp = 8;
  EXPECT_EQ((ItemContext{stack, module, split, 128}).padded_vocab(), 51200);
}

}  // namespace
}  // namespace meshwright::planner::stack
