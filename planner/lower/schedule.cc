#include "planner/lower/schedule.h"

#include <algorithm>

namespace meshwright::planner::lower {
namespace {

std::vector<ScheduleStep> OneForwardOneBackward(int64_t pp, int64_t m, int64_t stage) {
  const int64_t warm = std::min(pp - stage - 1, m);
  std::vector<ScheduleStep> steps;
  for (int64_t i = 0; i < warm; ++i) steps.push_back({true, 0, static_cast<int32_t>(i)});
  for (int64_t i = 0; i < m - warm; ++i) {
    steps.push_back({true, 0, static_cast<int32_t>(warm + i)});
    steps.push_back({false, 0, static_cast<int32_t>(i)});
  }
  for (int64_t i = m - warm; i < m; ++i) steps.push_back({false, 0, static_cast<int32_t>(i)});
  return steps;
}

/// Virtual sequence: groups of N micro-batches, each group running all chunks in turn.
std::vector<std::pair<int32_t, int32_t>> VirtualSequence(int64_t v, int64_t m, int64_t group) {
  std::vector<std::pair<int32_t, int32_t>> table;  // (chunk, micro-batch)
  for (int64_t begin = 0; begin < m; begin += group) {
    for (int64_t c = 0; c < v; ++c) {
      for (int64_t i = begin; i < std::min(begin + group, m); ++i) {
        table.emplace_back(static_cast<int32_t>(c), static_cast<int32_t>(i));
      }
    }
  }
  return table;
}

}  // namespace

int64_t InterleavingGroup(int64_t pp, int64_t micro_batches) {
  for (int64_t n = pp; n <= micro_batches; ++n) {
    const int64_t rest = micro_batches % n;
    if (rest == 0 || rest >= pp) return n;
  }
  return 0;
}

std::vector<ScheduleStep> StageSchedule(int64_t pp, int64_t virtual_stages, int64_t micro_batches,
                                        int64_t stage) {
  if (virtual_stages <= 1) return OneForwardOneBackward(pp, micro_batches, stage);
  const int64_t group = InterleavingGroup(pp, micro_batches);
  const auto table = VirtualSequence(virtual_stages, micro_batches, group);
  const auto total = static_cast<int64_t>(table.size());
  const int64_t warm = std::min(2 * (pp - stage - 1) + (virtual_stages - 1) * group, total);
  std::vector<ScheduleStep> steps;
  const auto forward = [&](int64_t k) {
    steps.push_back(
        {true, table[static_cast<size_t>(k)].first, table[static_cast<size_t>(k)].second});
  };
  const auto backward = [&](int64_t k) {
    const auto& [chunk, micro_batch] = table[static_cast<size_t>(k)];
    steps.push_back({false, static_cast<int32_t>(virtual_stages - 1 - chunk), micro_batch});
  };
  for (int64_t k = 0; k < warm; ++k) forward(k);
  for (int64_t k = 0; k < total - warm; ++k) {
    forward(warm + k);
    backward(k);
  }
  for (int64_t k = total - warm; k < total; ++k) backward(k);
  return steps;
}

SlotAssignment AssignSlots(const std::vector<ScheduleStep>& steps, int64_t virtual_stages,
                           int64_t micro_batches) {
  SlotAssignment result;
  std::vector<int32_t> of(static_cast<size_t>(virtual_stages * micro_batches), -1);
  std::vector<bool> used;
  for (const ScheduleStep& s : steps) {
    const auto key = static_cast<size_t>(s.chunk * micro_batches + s.micro_batch);
    if (s.forward) {
      size_t slot = 0;
      while (slot < used.size() && used[slot]) ++slot;
      if (slot == used.size()) used.push_back(false);
      used[slot] = true;
      of[key] = static_cast<int32_t>(slot);
    } else {
      used[static_cast<size_t>(of[key])] = false;
    }
    result.slot.push_back(of[key]);
  }
  result.slots = static_cast<int64_t>(used.size());
  return result;
}

}  // namespace meshwright::planner::lower
