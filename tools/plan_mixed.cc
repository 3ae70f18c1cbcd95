#include "tools/plan_mixed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "planner/predict/model_flops.h"
#include "planner/space/answers.h"
#include "tools/stack_machine.h"
#include "tools/table.h"

namespace meshwright::tools {
namespace {

using planner::space::DeviceGroup;
using planner::space::Solution;
using planner::stack::StackStageCosts;

/// One kind of host and what the stack costs on its GPUs.
struct Part {
  std::string name;
  int64_t gpus = 0;
  Machine machine;
  std::unique_ptr<StackStageCosts> costs;
};

/// The hosts of one kind as a cluster of their own; at least two, so that what lies between hosts
/// is seen.
Result<topologies::Cluster> HostsOf(const topologies::Cluster& cluster,
                                    const topologies::HostGroup& group) {
  topologies::ClusterSpec spec = cluster.spec();
  topologies::HostGroup hosts = group;
  hosts.count = std::max(hosts.count, 2 * std::max(hosts.host.nvlink_domain_hosts, 1));
  spec.hosts = {hosts};
  return topologies::Cluster::Make(std::move(spec));
}

Result<std::vector<Part>> PartsOf(const SplitOptions& split, const planner::ModelSpec& model,
                                  const topologies::Cluster& cluster) {
  std::vector<Part> parts;
  for (const topologies::HostGroup& group : cluster.spec().hosts) {
    if (group.host.device.kind == topologies::DeviceKind::kCpu) {
      return Unsupported("cluster '" + cluster.name() +
                         "': CPU ranks and GPUs in one cluster; allowed: GPUs alone");
    }
    const int64_t gpus = static_cast<int64_t>(group.count) * group.host.device_count();
    MW_ASSIGN_OR_RETURN(topologies::Cluster hosts, HostsOf(cluster, group));
    MW_ASSIGN_OR_RETURN(cost::DeviceProfile profile,
                        cost::LoadDeviceProfile(group.host.device.profile));
    Machine machine{std::move(hosts), std::move(profile), gpus};
    MW_ASSIGN_OR_RETURN(std::unique_ptr<StackStageCosts> costs,
                        StackCostsFor(split, model, machine));
    parts.push_back({group.host.name, gpus, std::move(machine), std::move(costs)});
  }
  return parts;
}

void ShowMixed(const planner::ModelSpec& model, const std::vector<Part>& parts,
               const planner::space::Finalist& finalist, Output& output) {
  const Solution& best = finalist.solution;
  const double step_s = finalist.simulated_s;
  nlohmann::json& d = output.document();
  const StackStageCosts& costs = *parts.front().costs;
  const planner::stack::Split& split = best.tuple.split;
  const double deviation = costs.inputs().stack.residuals.log_deviation;
  const int64_t samples = split.micro_batch * split.micro_batches * split.dp;
  const double per_gpu = step_s * static_cast<double>(split.ranks());
  d["stack"] = costs.inputs().stack.name;
  d["fits"] = true;
  d["step_time_s"] = step_s;
  d["interval_s"] = {step_s * std::exp(-2 * deviation), step_s * std::exp(2 * deviation)};
  d["tokens_per_s_per_gpu"] = static_cast<double>(samples * costs.sequence()) / per_gpu;
  d["model_tflops_per_gpu"] =
      planner::ModelFlopsPerStep(costs.module(), costs.sequence(), samples).value() / per_gpu /
      1e12;
  d["peak_memory_bytes"] = static_cast<int64_t>(best.peak_bytes());
  d["split"] = {{"name", ShortName(split)}, {"tp", split.tp}, {"pp", split.pp}, {"dp", split.dp}};
  d["stages"] = nlohmann::json::array();
  Table table({"stage", "on", "layers", "kept", "memory", "of device"});
  for (size_t p = 0; p < best.stages.size(); ++p) {
    const Part& part = parts[static_cast<size_t>(best.groups[p])];
    const double bytes = DeviceBytesOf(part.machine);
    const double total = best.memory[p].total();
    table.Row({std::to_string(p), part.name, std::to_string(best.layers[p]),
               KeptText({best.stages[p]}), BytesText(static_cast<int64_t>(total)),
               PercentText(total / bytes)});
    d["stages"].push_back({{"device", part.name},
                           {"layers", best.layers[p]},
                           {"recompute", KeptText({best.stages[p]})},
                           {"memory", {{"total", static_cast<int64_t>(total)}}},
                           {"device_bytes", static_cast<int64_t>(bytes)}});
  }
  const Style& style = output.style();
  Table facts({"", ""});
  facts.Row({"model", model.name});
  for (const Part& part : parts) {
    facts.Row({part.name, fmt::format("{} GPUs, {}", part.gpus, part.machine.profile.description)});
  }
  facts.Row({"step time", SecondsText(step_s)});
  facts.Row({"tokens/s a GPU", NumberText(d["tokens_per_s_per_gpu"].get<double>())});
  output.Text(HeadingText("split " + ShortName(split), style) + facts.ToText(style) +
              HeadingText("stages", style) + table.ToText(style));
}

}  // namespace

bool HasUnlikeDevices(const topologies::Cluster& cluster) {
  std::set<std::string> profiles;
  for (const topologies::HostGroup& group : cluster.spec().hosts) {
    profiles.insert(group.host.device.profile);
  }
  return profiles.size() > 1;
}

Status PlanMixed(const SplitOptions& split, const StackPlanOptions& options,
                 const planner::ModelSpec& model, const topologies::Cluster& cluster,
                 Output& output) {
  MW_ASSIGN_OR_RETURN(const std::vector<Part> parts, PartsOf(split, model, cluster));
  std::vector<DeviceGroup> groups;
  for (const Part& part : parts) {
    groups.push_back({part.name, part.costs.get(), DeviceBytesOf(part.machine), part.gpus});
  }
  MW_ASSIGN_OR_RETURN(planner::space::SpaceOptions space,
                      SpaceFor(split, parts.front().costs->inputs(), parts.front().machine));
  space.gpus.clear();
  // The tighter bound of a tuple is for like devices: what hardly wins would take most of the time.
  space.sequence_parallel_tied = !split.HeldSequenceParallel();
  for (const Part& part : parts) {
    MW_ASSIGN_OR_RETURN(const planner::stack::Fabric fabric,
                        planner::stack::FabricOf(part.machine.cluster));
    space.most_tp = space.most_tp > 0 ? std::min(space.most_tp, fabric.domain_gpus)
                                      : fabric.domain_gpus;  // 0: no limit yet
  }
  MW_ASSIGN_OR_RETURN(
      const SimulatedSearch search,
      SearchAndSimulate(groups, space, static_cast<size_t>(options.top), &output.document()));
  ShowMixed(model, parts, search.finalists.front(), output);
  ShowSearch(search, output);
  return Status::Ok();
}

}  // namespace meshwright::tools
