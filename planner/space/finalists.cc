#include "planner/space/finalists.h"

#include <algorithm>
#include <utility>

#include "planner/stack/pipeline.h"

namespace meshwright::planner::space {

namespace {

Result<Finalist> Simulated(const std::vector<DeviceGroup>& groups, Solution s) {
  const stack::Split& split = s.tuple.split;
  std::vector<stack::StagePasses> stages;
  double message = 0.0;
  for (size_t p = 0; p < s.stages.size(); ++p) {
    stack::StageCosts& costs = *groups[static_cast<size_t>(s.groups[p])].costs;
    const stack::ItemTable& table = costs.Items(split);
    const double end = costs.EndOfStep(split, stack::SumOf(s.stages[p], table));
    stages.push_back(stack::PassesOf(split, table, s.stages[p], end));
    message = std::max(message, table.message_s);
  }
  MW_ASSIGN_OR_RETURN(const stack::PipelineTimeline timeline,
                      stack::SimulatePipeline(split, stages, message));
  const double gap = timeline.step_s > 0 ? s.objective_s / timeline.step_s - 1 : 0.0;
  return Finalist{std::move(s), timeline.step_s, gap};
}

void SortByTime(std::vector<Finalist>* finalists) {
  std::stable_sort(finalists->begin(), finalists->end(), [](const Finalist& a, const Finalist& b) {
    return a.simulated_s < b.simulated_s;
  });
}

}  // namespace

Result<std::vector<Finalist>> SimulateFinalists(const std::vector<DeviceGroup>& groups,
                                                std::vector<Solution> solutions) {
  std::vector<Finalist> finalists;
  for (Solution& s : solutions) {
    MW_ASSIGN_OR_RETURN(Finalist one, Simulated(groups, std::move(s)));
    finalists.push_back(std::move(one));
  }
  SortByTime(&finalists);
  return finalists;
}

Result<std::vector<Finalist>> BestFinalists(const std::vector<DeviceGroup>& groups,
                                            const std::vector<Solution>& solutions, size_t shown) {
  std::vector<Finalist> finalists;
  double fastest = 0.0;
  for (const Solution& s : solutions) {
    if (finalists.size() >= shown && s.objective_s >= fastest) break;
    MW_ASSIGN_OR_RETURN(Finalist one, Simulated(groups, s));
    fastest = finalists.empty() ? one.simulated_s : std::min(fastest, one.simulated_s);
    finalists.push_back(std::move(one));
  }
  SortByTime(&finalists);
  while (finalists.size() > shown) finalists.pop_back();
  return finalists;
}

}  // namespace meshwright::planner::space
