#include <fmt/format.h>

#include "planner/ir/op_schema.h"
#include "planner/verify/checks.h"
#include "planner/verify/names.h"

namespace meshwright::planner {
namespace {

/// Registers and streams beyond this are a mistake, and would cost memory to follow.
constexpr int32_t kMaxEvents = 1 << 22;
constexpr size_t kMaxStreams = 1024;
/// Bytes of one tensor; sums of a few of them with base and offset fit 64 bits.
constexpr int64_t kMaxBytes = int64_t{1} << 60;

bool InRange(int64_t index, size_t size) {
  return index >= 0 && index < static_cast<int64_t>(size);
}

Status Bad(const std::string& where, const std::string& what) {
  return Infeasible(
      fmt::format("indices: {}: {}; the program is not one that lowering makes", where, what));
}

/// Shape positive, bytes below kMaxBytes.
bool SizeIsSane(const TensorView& t) {
  if (t.shape.empty()) return false;
  int64_t bytes = SizeOf(t.dtype);
  for (int64_t d : t.shape) {
    if (d <= 0 || bytes <= 0 || d > kMaxBytes / bytes) return false;
    bytes *= d;
  }
  return true;
}

Status CheckOpIndices(const RankProgram& program, const Block& block, const std::string& where) {
  for (size_t i = 0; i < block.ops.size(); ++i) {
    const Op& op = block.ops[i];
    if (!InRange(static_cast<int64_t>(op.kind), kOpKindCount)) {
      return Bad(where, fmt::format("block {}, op {} has unknown kind {}", block.name, i,
                                    static_cast<int>(op.kind)));
    }
    const std::string_view name = RowOf(op.kind).name;
    if (!InRange(op.stream, program.streams.size())) {
      return Bad(where,
                 fmt::format("block {}, op {} {} is on stream {}, allowed are 0..{}", block.name, i,
                             name, op.stream, static_cast<int64_t>(program.streams.size()) - 1));
    }
    if (op.signal != -1 && !InRange(op.signal, static_cast<size_t>(program.events))) {
      return Bad(where, fmt::format("block {}, op {} {} signals event {} of {}", block.name, i,
                                    name, op.signal, program.events));
    }
    for (EventId e : op.waits) {
      if (InRange(e, static_cast<size_t>(program.events))) continue;
      return Bad(where, fmt::format("block {}, op {} {} waits for event {} of {}", block.name, i,
                                    name, e, program.events));
    }
    for (const Operand& o : op.operands) {
      if (o.tensor == -1 || InRange(o.tensor, block.tensors.size())) continue;
      return Bad(where, fmt::format("block {}, op {} {} names tensor {} of {}", block.name, i, name,
                                    o.tensor, block.tensors.size()));
    }
    if ((IsCollective(op.kind) || IsMessage(op.kind)) &&
        !InRange(op.attributes.communicator, program.communicators.size())) {
      return Bad(where,
                 fmt::format("block {}, op {} {} is on communicator {} of {}", block.name, i, name,
                             op.attributes.communicator, program.communicators.size()));
    }
  }
  return Status::Ok();
}

Status CheckBlockIndices(const RankProgram& program, const std::string& where) {
  for (const Block& block : program.blocks) {
    for (const TensorView& t : block.tensors) {
      if (!InRange(static_cast<int64_t>(t.region), kRegionCount) || t.offset < 0 ||
          t.offset > kMaxBytes || !SizeIsSane(t)) {
        return Bad(where, fmt::format("block {}, tensor {} has no sane region, offset or shape",
                                      block.name, t.name));
      }
    }
    MW_RETURN_IF_ERROR(CheckOpIndices(program, block, where));
  }
  return Status::Ok();
}

Status CheckInstanceIndices(const RankProgram& program, const std::string& where) {
  for (const Task& task : program.tasks) {
    for (const Instance& i : task.instances) {
      if (!InRange(i.block, program.blocks.size())) {
        return Bad(where, fmt::format("task {} names block {} of {}", Label(task), i.block,
                                      program.blocks.size()));
      }
      if (program.blocks[static_cast<size_t>(i.block)].ops.empty()) {
        return Bad(where, fmt::format("task {} runs block {}, which has no ops", Label(task),
                                      program.blocks[static_cast<size_t>(i.block)].name));
      }
      for (const auto* events : {&i.waits, &i.signals}) {
        for (EventId e : *events) {
          if (InRange(e, static_cast<size_t>(program.events))) continue;
          return Bad(where,
                     fmt::format("task {} names event {} of {}", Label(task), e, program.events));
        }
      }
      for (int64_t base : i.base) {
        if (base >= 0 && base <= kMaxBytes) continue;
        return Bad(where, fmt::format("task {} has base address {}", Label(task), base));
      }
    }
  }
  return Status::Ok();
}

Status CheckRankIndices(const Programs& programs) {
  for (const Group& group : programs.groups) {
    for (int32_t rank : group.ranks) {
      if (InRange(rank, programs.ranks.size())) continue;
      return Bad(fmt::format("group {}", group.name),
                 fmt::format("member {} is not a rank, allowed are 0..{}", rank,
                             static_cast<int64_t>(programs.ranks.size()) - 1));
    }
  }
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    const RankBinding& binding = programs.ranks[r];
    const std::string where = fmt::format("rank {}", r);
    if (!InRange(binding.program, programs.programs.size())) {
      return Bad(where, fmt::format("program {} of {}", binding.program, programs.programs.size()));
    }
    const RankProgram& program = programs.programs[static_cast<size_t>(binding.program)];
    if (binding.groups.size() != program.communicators.size()) {
      return Bad(where, fmt::format("{} groups for the {} communicators of its program",
                                    binding.groups.size(), program.communicators.size()));
    }
    for (size_t c = 0; c < binding.groups.size(); ++c) {
      if (InRange(binding.groups[c], programs.groups.size())) continue;
      return Bad(where,
                 fmt::format("communicator {} is group {} of {}", program.communicators[c].name,
                             binding.groups[c], programs.groups.size()));
    }
  }
  return Status::Ok();
}

}  // namespace

Status CheckIndices(const Programs& programs) {
  if (programs.ranks.empty()) return Bad("programs", "there are no ranks");
  for (size_t p = 0; p < programs.programs.size(); ++p) {
    const RankProgram& program = programs.programs[p];
    std::string where = fmt::format("program {}", p);
    if (!InRange(program.module, programs.modules.size())) {
      return Bad(where, fmt::format("module {} of {}", program.module, programs.modules.size()));
    }
    where = verify::NameRanksOf(programs, static_cast<int32_t>(p));
    if (program.events < 0 || program.events > kMaxEvents || program.streams.size() > kMaxStreams ||
        program.streams.empty()) {
      return Bad(where,
                 fmt::format("{} events and {} streams; allowed are at most {} and 1..{}",
                             program.events, program.streams.size(), kMaxEvents, kMaxStreams));
    }
    MW_RETURN_IF_ERROR(CheckBlockIndices(program, where));
    MW_RETURN_IF_ERROR(CheckInstanceIndices(program, where));
  }
  return CheckRankIndices(programs);
}

}  // namespace meshwright::planner
