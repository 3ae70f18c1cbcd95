#include "runtime/measure_cpu_programs.h"

#include <fmt/format.h>

namespace meshwright::runtime {
namespace {

using planner::Access;
using planner::DType;
using planner::OpKind;
using planner::Region;

constexpr int64_t kDataAt = 4096;  // the step scalars lie before
constexpr planner::EventId kCopied = 0;
constexpr planner::EventId kMet = 1;

planner::TensorView View(const char* name, DType dtype, int64_t elements, int64_t offset) {
  return {name, dtype, {elements}, Region::kScratch, offset};
}

planner::Op Copy() {
  planner::Op op;
  op.kind = OpKind::kCopy;
  op.operands = {{0, Access::kRead}, {1, Access::kWrite}};
  return op;
}

planner::RankProgram EmptyProgram(int64_t data_bytes) {
  planner::RankProgram program;
  program.streams = {{"compute", planner::StreamKind::kCompute},
                     {"tensor", planner::StreamKind::kTensor}};
  program.events = 2;
  program.arena.size = kDataAt + data_bytes;
  program.arena.memory.scratch = program.arena.size;
  return program;
}

planner::Block CopyBlock(int64_t elements) {
  planner::Block block;
  block.name = "copy";
  block.tensors = {View("from", DType::kF32, elements, kDataAt),
                   View("to", DType::kF32, elements, kDataAt + 4 * elements)};
  block.ops = {Copy()};
  return block;
}

planner::Task Repeat(int times) {
  planner::Task task;
  task.instances.resize(static_cast<size_t>(times));
  return task;
}

planner::Programs Bare() {
  planner::Programs programs;
  programs.facts.sequence = programs.facts.micro_batch = programs.facts.micro_batches = 1;
  programs.facts.global_batch = 1;
  programs.modules.emplace_back();
  return programs;
}

/// Operands of a collective or message of `elements` elements behind the two of the copy.
void AddCommunication(OpKind kind, DType dtype, int size, int64_t elements, planner::Block* block) {
  const int64_t at = kDataAt + 8 * kRoundCopy;
  planner::Op op;
  op.kind = kind;
  op.stream = planner::kTensorStream;
  op.waits = {kCopied};
  op.signal = kMet;
  op.attributes.communicator = 0;
  op.attributes.peer = kind == OpKind::kSend ? 1 : 0;
  block->tensors.push_back(View("whole", dtype, elements, at));
  block->tensors.push_back(View("part", dtype, elements / size, at + elements * 8));
  switch (kind) {
    case OpKind::kAllGather:
      op.operands = {{3, Access::kRead}, {2, Access::kWrite}};
      break;
    case OpKind::kReduceScatter:
      op.operands = {{2, Access::kRead}, {3, Access::kWrite}};
      break;
    case OpKind::kSend:
      op.operands = {{2, Access::kRead}};
      break;
    case OpKind::kRecv:
      op.operands = {{2, Access::kWrite}};
      break;
    default:
      op.operands = {{2, Access::kReadWrite}};
      break;
  }
  block->ops.push_back(std::move(op));
}

}  // namespace

planner::Programs OpProgram(int ranks, int ops, int64_t elements) {
  planner::Programs programs = Bare();
  planner::RankProgram program = EmptyProgram(8 * elements);
  program.blocks = {CopyBlock(elements)};
  program.tasks = {Repeat(ops)};
  programs.programs = {std::move(program)};
  programs.ranks.resize(static_cast<size_t>(ranks));
  return programs;
}

planner::Programs RoundProgram(int size, int groups, int rounds, int64_t elements, OpKind kind,
                               DType dtype) {
  planner::Programs programs = Bare();
  const bool message = kind == OpKind::kSend;
  // Both ends of a message have programs of their own.
  for (const OpKind end : {kind, OpKind::kRecv}) {
    if (end == OpKind::kRecv && !message) break;
    planner::RankProgram program = EmptyProgram(8 * kRoundCopy + 16 * elements);
    program.communicators = {{"group", planner::CommunicatorKind::kTensor, size}};
    planner::Block block = CopyBlock(kRoundCopy);
    block.ops.front().waits = {kMet};
    block.ops.front().signal = kCopied;
    AddCommunication(end, dtype, size, elements, &block);
    program.blocks = {std::move(block)};
    program.tasks = {Repeat(rounds)};
    programs.programs.push_back(std::move(program));
  }
  for (int g = 0; g < groups; ++g) {
    planner::Group group;
    group.name = fmt::format("group {}", g);
    for (int i = 0; i < size; ++i) {
      group.ranks.push_back(static_cast<int32_t>(programs.ranks.size()));
      planner::RankBinding binding;
      binding.program = message && i > 0 ? 1 : 0;
      binding.groups = {g};
      programs.ranks.push_back(binding);
    }
    programs.groups.push_back(std::move(group));
  }
  return programs;
}

}  // namespace meshwright::runtime
