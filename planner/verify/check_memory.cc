#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "planner/verify/checks.h"
#include "planner/verify/names.h"

namespace meshwright::planner {
namespace {

struct Area {
  const char* name;
  int64_t begin;
  int64_t bytes;
};

std::array<Area, 7> AreasOf(const ArenaLayout& a) {
  return {{{"parameters", a.parameters, a.memory.parameters},
           {"gradients", a.gradients, a.memory.gradients},
           {"optimizer", a.optimizer, a.memory.optimizer},
           {"io", a.io, a.memory.io},
           {"saved", a.saved, a.memory.saved},
           {"scratch", a.scratch, a.memory.scratch},
           {"communication", a.communication, a.memory.communication}}};
}

constexpr int64_t kMaxBytes = int64_t{1} << 60;

Status Bad(const std::string& who, const std::string& what) {
  return Infeasible(fmt::format("memory: {}: {}", who, what));
}

Status CheckAreas(const ArenaLayout& arena, const std::string& who) {
  int64_t end = 0;
  for (const Area& area : AreasOf(arena)) {
    if (area.bytes < 0 || area.bytes > kMaxBytes || area.begin > kMaxBytes) {
      return Bad(who, fmt::format("the {} area has {} bytes", area.name, area.bytes));
    }
    if (area.begin < end) {
      return Bad(who, fmt::format("the {} area starts at byte {}, the one before ends at {}; areas "
                                  "must be disjoint and in order",
                                  area.name, area.begin, end));
    }
    end = area.begin + area.bytes;
  }
  if (end > arena.size) {
    return Bad(who, fmt::format("the areas end at byte {}, the arena at {}", end, arena.size));
  }
  if (arena.memory.arena() != arena.size) {
    return Bad(who, fmt::format("the memory breakdown adds up to {} bytes, the arena has {}",
                                arena.memory.arena(), arena.size));
  }
  return Status::Ok();
}

Status CheckPools(const RankProgram& program, const std::string& who) {
  const ArenaLayout& arena = program.arena;
  if (arena.slots < 0 || arena.slot_bytes < 0 ||
      (arena.slots > 0 && arena.slot_bytes > kMaxBytes / arena.slots) ||
      arena.slots * arena.slot_bytes > arena.memory.saved || arena.slots != arena.memory.slots) {
    return Bad(who,
               fmt::format("{} slots of {} bytes in a saved area of {} bytes for {} slots",
                           arena.slots, arena.slot_bytes, arena.memory.saved, arena.memory.slots));
  }
  for (const Block& block : program.blocks) {
    if (block.saved_bytes > arena.slot_bytes) {
      return Bad(who, fmt::format("block {} saves {} bytes, a slot has {}", block.name,
                                  block.saved_bytes, arena.slot_bytes));
    }
    if (block.scratch_bytes > arena.memory.scratch) {
      return Bad(who, fmt::format("block {} needs {} bytes of scratch, the arena has {}",
                                  block.name, block.scratch_bytes, arena.memory.scratch));
    }
  }
  if (arena.memory.io < kScalarBytes) {
    return Bad(who, fmt::format("the io area has {} bytes, the step scalars alone need {}",
                                arena.memory.io, kScalarBytes));
  }
  return Status::Ok();
}

Status CheckLimits(const Programs& programs, const VerifyLimits& limits) {
  if (limits.device_bytes.size() > 1 && limits.device_bytes.size() != programs.ranks.size()) {
    return Infeasible(
        fmt::format("memory: limits for {} devices and {} ranks; give one for each "
                    "rank or one for all",
                    limits.device_bytes.size(), programs.ranks.size()));
  }
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    const RankProgram& program = programs.programs[static_cast<size_t>(programs.ranks[r].program)];
    const auto who = [&] { return verify::NameRank(programs, static_cast<int32_t>(r)); };
    if (!limits.device_bytes.empty()) {
      const int64_t device = limits.device_bytes[limits.device_bytes.size() == 1 ? 0 : r];
      const int64_t outside = std::max<int64_t>(program.arena.memory.outside, 0);
      if (program.arena.size > device || outside > device - program.arena.size) {
        return Bad(who(), fmt::format("the arena of {} bytes and {} bytes outside it exceed the {} "
                                      "bytes of the device; recompute, shard or split more",
                                      program.arena.size, outside, device));
      }
    }
    const auto communicators = static_cast<int64_t>(program.communicators.size());
    if (limits.max_communicators > 0 && communicators > limits.max_communicators) {
      return Bad(who(), fmt::format("{} communicators, allowed are {}; use fewer virtual stages or "
                                    "parallel axes",
                                    communicators, limits.max_communicators));
    }
    const auto streams = static_cast<int64_t>(program.streams.size());
    if (limits.max_streams > 0 && streams > limits.max_streams) {
      return Bad(who(), fmt::format("{} streams, allowed are {} (more would share hardware queues "
                                    "and could wait for each other)",
                                    streams, limits.max_streams));
    }
  }
  return Status::Ok();
}

}  // namespace

Status CheckMemory(const Programs& programs, const VerifyLimits& limits) {
  MW_RETURN_IF_ERROR(CheckIndices(programs));
  for (size_t p = 0; p < programs.programs.size(); ++p) {
    const RankProgram& program = programs.programs[p];
    const std::string who = verify::NameRanksOf(programs, static_cast<int32_t>(p));
    MW_RETURN_IF_ERROR(CheckAreas(program.arena, who));
    MW_RETURN_IF_ERROR(CheckPools(program, who));
  }
  return CheckLimits(programs, limits);
}

}  // namespace meshwright::planner
