#include "planner/predict/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "cost_models/simulate.h"
#include "planner/ir/peer_traffic.h"
#include "planner/predict/model_flops.h"
#include "planner/predict/step_times.h"
#include "planner/predict/task_graph.h"

namespace meshwright::planner {
namespace {

double D(int64_t value) {
  return static_cast<double>(value);
}

/// Last end of every step.
std::vector<int64_t> StepEnds(const TaskGraphOfStep& step, const cost::Timeline& timeline) {
  std::vector<int64_t> ends(static_cast<size_t>(step.steps), 0);
  for (const TaskGraphEntry& e : step.entries) {
    int64_t& end = ends[static_cast<size_t>(e.step)];
    end = std::max(end, timeline.end_ns[static_cast<size_t>(e.node)]);
  }
  return ends;
}

/// For each program its stage, counted over all modules: a stage may have several programs.
std::vector<size_t> StagesOf(const Programs& programs) {
  std::vector<size_t> stages;
  for (size_t p = 0; p < programs.programs.size(); ++p) {
    const auto& program = programs.programs[p];
    const bool same = p > 0 && programs.programs[p - 1].module == program.module &&
                      programs.programs[p - 1].stage == program.stage;
    stages.push_back(p == 0 ? 0 : stages.back() + (same ? 0 : 1));
  }
  return stages;
}

/// Busy time of the compute streams a step, by stage: that of its busiest class.
std::vector<double> StageTimes(const Programs& programs, const TaskGraphOfStep& step,
                               const cost::Timeline& timeline) {
  const std::vector<size_t> stages = StagesOf(programs);
  std::vector<double> times(stages.back() + 1, 0.0);
  for (int32_t c = 0; c < step.classes.size(); ++c) {
    const auto rank = static_cast<size_t>(step.classes.representative(c));
    const auto queue = static_cast<size_t>(step.queues[static_cast<size_t>(c)][kComputeStream]);
    double& time = times[stages[static_cast<size_t>(programs.ranks[rank].program)]];
    time = std::max(time, D(timeline.busy_ns[queue]) * 1e-9 / D(step.steps));
  }
  return times;
}

void FillFirstStep(const Programs& programs, const TaskGraphOfStep& step,
                   const cost::Timeline& timeline, StepTimes* times) {
  const std::vector<size_t> stages = StagesOf(programs);
  times->first_stage_s.assign(stages.back() + 1, 0.0);
  times->stage_pass_s.assign(stages.back() + 1, 0.0);
  int64_t backward_end = 0;
  std::vector<int64_t> busy(static_cast<size_t>(step.classes.size()), 0);
  std::vector<int64_t> passed(busy.size(), 0);
  const TaskGraphEntry* before = nullptr;  // the compute stream runs its tasks one after the other
  for (const TaskGraphEntry& e : step.entries) {
    const auto rank = static_cast<size_t>(step.classes.representative(e.rank_class));
    const auto index = static_cast<size_t>(programs.ranks[rank].program);
    const RankProgram& program = programs.programs[index];
    const Task& task = program.tasks[static_cast<size_t>(e.task)];
    const Instance& instance = task.instances[static_cast<size_t>(e.instance)];
    const Block& block = program.blocks[static_cast<size_t>(instance.block)];
    const int64_t end = timeline.end_ns[static_cast<size_t>(e.node)];
    const bool backward = task.kind == TaskKind::kBackward;
    if (e.step > 0) continue;
    if (backward) backward_end = std::max(backward_end, end);
    if (block.ops[static_cast<size_t>(e.op)].stream != kComputeStream) continue;
    const int64_t start = timeline.start_ns[static_cast<size_t>(e.node)];
    const auto add = [&](std::vector<int64_t>& of_class, int64_t from, std::vector<double>& most) {
      int64_t& sum = of_class[static_cast<size_t>(e.rank_class)];
      sum += end - from;
      most[stages[index]] = std::max(most[stages[index]], D(sum) * 1e-9);
    };
    add(busy, start, times->first_stage_s);
    if (!backward && task.kind != TaskKind::kForward) continue;
    const bool goes_on =
        before != nullptr && before->rank_class == e.rank_class && before->task == e.task;
    add(passed, goes_on ? timeline.end_ns[static_cast<size_t>(before->node)] : start,
        times->stage_pass_s);
    before = &e;
  }
  times->backward_end_s = D(backward_end) * 1e-9;
}

/// FLOP/s that a rank could reach; 0: the profile does not say.
double PeakOfRank(const Plan& plan, const Prices& prices) {
  const auto peak = cost::PeakOf(prices.model().profile(), PrecisionOf(plan.dtype));
  if (!peak.ok()) return 0.0;
  if (!prices.on_cpu()) return peak->value();
  std::map<int, int> ranks_of_host;
  for (size_t r = 0; r < plan.placement.size(); ++r) {
    ++ranks_of_host[prices.cluster().HostOf(prices.DeviceOf(static_cast<int32_t>(r)))];
  }
  double cores = 1.0;
  for (const auto& [host, ranks] : ranks_of_host) {
    cores = std::min(cores, D(prices.cluster().HostSpecOf(host).device.cores) / D(ranks));
  }
  return peak->value() * cores;
}

Flops FlopsOf(const Plan& plan) {
  Flops flops;
  for (const ModulePlan& m : plan.modules) {
    for (const ModuleSpec& spec : plan.model.modules) {
      if (spec.name != m.module) continue;
      flops += ModelFlopsPerStep(spec, plan.sequence, plan.global_batch);
    }
  }
  return flops;
}

/// All of a tensor pair's traffic goes straight between memories and leaves NCCL's buffers unmade,
/// as does the sum of a weight that two stages share. Those may lie on two hosts: then this is some
/// 0.1 GiB too little. Pairs of other kinds count tokens by NCCL anyway.
bool IdleNccl(const CommunicatorInfo& c, const cost::GpuModel& gpu) {
  const bool kind = c.kind == CommunicatorKind::kTensor || c.kind == CommunicatorKind::kTied;
  return kind && c.size == 2 && cost::PeersReach(gpu);
}

/// Of what NCCL keeps anyway, as much as it has CTAs: measured for tensor pairs; for tied weights
/// reckoned 35 MiB, found some 24.
Bytes IdleBytes(CommunicatorKind kind, const cost::RunMemory& memory) {
  return Bytes(memory.idle.value.value() * NcclCtas(kind) / NcclCtas(CommunicatorKind::kTensor));
}

}  // namespace

Bytes OutsideBytes(const RankProgram& program, const cost::DeviceProfile& profile) {
  if (!profile.gpu) return Bytes(0);
  const cost::GpuModel& gpu = *profile.gpu;
  Bytes bytes = gpu.context_memory.value + gpu.library_memory.value;
  if (gpu.run_memory && !program.communicators.empty()) {
    const cost::RunMemory& memory = *gpu.run_memory;
    bytes += memory.communicators.value;
    for (size_t i = 0; i < program.communicators.size(); ++i) {
      const CommunicatorInfo& c = program.communicators[i];
      if (cost::PeersReach(gpu)) bytes += Bytes(MessageRingBytes(program, static_cast<int32_t>(i)));
      bytes += c.kind == CommunicatorKind::kEdge ? memory.edge.value
               : IdleNccl(c, gpu)                ? IdleBytes(c.kind, memory)
                                                 : NcclCtas(c.kind) * memory.cta.value;
    }
    return bytes;
  }
  if (!program.communicators.empty()) bytes += gpu.communicator_memory.value;
  const int64_t ctas = gpu.default_ctas.value;
  for (const CommunicatorInfo& c : program.communicators) {
    const bool messages = c.kind == CommunicatorKind::kEdge;
    bytes += ctas * (messages ? gpu.cta_message_memory.value : gpu.cta_collective_memory.value);
  }
  return bytes;
}

Result<StepTimes> SimulateSteps(const Programs& programs, const Prices& prices,
                                const PredictOptions& options) {
  TaskGraphOptions graph_options;
  graph_options.fold = options.fold;
  graph_options.merge = options.merge;
  graph_options.steps = options.steps;
  MW_ASSIGN_OR_RETURN(const TaskGraphOfStep step, ToTaskGraph(programs, prices, graph_options));
  MW_ASSIGN_OR_RETURN(const cost::Timeline timeline,
                      cost::Simulate(step.graph, SimulateLabels(programs, step)));
  const std::vector<int64_t> ends = StepEnds(step, timeline);
  const int64_t before = ends.size() > 1 ? ends[ends.size() - 2] : 0;
  const int64_t step_ns = ends.back() - before;
  if (step_ns <= 0) {
    return Infeasible(
        "the simulated step takes no time: the programs have no ops; lower the plan again");
  }
  StepTimes times;
  times.step_s = D(step_ns) * 1e-9;
  FillFirstStep(programs, step, timeline, &times);
  times.stage_s = StageTimes(programs, step, timeline);
  times.nodes = step.graph.node_count();
  times.classes = step.classes.size();
  if (options.trace) times.trace = ToTrace(programs, step, timeline);
  return times;
}

SimulatedStep SumUp(const Plan& plan, const Programs& programs, const Prices& prices,
                    StepTimes times) {
  SimulatedStep result;
  result.nodes = times.nodes;
  result.classes = times.classes;
  result.trace = std::move(times.trace);
  Prediction& p = result.prediction;
  p.step_time_s = times.step_s;
  p.stage_time_s = std::move(times.stage_s);
  double busy = 0.0;
  for (const double time : p.stage_time_s) busy += time;
  p.bubble_fraction = std::clamp(
      1.0 - busy / (D(static_cast<int64_t>(p.stage_time_s.size())) * p.step_time_s), 0.0, 1.0);
  const double ranks = D(plan.world_size());
  p.tokens_per_s_per_gpu = D(plan.global_batch) * D(plan.sequence) / p.step_time_s / ranks;
  const double flops_per_rank = FlopsOf(plan).value() / p.step_time_s / ranks;
  p.model_tflops_per_gpu = flops_per_rank / 1e12;
  const double peak = PeakOfRank(plan, prices);
  p.mfu = peak > 0 ? flops_per_rank / peak : 0.0;
  const std::vector<size_t> stages = StagesOf(programs);
  for (size_t i = 0; i < stages.size(); ++i) {
    if (stages[i] < p.memory.size()) continue;  // the programs of a stage differ in order only
    const RankProgram& program = programs.programs[i];
    p.memory.push_back(program.arena.memory);
    p.memory.back().outside = OutsideBytes(program, prices.model().profile()).value();
  }
  return result;
}

Result<SimulatedStep> Predict(const Plan& plan, const Programs& programs, const Prices& prices,
                              const PredictOptions& options) {
  MW_ASSIGN_OR_RETURN(StepTimes times, SimulateSteps(programs, prices, options));
  return SumUp(plan, programs, prices, std::move(times));
}

}  // namespace meshwright::planner
