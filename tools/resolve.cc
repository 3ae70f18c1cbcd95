#include "tools/resolve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdio>
#include <optional>
#include <set>

#include "planner/predict/clock_stretch.h"
#include "planner/predict/prices.h"
#include "tools/cpu_profile.h"
#include "topologies/cluster_io.h"
#include "topologies/parse_nvidia_smi_topo.h"
#include "topologies/text.h"

namespace meshwright::tools {
namespace {

// A plan of 4096 GPUs has a few MB.
constexpr size_t kMaxPlanBytes = size_t{64} << 20;
constexpr size_t kMaxCommandBytes = size_t{8} << 20;

/// Standard output of a shell command; none when it fails.
std::optional<std::string> OutputOf(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string text;
  std::array<char, 4096> buffer{};
  size_t n = 0;
  while (text.size() < kMaxCommandBytes &&
         (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0) {
    text.append(buffer.data(), n);
  }
  return pclose(pipe) == 0 ? std::optional<std::string>(text) : std::nullopt;
}

Result<topologies::Cluster> LocalCluster(const ClusterOptions& options) {
  MW_ASSIGN_OR_RETURN(const std::string text, LocalTopology());
  const auto report = topologies::ParseNvidiaSmiTopo(text);
  if (!report.ok()) return report.status().WithContext("nvidia-smi topo -m of this machine");
  topologies::TopoOptions topo;
  topo.name = "local";
  topo.gpu = options.gpu;
  topo.nodes = static_cast<int>(options.nodes.value_or(1));
  return topologies::ClusterFromTopo(*report, topo);
}

Result<Machine> CpuMachineFor(const ClusterOptions& options, int64_t ranks_wanted, Output& output) {
  if (options.nodes.value_or(1) != 1) {
    return InvalidInput(
        fmt::format("--nodes {}: CPU ranks are on this machine alone; leave --nodes out and "
                    "say with --gpus how many ranks",
                    *options.nodes));
  }
  if (!options.gpu.empty()) return InvalidInput("--gpu: CPU ranks have no GPU; leave it out");
  if (!options.profile.empty()) {
    return InvalidInput(
        "--profile: CPU ranks have the profile that was measured here; leave it out");
  }
  MW_ASSIGN_OR_RETURN(CpuMachine cpu, ThisCpu(output));
  const int64_t ranks = options.gpus.value_or(ranks_wanted > 0 ? ranks_wanted : cpu.host.cores);
  if (ranks > 1024) return InvalidInput(fmt::format("{} CPU ranks; at most 1024", ranks));
  cpu.host.ranks = static_cast<int>(ranks);
  MW_ASSIGN_OR_RETURN(topologies::Cluster cluster, topologies::CpuCluster(cpu.host));
  return Machine{std::move(cluster), std::move(cpu.profile), ranks};
}

}  // namespace

void ClusterOptions::Declare(OptionSet& options) {
  options.Text(
      "--cluster", &cluster, "C",
      "a YAML file, a shipped name (dgx-h100 ...), a capture of 'nvidia-smi topo -m', 'local' (the "
      "GPUs of this machine) or 'cpu' (CPU ranks of this machine)");
  options.Int("--nodes", &nodes, {1, 1 << 20}, "equal hosts; default: as the cluster says");
  options.Text("--gpu", &gpu, "MODEL", "GPU model of a topology capture that does not name it");
  options.Int("--gpus", &gpus, {1, 1 << 20},
              "GPUs (CPU ranks) to use; a host description is repeated as often as needed");
  options.Text("--profile", &profile, "P",
               "device profile (a name or a YAML file) instead of the one that the cluster names");
  options.Require("--cluster");
}

Result<std::string> LocalTopology() {
  const auto matrix = OutputOf("nvidia-smi topo -m 2>/dev/null");
  if (!matrix) {
    return NotFound(
        "local: 'nvidia-smi topo -m' does not run on this machine, so it has no NVIDIA GPUs or no "
        "driver; use 'cpu' for CPU ranks, a shipped name, or a capture from another machine");
  }
  return OutputOf("nvidia-smi -L 2>/dev/null").value_or("") + "\n" + *matrix;
}

Result<cost::DeviceProfile> ProfileOf(const topologies::Cluster& cluster, Output& output) {
  std::set<std::string> names;
  for (const topologies::HostGroup& group : cluster.spec().hosts)
    names.insert(group.host.device.profile);
  if (names.size() != 1) {
    return Unsupported(
        fmt::format("cluster '{}' has unlike devices ({}); plans are for one kind of device: "
                    "describe the hosts of one kind",
                    cluster.name(), fmt::join(names, ", ")));
  }
  if (cluster.Device(0).kind == topologies::DeviceKind::kCpu) {
    MW_ASSIGN_OR_RETURN(CpuMachine cpu, ThisCpu(output));
    return std::move(cpu.profile);
  }
  return cost::LoadDeviceProfile(*names.begin());
}

Result<topologies::Cluster> ResolveGpuCluster(const ClusterOptions& options) {
  topologies::ResolveOptions resolve;
  if (options.nodes) resolve.nodes = static_cast<int>(*options.nodes);
  resolve.gpu = options.gpu;
  if (options.cluster == "local") return LocalCluster(options);
  return topologies::ResolveCluster(options.cluster, resolve);
}

Result<Machine> ResolveMachine(const ClusterOptions& options, int64_t ranks_wanted,
                               Output& output) {
  if (options.cluster == "cpu") return CpuMachineFor(options, ranks_wanted, output);
  MW_ASSIGN_OR_RETURN(topologies::Cluster cluster, ResolveGpuCluster(options));
  const int64_t gpus = options.gpus.value_or(cluster.device_count());
  if (options.nodes && gpus > cluster.device_count()) {
    return InvalidInput(
        fmt::format("--gpus {}: {} nodes have {} GPUs; leave --nodes out, or ask for at most {} "
                    "GPUs",
                    gpus, *options.nodes, cluster.device_count(), cluster.device_count()));
  }
  if (options.gpus && !options.nodes) {
    MW_ASSIGN_OR_RETURN(cluster, cluster.WithDevices(gpus));
  }
  MW_ASSIGN_OR_RETURN(cost::DeviceProfile profile, options.profile.empty()
                                                       ? ProfileOf(cluster, output)
                                                       : cost::LoadDeviceProfile(options.profile));
  if (profile.kind != cluster.Device(0).kind) {
    return InvalidInput(
        fmt::format("--profile {}: found the profile of another kind of device than "
                    "cluster '{}' has; pass one of such a device",
                    options.profile, cluster.name()));
  }
  return Machine{std::move(cluster), std::move(profile), gpus};
}

Result<cost::CostModel> CostsFor(const cost::DeviceProfile& profile, planner::DType dtype,
                                 const planner::ModelSpec& model, int64_t sequence,
                                 const topologies::Cluster& cluster) {
  const cost::Precision precision = planner::PrecisionOf(dtype);
  cost::CostOptions options;
  options.precisions = {precision};
  options.graphs = true;
  if (precision != cost::Precision::kFp32) options.precisions.push_back(cost::Precision::kFp32);
  MW_ASSIGN_OR_RETURN(const cost::CostModel costs, cost::CostModel::Make(profile, options));
  MW_ASSIGN_OR_RETURN(options.stretch,
                      planner::ClockStretch(model, sequence, dtype, cluster, costs));
  return cost::CostModel::Make(profile, options);
}

Result<cost::CostModel> CostsFor(const cost::DeviceProfile& profile, const planner::Plan& plan,
                                 const topologies::Cluster& cluster) {
  return CostsFor(profile, plan.dtype, plan.model, plan.sequence, cluster);
}

Result<planner::Plan> LoadPlan(const std::string& path) {
  MW_ASSIGN_OR_RETURN(const std::string text, topologies::ReadTextFile(path, kMaxPlanBytes));
  MW_ASSIGN_OR_RETURN(planner::Plan plan, planner::ParsePlanJson(text, path));
  MW_RETURN_IF_ERROR(planner::CheckPlan(plan).WithContext(path));
  return plan;
}

Result<topologies::Cluster> ClusterOfPlan(const planner::Plan& plan) {
  if (plan.cluster_text.empty()) {
    return InvalidInput("the plan holds no cluster; make it again with 'meshwright plan -o'");
  }
  return topologies::ParseClusterYaml(plan.cluster_text, "cluster of the plan");
}

}  // namespace meshwright::tools
