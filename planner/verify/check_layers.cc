#include <fmt/format.h>

#include <algorithm>

#include "planner/verify/checks.h"
#include "planner/verify/names.h"

namespace meshwright::planner {
namespace {

Status Bad(const std::string& what) {
  return Infeasible("layers: " + what +
                    "; every layer must run once a micro-batch, forward in order, then backward in "
                    "reverse order");
}

/// The chunks of a module are consecutive ranges from layer 0 on, chunk by chunk over the stages.
Status CheckChunks(const ModulePlan& m) {
  if (m.virtual_stages < 1 || m.pp < 1 || m.virtual_stages > (int64_t{1} << 31) / m.pp ||
      static_cast<int64_t>(m.chunks.size()) != m.virtual_stages * m.pp) {
    return Bad(fmt::format("module {} has {} chunks for {} stages of {} each", m.module,
                           m.chunks.size(), m.pp, m.virtual_stages));
  }
  int64_t next = 0;
  for (size_t i = 0; i < m.chunks.size(); ++i) {
    const LayerRange& range = m.chunks[i];
    if (range.first_layer != next || range.layer_count < 0) {
      return Bad(
          fmt::format("module {}: chunk {} of stage {} holds {} layers from {}, but the "
                      "chunks before it end at layer {}",
                      m.module, static_cast<int64_t>(i) / m.pp, static_cast<int64_t>(i) % m.pp,
                      range.layer_count, range.first_layer, next));
    }
    next += range.layer_count;
  }
  return Status::Ok();
}

/// Layers that a Forward or Backward task runs, in task order; blocks of the other phase in it
/// (recomputation) do not count.
std::vector<int64_t> LayersOf(const RankProgram& program, const Task& task) {
  const Phase phase = task.kind == TaskKind::kForward ? Phase::kForward : Phase::kBackward;
  std::vector<int64_t> layers;
  for (const Instance& i : task.instances) {
    if (i.layer >= 0 && program.blocks[static_cast<size_t>(i.block)].phase == phase) {
      layers.push_back(i.layer);
    }
  }
  return layers;
}

Status CheckTaskLayers(const RankProgram& program, const Task& task, const LayerRange& range,
                       const std::string& who) {
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < range.layer_count; ++i) expected.push_back(range.first_layer + i);
  if (task.kind == TaskKind::kBackward) std::reverse(expected.begin(), expected.end());
  const std::vector<int64_t> found = LayersOf(program, task);
  if (found == expected) return Status::Ok();
  size_t at = 0;
  while (at < found.size() && at < expected.size() && found[at] == expected[at]) ++at;
  const std::string what =
      at >= found.size()
          ? fmt::format("layer {} is dropped", expected[at])
          : fmt::format("layer {} runs as number {} of the task{}", found[at], at,
                        at < expected.size() ? fmt::format(" instead of layer {}", expected[at])
                                             : ", which should be over");
  return Bad(fmt::format("{}, task {}: {}; its chunk is layers {}..{}", who, Label(task), what,
                         range.first_layer, range.first_layer + range.layer_count - 1));
}

Status CheckProgram(const Programs& programs, size_t index) {
  const RankProgram& program = programs.programs[index];
  const ModulePlan& m = programs.modules[static_cast<size_t>(program.module)];
  const std::string who = verify::NameRanksOf(programs, static_cast<int32_t>(index));
  const int64_t micro_batches = programs.facts.micro_batches;
  const auto cells = static_cast<size_t>(m.virtual_stages * micro_batches);
  std::vector<uint8_t> forward(cells, 0);
  std::vector<uint8_t> backward(cells, 0);
  for (const Task& task : program.tasks) {
    if (task.kind != TaskKind::kForward && task.kind != TaskKind::kBackward) continue;
    if (task.chunk < 0 || task.chunk >= m.virtual_stages || task.micro_batch < 0 ||
        task.micro_batch >= micro_batches) {
      return Bad(fmt::format("{}, task {}: allowed are chunks 0..{} and micro-batches 0..{}", who,
                             Label(task), m.virtual_stages - 1, micro_batches - 1));
    }
    const auto cell = static_cast<size_t>(task.chunk * micro_batches + task.micro_batch);
    const bool is_forward = task.kind == TaskKind::kForward;
    uint8_t& ran = (is_forward ? forward : backward)[cell];
    if (ran != 0) return Bad(fmt::format("{}: task {} runs twice", who, Label(task)));
    ran = 1;
    if (!is_forward && forward[cell] == 0) {
      return Bad(fmt::format("{}: task {} runs before its forward", who, Label(task)));
    }
    const LayerRange& range = m.chunks[static_cast<size_t>(task.chunk * m.pp + program.stage)];
    MW_RETURN_IF_ERROR(CheckTaskLayers(program, task, range, who));
  }
  for (size_t cell = 0; cell < cells; ++cell) {
    if (forward[cell] != 0 && backward[cell] != 0) continue;
    return Bad(fmt::format(
        "{}: task {}({},{}) is missing", who, forward[cell] == 0 ? "Forward" : "Backward",
        static_cast<int64_t>(cell) / micro_batches, static_cast<int64_t>(cell) % micro_batches));
  }
  return Status::Ok();
}

}  // namespace

Status CheckLayers(const Programs& programs) {
  MW_RETURN_IF_ERROR(CheckIndices(programs));
  for (const ModulePlan& m : programs.modules) MW_RETURN_IF_ERROR(CheckChunks(m));
  if (programs.facts.micro_batches < 1 || programs.facts.micro_batches > (int64_t{1} << 24)) {
    return Bad(fmt::format("a step of {} micro-batches", programs.facts.micro_batches));
  }
  for (size_t p = 0; p < programs.programs.size(); ++p) {
    const RankProgram& program = programs.programs[p];
    const ModulePlan& m = programs.modules[static_cast<size_t>(program.module)];
    if (program.stage < 0 || program.stage >= m.pp) {
      return Bad(fmt::format("program {} is of stage {}; module {} has {}", p, program.stage,
                             m.module, m.pp));
    }
    MW_RETURN_IF_ERROR(CheckProgram(programs, p));
  }
  return Status::Ok();
}

}  // namespace meshwright::planner
