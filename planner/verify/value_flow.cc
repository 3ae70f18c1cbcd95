#include "planner/verify/value_flow.h"

#include <fmt/format.h>

namespace meshwright::planner::verify {

AreaRule RuleAt(const ArenaLayout& arena, int64_t byte) {
  const auto inside = [&](int64_t start, int64_t bytes) {
    return byte >= start && byte - start < bytes;
  };
  if (inside(arena.parameters, arena.memory.parameters)) return AreaRule::kState;
  if (inside(arena.optimizer, arena.memory.optimizer)) return AreaRule::kState;
  if (inside(arena.gradients, arena.memory.gradients)) return AreaRule::kAccumulated;
  if (inside(arena.io, kScalarBytes)) return AreaRule::kAccumulated;
  return AreaRule::kTransient;
}

bool ReadIsCurrent(AreaRule rule, const Toucher& writer, const Toucher& reader, ReadKind kind) {
  const bool same_step = writer.task != nullptr && writer.step == reader.step;
  switch (rule) {
    case AreaRule::kState:
      return true;
    case AreaRule::kAccumulated:
      return !kind.accumulates || same_step;
    case AreaRule::kTransient:
      break;
  }
  if (!same_step) return false;
  // Work of the whole step (-1) reads and feeds all micro-batches.
  const auto agree = [](int64_t a, int64_t b) { return a < 0 || b < 0 || a == b; };
  return agree(writer.task->micro_batch, reader.task->micro_batch) &&
         agree(writer.task->chunk, reader.task->chunk) &&
         (!kind.saved || writer.layer == reader.layer);
}

std::string WhyStale(AreaRule rule, const Toucher& writer, const Toucher& reader) {
  if (rule == AreaRule::kAccumulated) return "adds to what no op of this step has written";
  if (writer.task == nullptr) return "reads what no op has written";
  const std::string who = writer.layer >= 0
                              ? fmt::format("{} of layer {}", Label(*writer.task), writer.layer)
                              : Label(*writer.task);
  return writer.step != reader.step
             ? fmt::format("reads what task {} wrote in the step before", who)
             : fmt::format("reads what task {} wrote over it", who);
}

}  // namespace meshwright::planner::verify
