#include "planner/verify/names.h"

#include <fmt/format.h>

#include "planner/ir/op_schema.h"

namespace meshwright::planner::verify {

const Instance& InstanceAt(const RankProgram& program, const OpPlace& place) {
  return program.tasks[static_cast<size_t>(place.task)]
      .instances[static_cast<size_t>(place.instance)];
}

const Block& BlockAt(const RankProgram& program, const OpPlace& place) {
  return program.blocks[static_cast<size_t>(InstanceAt(program, place).block)];
}

const Op& OpAt(const RankProgram& program, const OpPlace& place) {
  return BlockAt(program, place).ops[static_cast<size_t>(place.op)];
}

std::string NameRank(const Programs& programs, int32_t rank) {
  const RankProgram& program =
      programs.programs[static_cast<size_t>(programs.ranks[static_cast<size_t>(rank)].program)];
  return fmt::format("rank {} ({}, stage {})", rank,
                     programs.modules[static_cast<size_t>(program.module)].module, program.stage);
}

std::string NameRanksOf(const Programs& programs, int32_t index) {
  int32_t first = -1;
  int64_t count = 0;
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    if (programs.ranks[r].program != index) continue;
    if (first < 0) first = static_cast<int32_t>(r);
    ++count;
  }
  if (first < 0) return fmt::format("program {} (of no rank)", index);
  const std::string name = NameRank(programs, first);
  return count == 1 ? name : fmt::format("{} and {} more with its program", name, count - 1);
}

std::string NameInstance(const RankProgram& program, int32_t task, int32_t instance) {
  const OpPlace place{task, instance, 0};
  const Instance& i = InstanceAt(program, place);
  std::string name =
      fmt::format("task {}, block {}", Label(program.tasks[static_cast<size_t>(task)]),
                  BlockAt(program, place).name);
  if (i.layer >= 0) name += fmt::format(" of layer {}", i.layer);
  return name;
}

std::string NameOp(const RankProgram& program, const OpPlace& place) {
  const Op& op = OpAt(program, place);
  return fmt::format("{}, op {} {} on stream {}", NameInstance(program, place.task, place.instance),
                     place.op, RowOf(op.kind).name,
                     program.streams[static_cast<size_t>(op.stream)].name);
}

}  // namespace meshwright::planner::verify
