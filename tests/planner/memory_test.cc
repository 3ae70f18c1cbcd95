// The plan's sum of memory equals the arena that lowering lays out, byte for byte, class by class.
#include "planner/search/memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "planner/ir/attention_workspace.h"
#include "planner/ir/op_schema.h"
#include "planner/lower/lower.h"
#include "planner/lower/schedule.h"
#include "tests/planner/search_cases.h"

namespace meshwright::planner {
namespace {

TEST(PassesInFlight, IsTheNumberOfSlotsThatTheScheduleTakes) {
  for (int64_t pp = 1; pp <= 6; ++pp) {
    for (int64_t v = 1; v <= (pp > 1 ? 4 : 1); ++v) {
      for (int64_t m = v > 1 ? pp : 1; m <= 20; ++m) {
        for (int64_t stage = 0; stage < pp; ++stage) {
          const auto steps = lower::StageSchedule(pp, v, m, stage);
          EXPECT_EQ(search::PassesInFlight(pp, v, m, stage), lower::AssignSlots(steps, v, m).slots)
              << "pp " << pp << " v " << v << " m " << m << " stage " << stage;
        }
      }
    }
  }
}

TEST(PlannedMemory, EqualsTheArenaOfRandomPlans) {
  const int64_t wanted = std::getenv("MESHWRIGHT_LONG") != nullptr ? 3000 : 300;
  Dice dice(20251130);
  std::set<std::string> seen;
  int64_t plans = 0;
  for (int64_t tries = 0; plans < wanted && tries < 40 * wanted; ++tries) {
    const int64_t layers = dice.Between(1, 14);
    const ModelSpec model = RandomModel(dice, layers, static_cast<int>(dice.Between(1, 2)));
    const Result<Plan> plan = MakePlan(model, RandomSplit(dice, layers));
    if (!plan.ok()) continue;
    const Result<Programs> programs = Lower(*plan);
    ASSERT_TRUE(programs.ok()) << programs.status().message();
    for (const RankProgram& program : programs->programs) {
      const MemoryBreakdown memory = search::PlannedMemory(*plan, 0, program.stage);
      const MemoryBreakdown& arena = program.arena.memory;
      ASSERT_EQ(memory.parameters, arena.parameters) << ShortName(*plan);
      ASSERT_EQ(memory.gradients, arena.gradients) << ShortName(*plan);
      ASSERT_EQ(memory.optimizer, arena.optimizer) << ShortName(*plan);
      ASSERT_EQ(memory.saved, arena.saved) << ShortName(*plan);
      ASSERT_EQ(memory.scratch, arena.scratch) << ShortName(*plan);
      ASSERT_EQ(memory.communication, arena.communication) << ShortName(*plan);
      ASSERT_EQ(memory.io, arena.io) << ShortName(*plan);
      ASSERT_EQ(memory, arena) << ShortName(*plan);
      ASSERT_EQ(memory.arena(), program.arena.size) << ShortName(*plan);
    }
    ++plans;
    const ModulePlan& m = plan->modules.front();
    const ModuleSpec& spec = model.modules.front();
    seen.insert(m.virtual_stages > 1 ? "interleaved" : "1f1b");
    if (m.sharding == Sharding::kZero1 && m.dp > 1) seen.insert("zero1");
    if (m.kv_copies > 1) seen.insert("kv copies");
    if (spec.tied_embeddings) seen.insert(m.pp > 1 ? "tied across" : "tied here");
    if (spec.layer_kinds.size() > 1) seen.insert("two kinds");
    if (m.sequence_parallel) seen.insert("sequence parallel");
    seen.insert(ToString(plan->dtype));
    seen.insert(ToString(plan->optimizer));
    for (Recompute r : m.recompute) seen.insert(ToString(r));
  }
  EXPECT_EQ(plans, wanted);
  for (const char* feature :
       {"interleaved", "1f1b", "zero1", "kv copies", "tied across", "tied here", "two kinds",
        "sequence parallel", "bf16", "fp32", "fp64", "adamw", "sgd", "none", "selective", "full"}) {
    EXPECT_TRUE(seen.contains(feature)) << feature;
  }
}

/// Scratch of the only stage of a model with micro-batches of 8 samples of 1024 tokens.
int64_t ScratchOf(bool deterministic, topologies::DeviceKind device) {
  Dice dice(5);
  ModelSpec model = RandomModel(dice, 2, 1);
  SplitRequest r;
  r.micro_batch = 8;
  r.global_batch = 8;
  r.sequence = 1024;
  r.device = device;
  r.deterministic = deterministic;
  model.modules.front().max_positions = 1024;
  const Result<Plan> plan = MakePlan(model, r);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  if (!plan.ok()) return 0;
  const Result<Programs> programs = Lower(*plan);
  EXPECT_TRUE(programs.ok()) << programs.status().message();
  if (!programs.ok()) return 0;
  EXPECT_EQ(search::PlannedMemory(*plan, 0, 0), programs->programs.front().arena.memory);
  for (const Block& block : programs->programs.front().blocks) {
    for (const Op& op : block.ops) {
      if (op.kind != OpKind::kAttentionGrad) continue;
      const TensorView* workspace = Find(block, op, "workspace");
      if (device == topologies::DeviceKind::kGpu) {
        EXPECT_EQ(workspace->bytes(), AttentionWorkspaceBytes(AttentionShapeOf(op.attributes),
                                                              DType::kBf16, true, deterministic));
      }
    }
  }
  return programs->programs.front().arena.memory.scratch;
}

TEST(PlannedMemory, HasTheScratchOfDeterministicGpuRanks) {
  using topologies::DeviceKind;
  EXPECT_NE(ScratchOf(true, DeviceKind::kGpu), ScratchOf(false, DeviceKind::kGpu));
}

}  // namespace
}  // namespace meshwright::planner
