#include "planner/space/solution.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace meshwright::planner::space {
namespace {

using stack::StageContent;
using stack::StageSums;

double D(int64_t value) {
  return static_cast<double>(value);
}
size_t S(int64_t value) {
  return static_cast<size_t>(value);
}

}  // namespace

double Solution::peak_bytes() const {
  double peak = 0.0;
  for (const stack::StageMemory& m : memory) peak = std::max(peak, m.total());
  return peak;
}

Solution PriceSolution(const std::vector<DeviceGroup>& groups, const Tuple& tuple,
                       std::vector<int64_t> layers, std::vector<StageContent> stages) {
  Solution s;
  s.tuple = tuple;
  s.groups = GroupOfStages(groups, tuple);
  s.layers = std::move(layers);
  s.stages = std::move(stages);
  double sum = 0.0, most = -std::numeric_limits<double>::infinity(), message = 0.0;
  for (int64_t p = 0; p < tuple.split.pp; ++p) {
    stack::StageCosts& costs = *groups[S(s.groups[S(p)])].costs;
    const stack::ItemTable& table = costs.Items(tuple.split);
    const StageSums sums = stack::SumOf(s.stages[S(p)], table);
    const stack::StageTimes times = stack::TimesOf(tuple.split, table, sums);
    sum += times.z;
    most = std::max(most, D(tuple.split.micro_batches) * times.t - times.z +
                              costs.EndOfStep(tuple.split, sums));
    message = std::max(message, table.message_s);
    s.memory.push_back(costs.Memory(tuple.split, sums, stack::InFlight(tuple.split, p)));
  }
  s.objective_s = sum + stack::FillMessages(tuple.split) * message + most;
  return s;
}

}  // namespace meshwright::planner::space
