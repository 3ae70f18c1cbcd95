#include "planner/predict/clock_stretch.h"

#include <algorithm>
#include <map>

#include "cost_models/clock.h"
#include "planner/ir/op_schema.h"
#include "planner/lower/lower.h"
#include "planner/lower/make_plan.h"
#include "planner/predict/prices.h"

namespace meshwright::planner {
namespace {

constexpr int64_t kTokens = 16384;

cost::BusyTime BusyOf(const RankProgram& program, const Prices& prices) {
  const cost::GpuModel& gpu = *prices.model().profile().gpu;
  std::map<double, Seconds> limited;
  cost::BusyTime busy;
  for (const Task& task : program.tasks) {
    for (const Instance& instance : task.instances) {
      const Block& block = program.blocks[static_cast<size_t>(instance.block)];
      for (const Op& op : block.ops) {
        if (IsCollective(op.kind) || IsMessage(op.kind)) continue;
        const cost::Work work = CostWork(program, block, op, 1.0);
        const Seconds time = ToSeconds(prices.PriceOp(program, block, op).time);
        if (cost::ClockDecides(work)) {
          limited[cost::ClockAlone(work, gpu)] += time;
        } else {
          busy.memory += time;
        }
      }
    }
  }
  for (const auto& [clock, time] : limited) busy.limited.push_back({clock, time});
  return busy;
}

}  // namespace

Result<double> ClockStretch(const ModelSpec& model, int64_t sequence, DType dtype,
                            const topologies::Cluster& cluster, const cost::CostModel& costs) {
  const auto& gpu = costs.profile().gpu;
  if (!gpu || !gpu->power_clock || dtype != DType::kBf16 || sequence < 1) return 1.0;
  SplitRequest request;
  request.sequence = sequence;
  request.micro_batch = std::max<int64_t>(1, kTokens / sequence);
  request.global_batch = 2 * request.micro_batch;
  request.dtype = dtype;
  request.device = topologies::DeviceKind::kGpu;
  request.vocab_quantum = 128;
  const auto plan = MakePlan(model, request);
  if (!plan.ok()) return 1.0;  // whoever plans or runs it says why
  const auto programs = LowerForPrices(*plan);
  if (!programs.ok()) return 1.0;
  MW_ASSIGN_OR_RETURN(const Prices prices, MakePrices(*plan, cluster, costs));
  return cost::StretchOf(BusyOf(programs->programs.front(), prices), *gpu->power_clock);
}

}  // namespace meshwright::planner
