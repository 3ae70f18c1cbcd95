// Issue order: the ops of one step of a rank in the order in which its issuing thread appends them
// to the streams, with every wait resolved to the op it waits for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/ir/program.h"
#include "topologies/status.h"

namespace meshwright::runtime {

/// An op that must be complete before another starts.
struct Dependency {
  int32_t op = 0;  ///< index into IssueOrder::ops
  bool previous_step = false;
  friend bool operator==(const Dependency&, const Dependency&) = default;
};

/// One op of the step. Pointers lead into the program.
struct IssuedOp {
  int32_t index = 0;  ///< position in issue order
  int32_t task = 0;   ///< index into RankProgram::tasks
  bool first_of_instance = false;
  bool takes_waits = false;  ///< those of its instance
  bool last_of_instance = false;
  const planner::Task* task_ptr = nullptr;
  const planner::Instance* instance = nullptr;
  const planner::Block* block = nullptr;
  const planner::Op* op = nullptr;
  std::vector<Dependency> waits;  ///< by events, on other streams; the latest a stream
};

/// "task 7 (Forward(0,3)), op 12 (all_reduce)".
std::string PlaceOf(const IssuedOp& op);

/// use(op) for those of `ops`, a step's in issue order, that take the waits of the instance that
/// begins with `first`.
template <typename Ops, typename Use>
void ForEachGated(Ops& ops, const IssuedOp& first, const Use& use) {
  const auto begin = static_cast<size_t>(first.index);
  for (size_t i = begin; i < begin + first.block->ops.size(); ++i) {
    if (ops[i].takes_waits) use(ops[i]);
  }
}

struct IssueOrder {
  std::vector<IssuedOp> ops;
  std::vector<bool> streams_used;  ///< by stream; the compute stream always
};

/// Bytes [begin, end) of the arena that operand `i` of the op covers; empty when it is absent.
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
};
ByteRange RangeOf(const IssuedOp& op, size_t i);

/// Walks the program once. Also checks what memory safety rests on: indices of blocks, tensors,
/// events and streams, the op schema, and that every operand lies in the arena. kInfeasible, naming
/// task and op.
Result<IssueOrder> MakeIssueOrder(const planner::RankProgram& program);

}  // namespace meshwright::runtime
