#include "runtime/rank_setup.h"

#include <fmt/format.h>

#include "planner/ir/op_schema.h"
#include "runtime/op_runner.h"

namespace meshwright::runtime {
namespace {

void MarkScalarReaders(RankSetup* setup) {
  const int64_t begin =
      setup->context.program->arena.io + 8 * static_cast<int64_t>(planner::Scalar::kLearningRate);
  const int64_t end = begin + 16;  // learning rate and step number
  for (const IssuedOp& op : setup->order.ops) {
    bool reads = false;
    for (size_t i = 0; i < op.op->operands.size(); ++i) {
      const ByteRange range = RangeOf(op, i);
      reads = reads || (range.begin < end && range.end > begin);
    }
    setup->reads_scalars.push_back(reads);
    setup->any_reads_scalars = setup->any_reads_scalars || reads;
  }
}

Status CheckArena(const RankSetup& setup, const RunOptions& options) {
  const planner::ArenaLayout& layout = setup.context.program->arena;
  if (options.arena_bytes > 0 && options.arena_bytes < layout.size) {
    return Infeasible(fmt::format("the arena may have {} bytes, the plan needs {}; allow {} more",
                                  options.arena_bytes, layout.size,
                                  layout.size - options.arena_bytes));
  }
  if (setup.any_reads_scalars && layout.io + planner::kScalarBytes > layout.size) {
    return Infeasible("the io area has no room for the step scalars; lower the plan again");
  }
  return Status::Ok();
}

}  // namespace

Result<RankSetup> SetUpRank(const planner::Programs& programs, int rank, const Communicator& world,
                            const KernelTable& kernels, const RunOptions& options) {
  const size_t ranks = programs.ranks.size();
  if (rank < 0 || static_cast<size_t>(rank) >= ranks ||
      static_cast<size_t>(world.size()) != ranks || world.rank() != rank) {
    return InvalidInput(
        fmt::format("the program is for {} ranks, the run has {} (this is rank {}); "
                    "start as many ranks as the plan has",
                    ranks, world.size(), world.rank()));
  }
  if (options.steps < 0) {
    return InvalidInput(fmt::format("{} steps: must be >= 0", options.steps));
  }
  MW_RETURN_IF_ERROR(CheckLrOptions(options.lr));
  RankSetup setup;
  const planner::RankBinding& binding = programs.ranks[static_cast<size_t>(rank)];
  setup.context.program = &programs.programs[static_cast<size_t>(binding.program)];
  setup.context.binding = &binding;
  setup.context.facts = programs.facts;
  setup.context.grid = programs.modules[static_cast<size_t>(setup.context.program->module)];
  setup.context.optimizer = options.optimizer;
  MW_ASSIGN_OR_RETURN(setup.order, MakeIssueOrder(*setup.context.program));
  MW_RETURN_IF_ERROR(OpRunner::CheckKinds(setup.order, kernels));
  MarkScalarReaders(&setup);
  MW_RETURN_IF_ERROR(CheckArena(setup, options));
  return setup;
}

Status CompareFingerprints(const planner::Programs& programs, Communicator& world) {
  const auto mine = static_cast<int64_t>(planner::Fingerprint(programs));
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  MW_RETURN_IF_ERROR(world.AllGather(reinterpret_cast<const std::byte*>(&mine),
                                     reinterpret_cast<std::byte*>(all.data()), 1,
                                     planner::DType::kI64));
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    return InvalidInput(fmt::format(
        "rank 0 has program {:016x}, rank {} has {:016x}; start all ranks with the same plan and "
        "the same version",
        static_cast<uint64_t>(all[0]), r, static_cast<uint64_t>(all[r])));
  }
  return Status::Ok();
}

Status CheckGroups(const RankContext& context, int rank, const std::vector<int>& size_of) {
  const auto& infos = context.program->communicators;
  const auto& bound = context.binding->groups;
  for (size_t i = 0; i < infos.size(); ++i) {
    const bool exists =
        i < bound.size() && bound[i] >= 0 && static_cast<size_t>(bound[i]) < size_of.size();
    if (exists && size_of[static_cast<size_t>(bound[i])] == infos[i].size) continue;
    return Infeasible(
        fmt::format("communicator {} of {} ranks is not bound to a group that has "
                    "rank {} in it; lower the plan again",
                    infos[i].name, infos[i].size, rank));
  }
  return Status::Ok();
}

}  // namespace meshwright::runtime
