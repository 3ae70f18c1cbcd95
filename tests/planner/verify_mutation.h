// Mutations: a lowered program with one thing made wrong, and what the refusal must name.
#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "planner/ir/op_schema.h"
#include "tests/planner/verify_common.h"

namespace meshwright::planner::testing {

inline size_t At(Region region) {
  return static_cast<size_t>(region);
}

/// tp 2, dp 2, pp 2 of four layers, sequence parallel, ZeRO-1, four micro-batches: rank = tp + 2 dp
/// + 4 pp; rank 0 sends activations to rank 4.
inline Programs Base(int64_t virtual_stages = 1, Recompute recompute = Recompute::kNone) {
  SplitRequest r;
  r.tp = 2;
  r.dp = 2;
  r.pp = 2;
  r.virtual_stages = virtual_stages;
  r.global_batch = 8;
  r.sequence = 32;
  r.sharding = Sharding::kZero1;
  r.recompute = {recompute};
  return Lowered(TinyModel("gpt-tiny"), r);
}

inline int32_t CommunicatorOf(const RankProgram& program, CommunicatorKind kind) {
  for (size_t c = 0; c < program.communicators.size(); ++c) {
    if (program.communicators[c].kind == kind) return static_cast<int32_t>(c);
  }
  ADD_FAILURE() << "no such communicator";
  return 0;
}

inline Instance& LayerOf(Task& task, int64_t layer) {
  for (Instance& i : task.instances) {
    if (i.layer == layer) return i;
  }
  ADD_FAILURE() << "no layer " << layer;
  return task.instances.front();
}

inline TensorView& OperandOf(Block& block, Op& op, const char* name) {
  const auto index = static_cast<size_t>(OperandIndex(op.kind, name));
  return block.tensors[static_cast<size_t>(op.operands[index].tensor)];
}

inline void RemoveWaits(Task& task) {
  for (Instance& i : task.instances) i.waits.clear();
}

/// Binds a task to the slot `by` slots further on.
inline void MoveSlot(const RankProgram& program, Task& task, int64_t by) {
  const ArenaLayout& a = program.arena;
  for (Instance& i : task.instances) {
    for (int64_t& base : i.base) {
      if (base >= a.saved && base < a.scratch) base += by * a.slot_bytes;
    }
  }
}

struct Mutation {
  std::string name;
  std::function<void(Programs&)> apply;
  std::vector<std::string> named;  ///< what the message must hold
  int64_t virtual_stages = 1;
  Recompute recompute = Recompute::kNone;
};
inline std::ostream& operator<<(std::ostream& out, const Mutation& m) {
  return out << m.name;
}

/// Refused, folded and unfolded, in words that hold all of `m.named`.
inline void ExpectRefused(const Mutation& m) {
  Programs programs = Base(m.virtual_stages, m.recompute);
  ASSERT_TRUE(Verify(programs, {}).ok()) << Verify(programs, {}).message();
  m.apply(programs);
  for (bool fold : {true, false}) {
    VerifyLimits limits;
    limits.fold = fold;
    const Status status = Verify(programs, limits);
    EXPECT_EQ(status.code(), StatusCode::kInfeasible);
    for (const std::string& part : m.named)
      EXPECT_THAT(status.message(), ::testing::HasSubstr(part));
  }
}

}  // namespace meshwright::planner::testing
