// End of a step and memory of a stage: the rest of StackStageCosts.
#include <algorithm>
#include <cmath>

#include "planner/stack/overlap.h"
#include "planner/stack/stack_costs.h"

namespace meshwright::planner::stack {

double StackStageCosts::ReductionTime(const Split& split, double parameters, bool experts) const {
  const int64_t size = experts ? split.expert_dp() : split.dp * split.cp;
  if (size <= 1 || parameters <= 0) return 0.0;
  const Groups strides = GroupsOf(split);
  const int64_t stride = experts        ? strides.expert_data_stride
                         : split.cp > 1 ? strides.context_stride
                                        : strides.data_stride;
  const cost::PathFacts path = PathOf(inputs_.fabric, size, stride);
  const Bytes bytes(
      static_cast<int64_t>(std::llround(parameters * inputs_.stack.state.gradient_wire)));
  const auto kind = split.sharding == ShardingLevel::kNone ? cost::CollectiveKind::kAllReduce
                                                           : cost::CollectiveKind::kReduceScatter;
  return inputs_.stack.factors.reduction *
         ToSeconds(prices_.PriceCollective({kind, bytes}, path)).value();
}

double StackStageCosts::GatherTime(const Split& split, double parameters, bool experts) const {
  if (split.sharding == ShardingLevel::kNone || parameters <= 0) return 0.0;
  const int64_t size = experts ? split.expert_dp() : split.dp * split.cp;
  if (size <= 1) return 0.0;
  const Groups strides = GroupsOf(split);
  const int64_t stride = experts        ? strides.expert_data_stride
                         : split.cp > 1 ? strides.context_stride
                                        : strides.data_stride;
  const cost::PathFacts path = PathOf(inputs_.fabric, size, stride);
  const Bytes bytes(static_cast<int64_t>(std::llround(parameters * inputs_.stack.state.weights)));
  return inputs_.stack.factors.reduction *
         ToSeconds(prices_.PriceCollective({cost::CollectiveKind::kAllGather, bytes}, path))
             .value();
}

double StackStageCosts::OptimizerTime(const Split& split, const ItemParameters& parameters) const {
  const bool sharded = split.sharding != ShardingLevel::kNone;
  const double dense =
      parameters.dense / (sharded ? static_cast<double>(split.dp * split.cp) : 1.0);
  const double expert =
      parameters.expert / (sharded ? static_cast<double>(split.expert_dp()) : 1.0);
  const double rate =
      inputs_.profile.memory_bandwidth.value.value() * inputs_.profile.memory_efficiency.value;
  return (dense + expert) * inputs_.stack.factors.optimizer_bytes_per_parameter / rate;
}

double StackStageCosts::EndOfStep(const Split& split, const StageSums& sums) {
  if (inputs_.frozen) return inputs_.stack.factors.step_s;
  const StackLowering& lowering = inputs_.stack.lowering;
  const double share = inputs_.stack.factors.hidden_share;
  double time = OptimizerTime(split, sums.parameters) + inputs_.stack.factors.step_s;
  if (!SharesParameters(split, lowering)) {
    const double reduction = ReductionTime(split, sums.parameters.dense, false) +
                             ReductionTime(split, sums.parameters.expert, true);
    const double gather = GatherTime(split, sums.parameters.dense, false) +
                          GatherTime(split, sums.parameters.expert, true);
    // The last micro-batch's backward, and the first one's forward, of one chunk or all.
    const double backward = lowering.hides_gradient_reduction ? sums.backward_s : 0.0;
    const double forward = lowering.hides_parameter_gather ? sums.forward_s : 0.0;
    time += Exposed(reduction, backward, share) + Exposed(gather, forward, share);
  }
  if (inputs_.module.tied_embeddings && split.pp > 1) {
    const double rows = static_cast<double>(inputs_.module.vocab) / static_cast<double>(split.tp);
    const double bytes =
        rows * static_cast<double>(inputs_.module.hidden) * inputs_.stack.state.gradient_wire;
    const cost::PathFacts path =
        PathOf(inputs_.fabric, 2, GroupsOf(split).stage_stride * (split.pp - 1));
    time += ToSeconds(prices_.PriceCollective({cost::CollectiveKind::kAllReduce,
                                               Bytes(static_cast<int64_t>(std::llround(bytes)))},
                                              path))
                .value();
  }
  return time;
}

double StackStageCosts::EndOfStepBound(const Split& split, const ItemParameters& parameters) {
  return (inputs_.frozen ? 0.0 : OptimizerTime(split, parameters)) + inputs_.stack.factors.step_s;
}

StageMemory StackStageCosts::Memory(const Split& split, const StageSums& sums, double in_flight) {
  const StackState& state = inputs_.stack.state;
  const StackAllocator& allocator = inputs_.stack.allocator;
  const cost::GpuModel& gpu = *inputs_.profile.gpu;
  const auto replicas = static_cast<double>(split.dp * split.cp);
  const auto expert_replicas = static_cast<double>(split.expert_dp());
  const auto held = [&](double bytes, bool sharded) {
    return bytes * (sums.parameters.dense / (sharded ? replicas : 1.0) +
                    sums.parameters.expert / (sharded ? expert_replicas : 1.0));
  };
  StageMemory m;
  m.parameters = held(state.weights, split.sharding == ShardingLevel::kZero3);
  // Gathered once a step, and gradients added up whole: what pipelines do but for resharding ones.
  const bool stays =
      split.sharding == ShardingLevel::kZero3 && !SharesParameters(split, inputs_.stack.lowering);
  if (stays) m.parameters += held(state.gathered, false);
  m.gradients = inputs_.frozen
                    ? 0.0
                    : held(state.gradients, split.sharding >= ShardingLevel::kZero2 && !stays);
  m.optimizer =
      inputs_.frozen ? 0.0 : held(state.optimizer, split.sharding >= ShardingLevel::kZero1);
  m.activations = sums.saved_bytes * in_flight;
  m.transient = sums.transient_bytes + allocator.workspace_bytes;
  const double allocated = m.parameters + m.gradients + m.optimizer + m.activations + m.transient;
  m.reserve = allocated * allocator.fragmentation + allocator.reserve_bytes;
  int groups = 1;
  for (const int64_t size : {split.tp, split.cp, split.ep, split.dp, split.pp}) {
    if (size > 1) ++groups;
  }
  m.outside =
      static_cast<double>(gpu.context_memory.value.value() + gpu.library_memory.value.value());
  if (split.ranks() > 1) {
    m.outside += static_cast<double>(gpu.communicator_memory.value.value()) +
                 groups * static_cast<double>(gpu.default_ctas.value) *
                     static_cast<double>(gpu.cta_collective_memory.value.value());
  }
  return m;
}

}  // namespace meshwright::planner::stack
