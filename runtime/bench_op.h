// A program of one op on synthetic operands, for timing its kernel.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/ir/op_schema.h"
#include "runtime/kernels.h"

namespace meshwright::runtime {

/// An operand by the name in the op's row; those that are not listed are absent.
struct BenchOperand {
  std::string name;
  std::vector<int64_t> shape;
  planner::DType dtype = planner::DType::kF32;
};

struct BenchCase {
  planner::OpKind kind = planner::OpKind::kCopy;
  planner::OpAttributes attributes;
  std::vector<BenchOperand> operands;
};

/// Block, program and memory layout of one case; the context points into it, so it stays where it
/// is.
struct BenchOp {
  planner::Block block;
  planner::Op op;
  planner::RankProgram program;
  planner::RankBinding binding;
  planner::Instance instance;
  planner::Task task;
  RankContext context;
  int64_t bytes = 0;  ///< of all operands, each aligned to `alignment`

  BenchOp(const BenchCase& from, int64_t alignment) {
    const planner::OpRow& row = planner::RowOf(from.kind);
    block.name = "bench";
    op.kind = from.kind;
    op.attributes = from.attributes;
    for (const planner::OperandRow& operand : row.operands)
      op.operands.push_back({-1, operand.access});
    for (const BenchOperand& o : from.operands) {
      const auto index = static_cast<size_t>(planner::OperandIndex(from.kind, o.name.c_str()));
      op.operands[index].tensor = static_cast<int32_t>(block.tensors.size());
      block.tensors.push_back({o.name, o.dtype, o.shape, planner::Region::kScratch, bytes});
      bytes += (block.tensors.back().bytes() + alignment - 1) / alignment * alignment;
    }
    if (from.kind == planner::OpKind::kOptimizerStep || from.kind == planner::OpKind::kSquaredNorm)
      AddBucket(from);
    program.blocks.assign(1, {});
    program.blocks.front().ops = {op};
    context.program = &program;
    context.binding = &binding;
    context.facts.dtypes = planner::PolicyOf(block.tensors.front().dtype);
  }
  BenchOp(const BenchOp&) = delete;
  BenchOp& operator=(const BenchOp&) = delete;

  /// The op on operands that lie at `arena`.
  OpCall At(std::byte* arena) const { return {context, block, op, instance, task, arena}; }

 private:
  /// One parameter that fills the bucket of the first operand.
  void AddBucket(const BenchCase& from) {
    const int64_t elements = block.tensors.front().elements();
    op.attributes.bucket = 0;
    program.buckets.push_back({0, elements, 0});
    planner::ParameterEntry entry;
    entry.name = "bench";
    entry.global_shape = entry.local_shape = from.operands.front().shape;
    program.parameters.push_back(entry);
  }
};

}  // namespace meshwright::runtime
