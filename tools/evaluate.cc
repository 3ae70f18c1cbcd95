#include "tools/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <future>
#include <limits>
#include <utility>

#include "planner/lower/lower.h"
#include "planner/predict/few_micro_batches.h"
#include "planner/predict/prices.h"
#include "planner/search/records.h"
#include "planner/verify/verify.h"
#include "tools/table.h"
#include "topologies/cluster_io.h"

namespace meshwright::tools {
namespace {

/// Of a step, in programs of which every stage has one: simulated in about a third of a second.
constexpr int64_t kMostOpsToConfirm = 500'000;

int64_t OpsOf(const planner::Programs& programs) {
  int64_t ops = 0;
  for (const planner::RankProgram& program : programs.programs) {
    for (const planner::Task& task : program.tasks) {
      for (const planner::Instance& i : task.instances) {
        ops += static_cast<int64_t>(program.blocks[static_cast<size_t>(i.block)].ops.size());
      }
    }
  }
  return ops;
}

/// Pipeline stages of all modules, in the order of Prediction::memory.
int64_t StageCount(const planner::Plan& plan) {
  int64_t count = 0;
  for (const planner::ModulePlan& m : plan.modules) count += m.pp;
  return count;
}

std::string LargestPart(const planner::MemoryBreakdown& m) {
  const std::array<std::pair<const char*, int64_t>, 6> parts = {{
      {"parameters, gradients and optimizer states: raise --tp or --pp, or cut the states with "
       "--zero 1",
       m.parameters + m.gradients + m.optimizer},
      {"activations saved for backward: --recompute selective or full, a smaller --micro-batch, or "
       "a "
       "larger --tp",
       m.saved},
      {"scratch of one block: a smaller --micro-batch, a shorter --seq or a larger --tp",
       m.scratch},
      {"communication buffers: a smaller --micro-batch", m.communication},
      {"labels and scalars: a smaller --global-batch or --seq", m.io},
      {"context, libraries and communicators: use devices with more memory", m.outside},
  }};
  const auto most = std::max_element(
      parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return fmt::format("{} are {}", BytesText(most->second), most->first);
}

void WarnOfNetwork(const topologies::Cluster& cluster, planner::Plan* plan) {
  const int64_t tp = plan->modules.front().tp;
  for (size_t first = 0; tp > 1 && first < plan->placement.size();
       first += static_cast<size_t>(tp)) {
    const std::vector<int> group(plan->placement.begin() + static_cast<int64_t>(first),
                                 plan->placement.begin() + static_cast<int64_t>(first) + tp);
    const auto path = cluster.Group(group);
    if (!path.ok() || path->network_bandwidth.value() <= 0) continue;
    plan->warnings.push_back(
        fmt::format("tensor groups of {} cross hosts: ranks {} to {} share {} GB/s of network; "
                    "--tp {} would stay on the links of one "
                    "host",
                    tp, first, first + static_cast<size_t>(tp) - 1,
                    NumberText(path->network_bandwidth.value() / 1e9), path->max_per_host));
    return;
  }
}

void WarnOfUselessZero(planner::Plan* plan) {
  const planner::ModulePlan& m = plan->modules.front();
  if (m.sharding != planner::Sharding::kZero1 || m.dp > 1) return;
  plan->warnings.push_back(
      fmt::format("ZeRO-1 cuts nothing: dp is 1, so every rank keeps all optimizer states of its "
                  "parameters; {} ranks would be needed for dp 2",
                  2 * m.ranks()));
}

void WarnOfBubble(planner::Plan* plan) {
  const planner::ModulePlan& m = plan->modules.front();
  if (plan->micro_batches >= m.pp) return;
  plan->warnings.push_back(
      fmt::format("{} micro-batches for {} pipeline stages: at most {} stages work at a time; "
                  "raise --global-batch to {} or lower "
                  "--pp or --micro-batch",
                  plan->micro_batches, m.pp, plan->micro_batches, m.pp * plan->micro_batch * m.dp));
}

}  // namespace

Result<Evaluation> Evaluate(const planner::Plan& plan, const topologies::Cluster& cluster,
                            const cost::CostModel& costs, const planner::PredictOptions& options) {
  Evaluation evaluation;
  MW_ASSIGN_OR_RETURN(evaluation.programs, planner::Lower(plan));
  MW_RETURN_IF_ERROR(planner::Verify(evaluation.programs, {}));
  MW_ASSIGN_OR_RETURN(evaluation.simulated, Simulate(plan, cluster, costs, options));
  return evaluation;
}

Result<planner::SimulatedStep> Simulate(const planner::Plan& plan,
                                        const topologies::Cluster& cluster,
                                        const cost::CostModel& costs,
                                        const planner::PredictOptions& options) {
  MW_ASSIGN_OR_RETURN(const planner::Programs programs, planner::LowerForPrices(plan));
  MW_ASSIGN_OR_RETURN(const planner::Prices prices, planner::MakePrices(plan, cluster, costs));
  return planner::Predict(plan, programs, prices, options);
}

Result<planner::Prediction> Confirm(const planner::Plan& plan, const topologies::Cluster& cluster,
                                    const cost::CostModel& costs, int threads) {
  auto simulated = std::async([&]() -> Result<planner::Prediction> {
    const planner::ModulePlan& m = plan.modules.front();
    if (!planner::EnoughMicroBatches(m.pp, m.virtual_stages, plan.micro_batches)) {
      return plan.prediction;  // of all of them
    }
    MW_ASSIGN_OR_RETURN(const planner::Programs programs, planner::LowerForPrices(plan));
    if (OpsOf(programs) > kMostOpsToConfirm) return plan.prediction;
    MW_ASSIGN_OR_RETURN(const planner::Prices prices, planner::MakePrices(plan, cluster, costs));
    MW_ASSIGN_OR_RETURN(planner::SimulatedStep step, planner::Predict(plan, programs, prices));
    return std::move(step.prediction);
  });
  MW_ASSIGN_OR_RETURN(const planner::Programs programs, planner::Lower(plan));
  planner::VerifyLimits limits;
  limits.threads = threads;
  MW_RETURN_IF_ERROR(planner::Verify(programs, limits));
  return simulated.get();
}

Status PlaceOn(const topologies::Cluster& cluster, planner::Plan* plan) {
  const planner::ModulePlan& m = plan->modules.front();
  std::vector<int> sizes;  // axes of one rank add nothing to say
  for (const int64_t size : {m.tp, m.cp, m.ep, m.dp, m.pp}) {
    if (size > 1) sizes.push_back(static_cast<int>(size));
  }
  MW_ASSIGN_OR_RETURN(const topologies::Placement placement, cluster.BestOrder(sizes));
  plan->placement.assign(placement.device_of_rank.begin(), placement.device_of_rank.end());
  plan->reasons.insert(plan->reasons.end(), placement.reasons.begin(), placement.reasons.end());
  plan->cluster_name = cluster.name();
  plan->cluster_text = topologies::ToYaml(cluster.spec());
  plan->cluster_fingerprint = cluster.Fingerprint();
  WarnOfNetwork(cluster, plan);
  WarnOfBubble(plan);
  WarnOfUselessZero(plan);
  const std::string rings = planner::search::WarningOfRings(*plan);
  if (!rings.empty()) plan->warnings.push_back(rings);
  return planner::CheckPlan(*plan);
}

std::vector<int64_t> DeviceBytes(const planner::Plan& plan, const topologies::Cluster& cluster,
                                 const cost::DeviceProfile& profile) {
  std::vector<int64_t> bytes(static_cast<size_t>(StageCount(plan)),
                             std::numeric_limits<int64_t>::max());
  size_t first_stage = 0;
  for (const planner::ModulePlan& m : plan.modules) {
    const int64_t ranks_of_stage = m.ranks() / m.pp;
    for (int64_t i = 0; i < m.ranks(); ++i) {
      const auto rank = static_cast<size_t>(m.rank_offset + i);
      const topologies::DeviceInfo& device = cluster.Device(static_cast<int>(plan.placement[rank]));
      int64_t& least = bytes[first_stage + static_cast<size_t>(i / ranks_of_stage)];
      least = std::min(least, device.memory.value());
      // The driver keeps a part of what the datasheet promises; CPU ranks share the machine's
      // memory.
      if (profile.gpu) least = std::min(least, profile.memory.value.value());
    }
    first_stage += static_cast<size_t>(m.pp);
  }
  return bytes;
}

std::vector<std::string> FitProblems(const planner::Plan& plan,
                                     const std::vector<planner::MemoryBreakdown>& memory,
                                     const std::vector<int64_t>& device_bytes) {
  std::vector<std::string> problems;
  const size_t stages = std::min(memory.size(), device_bytes.size());
  for (size_t s = 0; s < stages; ++s) {
    if (memory[s].total() <= device_bytes[s]) continue;
    problems.push_back(
        fmt::format("stage {} of {} does not fit: it needs {} of memory on each rank, a device of "
                    "'{}' has {}; {}",
                    s, stages, BytesText(memory[s].total()), plan.cluster_name,
                    BytesText(device_bytes[s]), LargestPart(memory[s])));
  }
  return problems;
}

}  // namespace meshwright::tools
