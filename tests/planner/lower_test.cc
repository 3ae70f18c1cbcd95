// Lowering: schedules, slots, parameter placement and what a layer keeps, against worked figures.
#include "planner/lower/lower.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "planner/lower/communicators.h"
#include "planner/lower/make_plan.h"
#include "planner/lower/schedule.h"
#include "planner/lower/stage.h"
#include "planner/lower/tasks.h"
#include "tests/runtime/small_models.h"

namespace meshwright::planner {
namespace {

using lower::ScheduleStep;

std::string Order(const std::vector<ScheduleStep>& steps) {
  std::string text;
  for (const ScheduleStep& s : steps) {
    text += (text.empty() ? "" : " ") + std::string(s.forward ? "F" : "B") +
            std::to_string(s.micro_batch);
  }
  return text;
}

// The compute order of the upstream topologies with m = 4 (parallelism.md 4.5).
TEST(Schedule, OneForwardOneBackwardOrders) {
  EXPECT_EQ(Order(lower::StageSchedule(2, 1, 4, 0)), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(Order(lower::StageSchedule(2, 1, 4, 1)), "F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(Order(lower::StageSchedule(4, 1, 4, 0)), "F0 F1 F2 F3 B0 B1 B2 B3");
  EXPECT_EQ(Order(lower::StageSchedule(4, 1, 4, 1)), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(Order(lower::StageSchedule(4, 1, 4, 2)), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(Order(lower::StageSchedule(4, 1, 4, 3)), "F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(Order(lower::StageSchedule(3, 1, 4, 0)), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(Order(lower::StageSchedule(8, 1, 2, 0)),
            "F0 F1 B0 B1");  // fewer micro-batches than stages
}

// parallelism.md 9.2: the table of P2 v2 N3 m8.
TEST(Schedule, InterleavedTable) {
  EXPECT_EQ(lower::InterleavingGroup(2, 8), 2);
  EXPECT_EQ(lower::InterleavingGroup(2, 3), 3);
  EXPECT_EQ(lower::InterleavingGroup(4, 9), 5);  // 9 % 4 = 1 < 4; 9 % 5 = 4
  EXPECT_EQ(lower::InterleavingGroup(4, 3), 0);
  std::vector<int> micro_batches;
  std::vector<int> chunks;
  for (const ScheduleStep& s : lower::StageSchedule(2, 2, 3, 0)) {
    if (!s.forward) continue;
    micro_batches.push_back(s.micro_batch);
    chunks.push_back(s.chunk);
  }
  EXPECT_EQ(micro_batches, (std::vector<int>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(chunks, (std::vector<int>{0, 0, 0, 1, 1, 1}));
  for (int64_t p = 0; p < 4; ++p) {  // P4 v2 m8: warm-up 10, 8, 6, 4
    const auto steps = lower::StageSchedule(4, 2, 8, p);
    int64_t warm = 0;
    while (steps[static_cast<size_t>(warm)].forward) ++warm;
    EXPECT_EQ(warm - 1, 10 - 2 * p);  // the first steady forward follows the warm-up
  }
}

// parallelism.md 9.4: activations in flight.
TEST(Schedule, SlotsEqualActivationsInFlight) {
  for (int64_t pp : {1, 2, 3, 4, 8}) {
    for (int64_t m : {1, 3, 8, 16}) {
      for (int64_t p = 0; p < pp; ++p) {
        const auto plain = lower::AssignSlots(lower::StageSchedule(pp, 1, m, p), 1, m);
        EXPECT_EQ(plain.slots, std::min(m, pp - p));
        if (pp < 2 || m < pp) continue;
        const int64_t v = 2;
        const int64_t warm =
            std::min(2 * (pp - p - 1) + (v - 1) * lower::InterleavingGroup(pp, m), m * v);
        const auto interleaved = lower::AssignSlots(lower::StageSchedule(pp, v, m, p), v, m);
        EXPECT_EQ(interleaved.slots, std::min(warm + 1, m * v));
      }
    }
  }
}

TEST(MakePlan, LongStagesLieInTheMiddle) {
  EXPECT_EQ(EvenLayers(30, 4), (std::vector<int64_t>{7, 8, 8, 7}));
  EXPECT_EQ(EvenLayers(32, 4), (std::vector<int64_t>{8, 8, 8, 8}));
  const auto seven = EvenLayers(7, 2);
  EXPECT_EQ(seven[0] + seven[1], 7);
  EXPECT_EQ(std::max(seven[0], seven[1]), 4);
}

// program-example.md: what one Llama layer keeps under tp 2 with sequence parallelism, bf16.
TEST(Lower, SavedBytesOfALayerEqualTheWorkedExample) {
  ModelSpec model = testing::SmallLlama(8);
  LayerSpec& layer = model.modules[0].layer_kinds[0];
  layer.attention.head_dim = 128;
  layer.attention.kv_heads = 4;
  layer.mlp.ffn = 2048;
  model.modules[0].hidden = 1024;
  model.modules[0].max_positions = 512;
  SplitRequest r;
  r.tp = 2;
  r.micro_batch = 2;
  r.global_batch = 2;
  r.sequence = 512;
  const auto plan = MakePlan(model, r);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const lower::Stage stage = lower::BuildStage(*plan, 0, 0);
  std::vector<Block> blocks;
  const lower::Templates templates(stage, blocks);
  const int64_t S = 512, b = 2, h = 1024, q = 8 * 128, k = 4 * 128, f = 2 * 2048;
  const int64_t rows = S * b;
  const int64_t expected = 2 * (rows / 2 * h * 2)        // r1 r2
                           + 2 * (rows / 2 * h * 2)      // n1 n2
                           + rows * (q + 2 * k) / 2 * 2  // qkv
                           + rows * q / 2 * 2            // o
                           + rows * f / 2 * 2            // gate | up (f counts both)
                           + 2 * (rows / 2) * 4          // statistics, fp32
                           + b * 4 * S * 4;              // log-sum-exp of 4 local heads, fp32
  EXPECT_EQ(templates.SavedBytes(stage.items[2]), expected);
}

TEST(Lower, RecomputationKeepsLess) {
  std::vector<int64_t> saved;
  for (Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    SplitRequest r;
    r.global_batch = 1;
    r.sequence = 16;
    r.recompute = {mode};
    const auto plan = MakePlan(testing::SmallLlama(), r);
    ASSERT_TRUE(plan.ok());
    const lower::Stage stage = lower::BuildStage(*plan, 0, 0);
    std::vector<Block> blocks;
    const lower::Templates templates(stage, blocks);
    saved.push_back(templates.SavedBytes(stage.items[2]));
  }
  EXPECT_GT(saved[0], saved[1]);
  EXPECT_GT(saved[1], saved[2]);
  EXPECT_EQ(saved[2], 16 * 32 * 2);  // the residual stream at the layer's entry, bf16
}

/// Global parameters counted once over all stages.
int64_t CountLowered(const Programs& programs) {
  std::map<std::string, int64_t> elements;
  for (const RankProgram& p : programs.programs) {
    for (const ParameterEntry& e : p.parameters) {
      int64_t n = 1;
      for (int64_t d : e.global_shape) n *= d;
      if (e.valid_rows > 0) n = n / e.global_shape[0] * e.valid_rows;
      elements[e.name] = n;
    }
  }
  int64_t total = 0;
  for (const auto& [name, n] : elements) total += n;
  return total;
}

TEST(Lower, EveryParameterIsThereOnce) {
  for (const ModelSpec& model :
       {testing::SmallGpt(), testing::SmallGpt(false), testing::SmallLlama(2)}) {
    for (int64_t tp : {1, 4}) {
      for (int64_t pp : {1, 3}) {
        SplitRequest r;
        r.tp = tp;
        r.pp = pp;
        r.global_batch = 4;
        r.sequence = 16;
        r.vocab_quantum = 8;  // padding rows are not parameters of the model
        const auto plan = MakePlan(model, r);
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        const auto programs = Lower(*plan);
        ASSERT_TRUE(programs.ok()) << programs.status().message();
        EXPECT_EQ(CountLowered(*programs), CountParameters(model.modules[0]).total());
      }
    }
  }
}

TEST(Lower, SegmentsCoverEveryGlobalIndexOnce) {
  SplitRequest r;
  r.tp = 8;  // two key-value heads: four copies each
  r.global_batch = 1;
  r.sequence = 16;
  const auto plan = MakePlan(testing::SmallLlama(2), r);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->modules[0].kv_copies, 4);
  const auto programs = Lower(*plan);
  ASSERT_TRUE(programs.ok());
  for (const ParameterEntry& e : programs->programs[0].parameters) {
    const size_t axis = e.axis < 0 ? 0 : static_cast<size_t>(e.axis);
    std::vector<int> owners(static_cast<size_t>(e.global_shape[axis]), 0);
    for (int64_t t = 0; t < 8; ++t) {
      for (const ShardSegment& s : SegmentsOf(e, t, 8)) {
        for (int64_t i = 0; i < s.length && s.owner; ++i) {
          ++owners[static_cast<size_t>(s.global_begin + i)];
        }
      }
    }
    for (int count : owners) EXPECT_EQ(count, 1) << e.name;
  }
}

TEST(Lower, TiedEmbeddingAcrossStagesIsReducedOnceAStep) {
  SplitRequest r;
  r.pp = 2;
  r.global_batch = 2;
  r.sequence = 16;
  const auto plan = MakePlan(testing::SmallGpt(), r);
  ASSERT_TRUE(plan.ok());
  const auto programs = Lower(*plan);
  ASSERT_TRUE(programs.ok());
  for (const RankProgram& p : programs->programs) {
    int reductions = 0;
    for (const Task& t : p.tasks) {
      for (const Instance& i : t.instances) {
        const Block& block = p.blocks[static_cast<size_t>(i.block)];
        if (block.name != "sum tied weight") continue;
        ++reductions;
        EXPECT_EQ(block.tensors[0].elements(), 61 * 32);  // V x h
      }
    }
    EXPECT_EQ(reductions, 1);
  }
}

TEST(Lower, PassesCanBeDumped) {
  SplitRequest r;
  r.tp = 2;
  r.global_batch = 1;
  r.sequence = 16;
  const auto plan = MakePlan(testing::SmallLlama(), r);
  ASSERT_TRUE(plan.ok());
  const std::string text = DumpPasses(*plan, 0, 0);
  size_t at = 0;
  for (const char* pass :
       {"# build", "# shard", "# fuse", "# differentiate", "# recompute", "# place and allocate"}) {
    at = text.find(pass, at);
    ASSERT_NE(at, std::string::npos) << pass;
  }
  EXPECT_EQ(text.find("all_gather"), text.find("all_gather", text.find("# shard")));
}

/// Forward block of a layer of a Llama on two tensor ranks whose traffic is in `chunks` chunks.
Block ForwardInChunks(int64_t chunks) {
  SplitRequest r;
  r.tp = 2;
  r.sequence_parallel = false;
  r.tensor_chunks = chunks;
  r.global_batch = 1;
  r.sequence = 16;
  const auto plan = MakePlan(testing::SmallLlama(), r);
  const auto programs = Lower(plan.value());
  for (const Block& block : programs.value().programs.front().blocks) {
    if (block.name == "layer.0/forward/none") return block;
  }
  return {};
}

TEST(Lower, ChunksOfTensorTrafficGoBesideTheNextProduct) {
  const Block whole = ForwardInChunks(1);
  const Block cut = ForwardInChunks(4);
  const auto count = [](const Block& block, OpKind kind) {
    return std::count_if(block.ops.begin(), block.ops.end(),
                         [&](const Op& op) { return op.kind == kind; });
  };
  EXPECT_EQ(count(whole, OpKind::kAllReduce), 2);
  EXPECT_EQ(count(cut, OpKind::kAllReduce), 8);
  // Both row-cut products and the one up, behind the reduced rows; attention stays whole.
  EXPECT_EQ(count(cut, OpKind::kLinear), count(whole, OpKind::kLinear) + 3 * 3);
  EXPECT_EQ(count(cut, OpKind::kAttention), 1);
  EXPECT_EQ(cut.scratch_bytes, whole.scratch_bytes);
  // A product writes rows that no all-reduce touches, so none waits for traffic before the norm.
  bool reduced = false;
  for (const Op& op : cut.ops) {
    reduced = reduced || op.kind == OpKind::kAllReduce;
    if (op.kind == OpKind::kNorm && reduced) break;
    if (op.kind == OpKind::kLinear && reduced) {
      EXPECT_TRUE(op.waits.empty());
    }
  }
}

TEST(Lower, ChunksOfTensorTrafficNeedAllReduces) {
  SplitRequest r;
  r.global_batch = 1;
  r.sequence = 16;
  r.tensor_chunks = 2;
  const auto refused = [&](const char* words) {
    const auto plan = MakePlan(testing::SmallLlama(), r);
    EXPECT_FALSE(plan.ok());
    if (plan.ok()) return;
    EXPECT_NE(plan.status().message().find(words), std::string::npos) << plan.status().message();
  };
  refused("found tp 1");
  r.tp = 4;
  r.sequence_parallel = true;
  refused("use a multiple of tp 4");
  r.tp = 2;
  r.tensor_chunks = 1 + 2 * 3;
  refused("use a multiple of tp 2");
  r.sequence_parallel = false;
  r.tensor_chunks = 3;
  refused("divide the sequence 16");
}

TEST(Lower, TheHeadGoesInChunksOfLogits) {
  SplitRequest r;
  r.tp = 2;
  r.global_batch = 2;
  r.micro_batch = 2;
  r.sequence = 16;
  r.device = topologies::DeviceKind::kGpu;
  r.dtype = DType::kBf16;
  const auto count = [&](int64_t bytes) {
    r.logits_chunk_bytes = bytes;
    const Programs programs = Lower(MakePlan(testing::SmallLlama(), r).value()).value();
    for (const Block& block : programs.programs.front().blocks) {
      if (block.name != "head/backward") continue;
      return std::count_if(block.ops.begin(), block.ops.end(),
                           [](const Op& op) { return op.kind == OpKind::kCrossEntropyGrad; });
    }
    return std::ptrdiff_t{0};
  };
  // Logits of a rank: 16 x 2 rows of half of the vocabulary, 2 bytes each.
  const int64_t logits = 16 * 2 * testing::SmallLlama().modules.front().vocab / 2 * 2;
  EXPECT_EQ(count(logits), 1);
  EXPECT_EQ(count(logits - 1), 2);
  EXPECT_EQ(count(logits / 4), 4);
  EXPECT_EQ(count(1), 16) << "a position at least";
}

TEST(Lower, SamePlanSameFingerprint) {
  SplitRequest r;
  r.tp = 2;
  r.global_batch = 4;
  r.sequence = 16;
  const auto plan = MakePlan(testing::SmallLlama(), r);
  ASSERT_TRUE(plan.ok());
  const uint64_t first = Fingerprint(Lower(*plan).value());
  EXPECT_EQ(first, Fingerprint(Lower(*plan).value()));
  r.recompute = {Recompute::kFull};
  EXPECT_NE(first, Fingerprint(Lower(MakePlan(testing::SmallLlama(), r).value()).value()));
}

TEST(MakePlan, LayerKindsThatNeedDifferentCopiesAreRefused) {
  ModelSpec model = testing::SmallLlama(2);
  LayerSpec other = model.modules[0].layer_kinds[0];
  other.attention.kv_heads = 4;
  model.modules[0].layer_kinds.push_back(other);
  model.modules[0].layers[1] = 1;
  SplitRequest r;
  r.global_batch = 1;
  r.sequence = 16;
  r.tp = 2;
  EXPECT_TRUE(MakePlan(model, r).ok());
  r.tp = 8;  // four copies of one kind's heads, two of the other's
  const auto refused = MakePlan(model, r);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("4 and 2 times"), std::string::npos)
      << refused.status().message();
}

TEST(Lower, RefusesWhatTheStackCannotRun) {
  ModelSpec model = testing::SmallLlama();
  model.modules[0].layer_kinds[0].mlp.moe = MoeSpec{8, 2, 40, 0, 0, false, false};
  model.modules[0].layer_kinds[0].attention.qk_norm = true;
  SplitRequest r;
  r.global_batch = 1;
  r.sequence = 16;
  const auto plan = MakePlan(model, r);
  ASSERT_TRUE(plan.ok());
  const auto programs = Lower(*plan);
  ASSERT_FALSE(programs.ok());
  EXPECT_EQ(programs.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(programs.status().message().find("mixture of experts"), std::string::npos);
  EXPECT_NE(programs.status().message().find("query-key norm"), std::string::npos);
}

}  // namespace
}  // namespace meshwright::planner
