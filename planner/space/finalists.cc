#include "planner/space/finalists.h"

#include <algorithm>
#include <utility>

#include "planner/stack/pipeline.h"

namespace meshwright::planner::space {

Result<std::vector<Finalist>> SimulateFinalists(const std::vector<DeviceGroup>& groups,
                                                std::vector<Solution> solutions) {
  std::vector<Finalist> finalists;
  for (Solution& s : solutions) {
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
    finalists.push_back({std::move(s), timeline.step_s, gap});
  }
  std::stable_sort(finalists.begin(), finalists.end(), [](const Finalist& a, const Finalist& b) {
    return a.simulated_s < b.simulated_s;
  });
  return finalists;
}

}  // namespace meshwright::planner::space
