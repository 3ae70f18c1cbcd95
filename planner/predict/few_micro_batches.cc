#include "planner/predict/few_micro_batches.h"

#include <algorithm>
#include <utility>

#include "planner/lower/lower.h"
#include "planner/lower/schedule.h"
#include "planner/predict/prices.h"
#include "planner/predict/step_times.h"

namespace meshwright::planner {
namespace {

/// A slope this close to the slowest stage's pace has reached it.
constexpr double kSettled = 5e-4;

/// Groups of this many micro-batches settle within one.
constexpr int64_t kLongGroup = 8;

/// In two steps of the one and one of the sum, micro-batches of two steps.
int64_t Simulated(const FewMicroBatches& few) {
  return few.first + (few.first + few.group + 1) / 2;
}

/// Simulates a plan of other numbers of micro-batches.
class OtherCounts {
 public:
  OtherCounts(const Plan& plan, const topologies::Cluster& cluster, const cost::CostModel& costs)
      : plan_(plan), cluster_(cluster), costs_(costs) {}

  Result<StepTimes> Simulate(int64_t micro_batches, int64_t steps) {
    plan_.global_batch = plan_.global_batch / plan_.micro_batches * micro_batches;
    plan_.micro_batches = micro_batches;
    MW_ASSIGN_OR_RETURN(const Programs programs, LowerForPrices(plan_));
    MW_ASSIGN_OR_RETURN(const Prices prices, MakePrices(plan_, cluster_, costs_));
    PredictOptions options;
    options.steps = steps;
    return SimulateSteps(programs, prices, options);
  }

 private:
  Plan plan_;
  const topologies::Cluster& cluster_;
  const cost::CostModel& costs_;
};

/// What a micro-batch adds, by two steps of `fewer` and more.
struct Slope {
  double step_s = 0.0;
  double pace_s = 0.0;  ///< of the slowest stage
  std::vector<double> stage_s;
};

Slope SlopeOf(const StepTimes& fewer, const StepTimes& more, int64_t micro_batches) {
  const auto count = static_cast<double>(micro_batches);
  Slope slope;
  slope.step_s = (more.backward_end_s - fewer.backward_end_s) / count;
  for (size_t s = 0; s < fewer.stage_s.size(); ++s) {
    slope.stage_s.push_back((more.first_stage_s[s] - fewer.first_stage_s[s]) / count);
    slope.pace_s = std::max(slope.pace_s, (more.stage_pass_s[s] - fewer.stage_pass_s[s]) / count);
  }
  return slope;
}

/// Absent: `micro_batches` came before the slope had settled.
Result<std::optional<StepTimes>> Extrapolate(OtherCounts& others, const FewMicroBatches& few,
                                             int64_t micro_batches) {
  MW_ASSIGN_OR_RETURN(StepTimes times, others.Simulate(few.first, 2));
  StepTimes fewer = times;
  int64_t count = few.first;
  for (int64_t groups = 1; count + 2 * groups * few.group <= micro_batches; groups *= 2) {
    const int64_t added = groups * few.group;
    count += added;
    MW_ASSIGN_OR_RETURN(StepTimes more, others.Simulate(count, 1));
    const Slope slope = SlopeOf(fewer, more, added);
    times.step_s += more.backward_end_s - fewer.backward_end_s;
    times.nodes += more.nodes;
    fewer = std::move(more);
    if (slope.step_s < (1 - kSettled) * slope.pace_s) continue;
    const auto rest = static_cast<double>(micro_batches - count);
    times.step_s += rest * std::max(slope.step_s, slope.pace_s);
    for (size_t s = 0; s < times.stage_s.size(); ++s) {
      times.stage_s[s] += static_cast<double>(micro_batches - few.first) * slope.stage_s[s];
    }
    return std::optional(std::move(times));
  }
  return std::optional<StepTimes>();
}

}  // namespace

std::optional<FewMicroBatches> EnoughMicroBatches(int64_t pp, int64_t virtual_stages,
                                                  int64_t micro_batches) {
  if (pp < 1 || micro_batches < 1) return std::nullopt;
  FewMicroBatches few;
  few.first = few.group = std::max<int64_t>(pp, 2);
  if (virtual_stages > 1) {
    few.group = lower::InterleavingGroup(pp, micro_batches);
    if (few.group < 1) return std::nullopt;
    few.first = few.group + micro_batches % few.group;
    // All counts of groups then have the remainder, and groups as small, as the plan's.
    if (lower::InterleavingGroup(pp, few.first) != few.group) return std::nullopt;
  }
  FewMicroBatches settled = few;
  if (few.group < kLongGroup) settled.first += few.group;
  for (const FewMicroBatches& f : {settled, few}) {
    if (4 * Simulated(f) <= 3 * micro_batches) return f;
  }
  return std::nullopt;
}

int64_t SimulatedMicroBatches(int64_t pp, int64_t virtual_stages, int64_t micro_batches) {
  const auto few = EnoughMicroBatches(pp, virtual_stages, micro_batches);
  return few ? Simulated(*few) : micro_batches;
}

Result<SimulatedStep> PredictFromFew(const Plan& plan, const topologies::Cluster& cluster,
                                     const cost::CostModel& costs) {
  MW_ASSIGN_OR_RETURN(const Programs programs, LowerForPrices(plan));
  MW_ASSIGN_OR_RETURN(const Prices prices, MakePrices(plan, cluster, costs));
  const ModulePlan& module = plan.modules.front();
  const auto few = plan.modules.size() == 1
                       ? EnoughMicroBatches(module.pp, module.virtual_stages, plan.micro_batches)
                       : std::nullopt;
  if (!few) return Predict(plan, programs, prices);
  OtherCounts others(plan, cluster, costs);
  MW_ASSIGN_OR_RETURN(std::optional<StepTimes> times,
                      Extrapolate(others, *few, plan.micro_batches));
  if (!times) return Predict(plan, programs, prices);
  return SumUp(plan, programs, prices, std::move(*times));
}

}  // namespace meshwright::planner
