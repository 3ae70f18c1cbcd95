// Names and paths to clusters; hosts of CPU ranks.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "topologies/cluster_io.h"
#include "topologies/parse_nvidia_smi_topo.h"
#include "topologies/text.h"
#include "topologies/yaml_guard.h"

namespace meshwright::topologies {
namespace {

Result<Cluster> WithHosts(const Cluster& cluster, const ResolveOptions& options) {
  if (!options.nodes) return cluster;
  if (*options.nodes < 1) return InvalidInput(fmt::format("{} nodes; at least 1", *options.nodes));
  if (!cluster.is_homogeneous()) {
    return InvalidInput(
        fmt::format("cluster '{}' lists unlike hosts; a number of nodes fits only one kind of host",
                    cluster.name()));
  }
  ClusterSpec spec = cluster.spec();
  spec.hosts[0].count = *options.nodes;
  return Cluster::Make(std::move(spec));
}

Result<Cluster> FromFile(const std::string& path, const ResolveOptions& options) {
  MW_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxTextBytes));
  const std::string extension = Lower(std::filesystem::path(path).extension().string());
  if (extension == ".yaml" || extension == ".yml" ||
      text.find("meshwright_cluster") != std::string::npos) {
    MW_ASSIGN_OR_RETURN(const Cluster cluster, ParseClusterYaml(text, path));
    return WithHosts(cluster, options);
  }
  const Result<TopoReport> report = ParseNvidiaSmiTopo(text);
  if (!report.ok()) return report.status().WithContext(path);
  TopoOptions topo;
  topo.name = std::filesystem::path(path).stem().string();
  topo.gpu = options.gpu;
  topo.nodes = options.nodes.value_or(1);
  Result<Cluster> cluster = ClusterFromTopo(*report, topo);
  if (!cluster.ok()) return cluster.status().WithContext(path);
  return cluster;
}

}  // namespace

std::string ShippedClusterDir() {
  const char* data = std::getenv("MESHWRIGHT_DATA_DIR");
  if (data != nullptr && *data != '\0') return std::string(data) + "/clusters";
  return MESHWRIGHT_CLUSTER_DIR;
}

std::vector<std::string> ShippedClusterNames() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(ShippedClusterDir(), error)) {
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<Cluster> ResolveCluster(const std::string& name_or_path, const ResolveOptions& options) {
  const std::vector<std::string> names = ShippedClusterNames();
  if (std::binary_search(names.begin(), names.end(), name_or_path)) {
    MW_ASSIGN_OR_RETURN(const Cluster cluster,
                        LoadCluster(ShippedClusterDir() + "/" + name_or_path + ".yaml"));
    return WithHosts(cluster, options);
  }
  std::error_code error;
  if (std::filesystem::exists(name_or_path, error)) return FromFile(name_or_path, options);
  const auto close = ClosestNames(name_or_path, names);
  return NotFound(
      fmt::format("'{}' is neither a file nor a shipped cluster{}; shipped are {} (in {})",
                  Quoted(name_or_path, 200),
                  close.empty() ? "" : fmt::format(", did you mean {}?", fmt::join(close, " or ")),
                  fmt::join(names, ", "), ShippedClusterDir()));
}

Result<Cluster> CpuCluster(const CpuHostOptions& options) {
  if (options.ranks < 1 || options.ranks > 1024 || options.cores < 1) {
    return InvalidInput(fmt::format("{} CPU ranks on {} cores; 1 to 1024 ranks and at least 1 core",
                                    options.ranks, options.cores));
  }
  HostSpec host;
  host.name = "cpu";
  host.device = {DeviceKind::kCpu, "CPU",
                 options.profile,  Bytes(options.memory.value() / options.ranks),
                 options.source,   options.cores};
  for (int rank = 0; rank < options.ranks; ++rank)
    host.nodes.push_back({NodeKind::kDevice, rank, ""});
  host.nodes.push_back({NodeKind::kNumaNode, 0, ""});
  for (int rank = 0; rank < options.ranks; ++rank) {
    host.links.push_back({rank, options.ranks, LinkKind::kSharedMemory, "", options.bandwidth,
                          options.bandwidth, options.latency / 2, options.source, options.source});
  }
  ClusterSpec spec;
  spec.name = "cpu";
  spec.description = "CPU ranks of one host";
  spec.hosts.push_back({std::move(host), 1});
  return Cluster::Make(std::move(spec));
}

Result<LocalMachine> ProbeLocalMachine() {
  LocalMachine machine;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0)
    return RunFailed("sched_getaffinity failed: the cores of this machine are unknown");
  machine.cores = CPU_COUNT(&set);
  MW_ASSIGN_OR_RETURN(const std::string text, ReadTextFile("/proc/meminfo", kMaxTextBytes));
  for (const std::string_view line : SplitAt(text, '\n')) {
    const auto words = SplitWords(line);
    if (words.size() != 3 || words[0] != "MemTotal:" || words[2] != "kB") continue;
    MW_ASSIGN_OR_RETURN(machine.memory, ParseBytes(fmt::format("{} KiB", words[1])));
    return machine;
  }
  return RunFailed(
      "/proc/meminfo has no line 'MemTotal: <number> kB': the memory of this machine is unknown");
}

}  // namespace meshwright::topologies
