#include "runtime/hidden_communication.h"

#include <algorithm>
#include <map>
#include <utility>

namespace meshwright::runtime {
namespace {

using planner::OpTraceRow;
using planner::StreamKind;

/// [first, second) in nanoseconds.
using Interval = std::pair<int64_t, int64_t>;
using Intervals = std::vector<Interval>;

/// Sorted and disjoint.
Intervals Union(Intervals all) {
  std::sort(all.begin(), all.end());
  Intervals merged;
  for (const Interval& i : all) {
    if (i.second <= i.first) continue;
    if (!merged.empty() && i.first <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, i.second);
    } else {
      merged.push_back(i);
    }
  }
  return merged;
}

int64_t Length(const Intervals& disjoint) {
  int64_t sum = 0;
  for (const Interval& i : disjoint) sum += i.second - i.first;
  return sum;
}

/// Length of what lies in both; each sorted and disjoint.
int64_t Overlap(const Intervals& a, const Intervals& b) {
  int64_t sum = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum +=
        std::max<int64_t>(0, std::min(a[i].second, b[j].second) - std::max(a[i].first, b[j].first));
    (a[i].second < b[j].second ? i : j) += 1;
  }
  return sum;
}

/// Shortest time of each operation over the members of its group, by (group, number).
using WireTimes = std::map<std::pair<int32_t, int64_t>, int64_t>;

/// Calls use(row, number of the row's operation on its group) for communication.
template <typename Use>
void ForEachOperation(const std::vector<OpTraceRow>& rows, const Use& use) {
  std::map<std::pair<int32_t, int32_t>, int64_t> numbers;  // by (rank, group)
  for (const OpTraceRow& row : rows) {
    if (row.group >= 0) use(row, numbers[{row.rank, row.group}]++);
  }
}

}  // namespace

std::vector<CommunicationTime> HiddenCommunication(const std::vector<OpTraceRow>& rows) {
  int64_t first_step = rows.empty() ? 0 : rows.front().step;
  for (const OpTraceRow& row : rows) first_step = std::min(first_step, row.step);
  WireTimes wire;
  ForEachOperation(rows, [&](const OpTraceRow& row, int64_t number) {
    const int64_t took = row.end_ns - row.start_ns;
    const auto [at, first] = wire.try_emplace({row.group, number}, took);
    if (!first) at->second = std::min(at->second, took);
  });
  std::map<StreamKind, std::map<int32_t, Intervals>> traffic;  // by rank
  ForEachOperation(rows, [&](const OpTraceRow& row, int64_t number) {
    if (row.step != first_step) return;
    const int64_t took = wire.at({row.group, number});
    traffic[row.stream][row.rank].emplace_back(row.end_ns - took, row.end_ns);
  });
  std::map<int32_t, Intervals> computing;
  for (const OpTraceRow& row : rows) {
    if (row.group >= 0 || row.stream != StreamKind::kCompute) continue;
    computing[row.rank].emplace_back(row.start_ns, row.end_ns);
  }
  for (auto& [rank, intervals] : computing) intervals = Union(std::move(intervals));
  std::vector<CommunicationTime> times;
  for (const auto& [kind, ranks] : traffic) {
    CommunicationTime& time = times.emplace_back();
    time.traffic = kind;
    for (const auto& [rank, intervals] : ranks) {
      const Intervals busy = Union(intervals);
      time.busy_s += static_cast<double>(Length(busy)) * 1e-9;
      time.hidden_s += static_cast<double>(Overlap(busy, computing[rank])) * 1e-9;
    }
  }
  return times;
}

}  // namespace meshwright::runtime
