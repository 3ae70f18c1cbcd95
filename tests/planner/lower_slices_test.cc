// Traffic of two tensor ranks that goes beside products under sequence parallelism.
#include <gtest/gtest.h>

#include <algorithm>

#include "planner/lower/lower.h"
#include "planner/lower/make_plan.h"
#include "tests/runtime/small_models.h"

namespace meshwright::planner {
namespace {

/// A program of each tensor rank of a Llama with sequence parallelism.
std::vector<RankProgram> ProgramsInSlices(int64_t chunks, int64_t ranks = 2) {
  SplitRequest r;
  r.tp = ranks;
  r.sequence_parallel = true;
  r.tensor_chunks = chunks;
  r.global_batch = 1;
  r.sequence = 16;
  return Lower(MakePlan(testing::SmallLlama(), r).value()).value().programs;
}

TEST(Lower, TensorRanksBeginWithTheirOwnSliceOfTheSequence) {
  EXPECT_EQ(ProgramsInSlices(1).size(), 1U);
  const std::vector<RankProgram> programs = ProgramsInSlices(2);
  ASSERT_EQ(programs.size(), 2U);
  std::vector<int64_t> first_rows;
  for (const RankProgram& p : programs) {
    for (const Block& block : p.blocks) {
      if (block.name != "layer.0/forward/none") continue;
      const auto count = [&](OpKind kind) {
        return std::count_if(block.ops.begin(), block.ops.end(),
                             [&](const Op& op) { return op.kind == kind; });
      };
      // Two gathers and two scatters; each of the four products in two parts.
      EXPECT_EQ(count(OpKind::kAllGather) + count(OpKind::kReduceScatter), 0);
      EXPECT_EQ(count(OpKind::kShift), 4);
      EXPECT_EQ(count(OpKind::kLinear), 8);
      EXPECT_EQ(count(OpKind::kAdd), 1) << "the norm adds the parts of the attention's output";
      const auto product = std::find_if(block.ops.begin(), block.ops.end(),
                                        [](const Op& op) { return op.kind == OpKind::kLinear; });
      EXPECT_TRUE(product->waits.empty()) << "the own rows need no traffic";
      const TensorView& qkv = block.tensors[static_cast<size_t>(product->operands[3].tensor)];
      first_rows.push_back(qkv.offset);
    }
    EXPECT_EQ(p.arena, programs.front().arena);
  }
  ASSERT_EQ(first_rows.size(), 2U);
  EXPECT_LT(first_rows[0], first_rows[1]);
  // Less memory than the gathered rows took.
  EXPECT_LE(programs.front().arena.size, ProgramsInSlices(1).front().arena.size);
}

int64_t Count(const Block& block, OpKind kind) {
  return std::count_if(block.ops.begin(), block.ops.end(),
                       [&](const Op& op) { return op.kind == kind; });
}

TEST(Lower, SlicesGoAroundTheRingOfFourTensorRanks) {
  const std::vector<RankProgram> programs = ProgramsInSlices(4, 4);
  ASSERT_EQ(programs.size(), 4U);
  for (size_t rank = 0; rank < 4; ++rank) {
    const auto block =
        std::find_if(programs[rank].blocks.begin(), programs[rank].blocks.end(),
                     [](const Block& b) { return b.name == "layer.0/forward/none"; });
    ASSERT_NE(block, programs[rank].blocks.end());
    EXPECT_EQ(Count(*block, OpKind::kAllGather) + Count(*block, OpKind::kReduceScatter), 0);
    EXPECT_EQ(Count(*block, OpKind::kShift), 4 * 3) << "two gathers, two scatters of three hops";
    EXPECT_EQ(Count(*block, OpKind::kLinear), 4 * 4);
    // Products over the gathered rows: the own slice, then that of the rank before, and so on.
    std::vector<int64_t> qkv;
    std::vector<Access> sums;
    for (const Op& op : block->ops) {
      if (op.kind != OpKind::kLinear) continue;
      const TensorView& out = block->tensors[static_cast<size_t>(op.operands[3].tensor)];
      if (qkv.size() < 4) {
        qkv.push_back(out.offset / out.bytes());
      } else if (sums.size() < 4) {
        sums.push_back(op.operands[3].access);
      }
    }
    const int64_t first = qkv.front();
    for (int64_t hop = 0; hop < 4; ++hop) {
      const int64_t whole = first - static_cast<int64_t>(rank);  // where rank 0's slice lies
      EXPECT_EQ(qkv[static_cast<size_t>(hop)] - whole, (static_cast<int64_t>(rank) + 4 - hop) % 4);
    }
    // A sum starts fresh, two products add to what has come, the norm adds the own part.
    using A = Access;
    EXPECT_EQ(sums, (std::vector<A>{A::kWrite, A::kAccumulate, A::kAccumulate, A::kWrite}));
  }
}

TEST(Lower, ProductsAddToTheSlicesThatHaveCome) {
  for (const RankProgram& p : ProgramsInSlices(4)) {
    for (const Block& block : p.blocks) {
      if (!block.name.starts_with("layer.0/")) continue;
      int adding = 0;
      for (const Op& op : block.ops) {
        EXPECT_NE(op.kind, OpKind::kAdd) << block.name;
        if (op.kind != OpKind::kLinear && op.kind != OpKind::kLinearInputGrad) continue;
        const Operand& out = op.operands.back();
        if (out.access != Access::kAccumulate) continue;
        ++adding;
        const bool after_shift =
            std::any_of(op.waits.begin(), op.waits.end(), [&](const EventId event) {
              return std::any_of(block.ops.begin(), block.ops.end(), [&](const Op& other) {
                return other.kind == OpKind::kShift && other.signal == event;
              });
            });
        EXPECT_TRUE(after_shift) << block.name;
      }
      const bool forward = block.name.starts_with("layer.0/forward");
      EXPECT_EQ(adding, forward ? 2 : 4) << block.name << ": of a scatter in two parts";
    }
  }
}

TEST(Lower, ANormAddsTheOtherRanksPartOfTheSumInFrontOfIt) {
  for (const int64_t chunks : {2, 4}) {
    for (const RankProgram& p : ProgramsInSlices(chunks)) {
      for (const Block& block : p.blocks) {
        if (!block.name.starts_with("layer.0/forward")) continue;
        int64_t rows = 0;
        for (const Op& op : block.ops) {
          if (op.kind != OpKind::kNorm || op.operands[7].tensor < 0) continue;
          const auto received = static_cast<size_t>(op.operands[7].tensor);
          rows += block.tensors[received].shape[0];
          EXPECT_NE(op.operands[1].tensor, op.operands[7].tensor);
          const auto shift = std::find_if(block.ops.begin(), block.ops.end(), [&](const Op& other) {
            return other.kind == OpKind::kShift &&
                   block.tensors[static_cast<size_t>(other.operands[1].tensor)].offset ==
                       block.tensors[received].offset;
          });
          ASSERT_NE(shift, block.ops.end()) << block.name;
          EXPECT_NE(std::find(op.waits.begin(), op.waits.end(), shift->signal), op.waits.end())
              << block.name << ": the part must have come";
        }
        EXPECT_EQ(rows, 8) << block.name << ": each of the rank's rows once";
      }
    }
  }
}

TEST(Lower, ShiftsOfGradientsGoBesideProductsThatDoNotNeedThem) {
  const std::vector<RankProgram> programs = ProgramsInSlices(2);
  const auto block = std::find_if(programs[1].blocks.begin(), programs[1].blocks.end(),
                                  [](const Block& b) { return b.name == "layer.0/backward/none"; });
  ASSERT_NE(block, programs[1].blocks.end());
  const auto& ops = block->ops;
  const auto next = [&](OpKind kind, std::ptrdiff_t from) {
    return std::find_if(ops.begin() + from, ops.end(),
                        [&](const Op& op) { return op.kind == kind; }) -
           ops.begin();
  };
  // What the weight gradient of qkv needs is gathered while attention runs.
  const auto attention = next(OpKind::kAttentionGrad, 0);
  EXPECT_EQ(std::count_if(ops.begin(), ops.begin() + attention,
                          [](const Op& op) { return op.kind == OpKind::kAllGather; }),
            2);
  // Between the norms: a shift, a weight gradient beside it, then the products over the slices.
  const auto norm = next(OpKind::kNormGrad, 0);
  const auto shift = next(OpKind::kShift, norm);
  const auto cover = next(OpKind::kLinearWeightGrad, shift);
  const auto product = next(OpKind::kLinearInputGrad, norm);
  EXPECT_LT(shift, cover);
  EXPECT_LT(cover, product);
  EXPECT_EQ(std::count(ops[static_cast<size_t>(product)].waits.begin(),
                       ops[static_cast<size_t>(product)].waits.end(),
                       ops[static_cast<size_t>(shift)].signal),
            0)
      << "the own rows need no traffic";
}

TEST(Lower, BackwardBeginsWithoutWaitingForAShift) {
  for (const int64_t chunks : {2, 4}) {
    for (const RankProgram& p : ProgramsInSlices(chunks)) {
      for (const Block& block : p.blocks) {
        if (!block.name.starts_with("layer.0/backward")) continue;
        ASSERT_EQ(block.ops.front().kind, OpKind::kShift) << block.name;
        const auto first = std::find_if(block.ops.begin(), block.ops.end(),
                                        [](const Op& op) { return op.stream == kComputeStream; });
        EXPECT_EQ(first->waits, std::vector<EventId>{0}) << "traffic of the block before";
      }
    }
  }
}

TEST(Lower, AWeightGradientFillsTheWaitForTheLastShift) {
  for (const int64_t chunks : {2, 4}) {
    for (const RankProgram& p : ProgramsInSlices(chunks)) {
      for (const Block& block : p.blocks) {
        if (!block.name.starts_with("layer.0/backward")) continue;
        const auto of = [](OpKind kind) {
          return [kind](const Op& op) { return op.kind == kind; };
        };
        const auto last = [&](const auto& is) {
          return std::find_if(block.ops.rbegin(), block.ops.rend(), is);
        };
        const auto shift = last(of(OpKind::kShift));
        const auto gradient = last(of(OpKind::kLinearWeightGrad));
        const auto adds = std::find_if(shift.base(), block.ops.end(), [&](const Op& op) {
          return std::find(op.waits.begin(), op.waits.end(), shift->signal) != op.waits.end();
        });
        ASSERT_NE(adds, block.ops.end()) << block.name;
        EXPECT_LT(&*shift, &*gradient) << block.name;
        EXPECT_LT(&*gradient, &*adds) << block.name;
      }
    }
  }
}

TEST(Lower, FirstRowsOfANormLeaveBeforeTheOthersAreMade) {
  for (const RankProgram& p : ProgramsInSlices(4)) {
    const auto block = std::find_if(p.blocks.begin(), p.blocks.end(), [](const Block& b) {
      return b.name == "layer.0/forward/none";
    });
    ASSERT_NE(block, p.blocks.end());
    std::vector<OpKind> kinds;
    for (const Op& op : block->ops) kinds.push_back(op.kind);
    using K = OpKind;
    // In front of the first gather and, behind the products over later rows, of the second.
    const std::vector<K> first = {K::kNorm, K::kShift, K::kNorm, K::kShift, K::kLinear};
    EXPECT_TRUE(std::equal(first.begin(), first.end(), kinds.begin()));
    const std::vector<K> second = {K::kLinear, K::kNorm, K::kShift,
                                   K::kLinear, K::kNorm, K::kShift};
    EXPECT_NE(std::search(kinds.begin(), kinds.end(), second.begin(), second.end()), kinds.end());
    EXPECT_EQ(std::count(kinds.begin(), kinds.end(), K::kNorm), 4);
  }
}

}  // namespace
}  // namespace meshwright::planner
