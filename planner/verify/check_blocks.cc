#include <fmt/format.h>

#include <algorithm>

#include "planner/ir/op_schema.h"
#include "planner/verify/checks.h"
#include "planner/verify/names.h"

namespace meshwright::planner {
namespace {

Status Bad(const std::string& what) {
  return Infeasible(what + "; views of a block must stay within what it declares");
}

/// Views in the saved area and in scratch within the extents that the template of an item declares.
Status CheckExtents(const Block& block) {
  if (block.phase == Phase::kStep) return Status::Ok();
  for (const Op& op : block.ops) {
    for (const Operand& o : op.operands) {
      if (o.tensor < 0) continue;
      const TensorView& t = block.tensors[static_cast<size_t>(o.tensor)];
      const int64_t end = t.offset + t.bytes();
      const int64_t limit = t.region == Region::kSaved     ? block.saved_bytes
                            : t.region == Region::kScratch ? block.scratch_bytes
                                                           : end;
      if (end <= limit) continue;
      return Bad(
          fmt::format("block {}, op {}: tensor {} ends at byte {} of the {} area, the block "
                      "declares {} bytes",
                      block.name, ToString(op.kind), t.name, end,
                      t.region == Region::kSaved ? "saved" : "scratch", limit));
    }
  }
  return Status::Ok();
}

/// The first task that runs each block, for messages.
std::string FirstUse(const RankProgram& program, size_t block) {
  for (const Task& task : program.tasks) {
    for (const Instance& i : task.instances) {
      if (static_cast<size_t>(i.block) == block) return "task " + Label(task);
    }
  }
  return "no task";
}

}  // namespace

Status CheckBlocks(const Programs& programs) {
  MW_RETURN_IF_ERROR(CheckIndices(programs));
  for (size_t p = 0; p < programs.programs.size(); ++p) {
    const RankProgram& program = programs.programs[p];
    for (size_t b = 0; b < program.blocks.size(); ++b) {
      const Block& block = program.blocks[b];
      Status status = CheckExtents(block);
      for (size_t i = 0; i < block.ops.size() && status.ok(); ++i) {
        status = CheckOp(block, block.ops[i], program).WithContext(fmt::format("op {}", i));
      }
      if (status.ok()) continue;
      return status.WithContext(fmt::format("blocks: {}, {}",
                                            verify::NameRanksOf(programs, static_cast<int32_t>(p)),
                                            FirstUse(program, b)));
    }
  }
  return Status::Ok();
}

}  // namespace meshwright::planner
