// Which kernels of a step become graphs; needs no GPU.
#include <gtest/gtest.h>

#include "planner/ir/op_schema.h"
#include "planner/lower/lower.h"
#include "planner/lower/make_plan.h"
#include "runtime/cuda/compute_graphs.h"
#include "tests/runtime/small_models.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::OpKind;

struct Case {
  explicit Case(int64_t tp, int64_t chunks) {
    planner::SplitRequest r;
    r.tp = tp;
    r.sequence_parallel = tp > 1;
    r.tensor_chunks = chunks;
    r.global_batch = 2;
    r.sequence = 16;
    r.device = topologies::DeviceKind::kGpu;
    programs = planner::Lower(MakePlan(testing::SmallLlama(), r).value()).value();
    setup.context.program = &programs.programs.front();
    setup.order = MakeIssueOrder(programs.programs.front()).value();
    for (const IssuedOp& op : setup.order.ops) {
      setup.reads_scalars.push_back(op.op->kind == OpKind::kOptimizerStep);
    }
  }
  planner::Programs programs;
  RankSetup setup;
};

void ExpectPlainKernels(const Case& c, const Segment& s) {
  const auto& ops = c.setup.order.ops;
  for (int32_t i = s.first; i <= s.last; ++i) {
    const IssuedOp& op = ops[static_cast<size_t>(i)];
    EXPECT_EQ(op.task, ops[static_cast<size_t>(s.first)].task);
    EXPECT_EQ(op.op->stream, planner::kComputeStream);
    EXPECT_FALSE(planner::IsCollective(op.op->kind)) << i;
    EXPECT_NE(op.op->kind, OpKind::kOptimizerStep);
    EXPECT_NE(op.op->kind, OpKind::kLoadTokens);
    if (i > s.first) {
      EXPECT_TRUE(op.op->waits.empty()) << i;
    }
    if (i < s.last) {
      EXPECT_LT(op.op->signal, 0) << i;
    }
  }
}

TEST(ComputeSegments, OneRankHasFewThatHoldNearlyAllKernels) {
  const Case c(1, 1);
  int64_t kernels = 0, covered = 0;
  for (const IssuedOp& op : c.setup.order.ops) {
    kernels += op.op->kind != OpKind::kLoadTokens && op.op->kind != OpKind::kLoadLabels;
  }
  const auto segments = ComputeSegments(c.setup);
  int32_t before = -1;
  for (const Segment& s : segments) {
    EXPECT_GT(s.first, before);
    before = s.last;
    ExpectPlainKernels(c, s);
    EXPECT_GE(s.last - s.first + 1, kLeastSegmentOps);
    covered += s.last - s.first + 1;
  }
  EXPECT_GT(covered, kernels * 8 / 10);
  EXPECT_LT(segments.size(), static_cast<size_t>(covered / 8));
}

TEST(ComputeSegments, EndWhereAnotherStreamIsWaitedFor) {
  const Case c(2, 2);
  const auto segments = ComputeSegments(c.setup, 2);
  ASSERT_GT(segments.size(), 10U);
  for (const Segment& s : segments) ExpectPlainKernels(c, s);
  // Between two shifts there is too little for a graph of its own.
  EXPECT_LT(ComputeSegments(c.setup).size(), segments.size() / 2);
}

}  // namespace
}  // namespace meshwright::runtime::cuda
