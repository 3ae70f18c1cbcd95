// Where clusters come from: YAML files, shipped descriptions, topology captures, this machine's
// CPU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topologies/cluster.h"
#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::topologies {

struct TopoReport;

/// Reads a YAML cluster (format: topologies/README.md). `source_name` is used in messages.
Result<Cluster> ParseClusterYaml(std::string_view text, std::string_view source_name);

/// Reads a YAML cluster file.
Result<Cluster> LoadCluster(const std::string& path);

/// The YAML text of a cluster; `ParseClusterYaml` gives an equal spec back.
std::string ToYaml(const ClusterSpec& spec);

/// What a topology capture does not say.
struct TopoOptions {
  std::string name = "topo";
  std::string gpu;  ///< GPU model ("H100-SXM", see `GpuModelNames`); empty: from the text
  int nodes = 1;    ///< equal hosts
  /// Of one NIC, each way. Empty: assumed from the GPU model, with a warning. Where the capture
  /// lists no NICs, giving it means one NIC beside each GPU.
  std::optional<BytesPerSecond> nic_bandwidth;
  std::optional<FabricSpec> fabric;
};

/// Makes a cluster of `nodes` hosts as the capture shows. Unknown GPU model: an error that lists
/// the models and says how to pass one.
Result<Cluster> ClusterFromTopo(const TopoReport& report, const TopoOptions& options);

/// Hosts of CPU ranks: `ranks` devices on one host that share its cores and memory.
struct CpuHostOptions {
  int ranks = 1;
  int cores = 1;
  Bytes memory;  ///< of the whole host
  std::string profile = "cpu";
  BytesPerSecond bandwidth;  ///< shared memory, one rank to another, each way
  Seconds latency;
  Source source;  ///< of bandwidth and latency
};
Result<Cluster> CpuCluster(const CpuHostOptions& options);

/// Cores and memory of this machine (Linux: affinity mask and /proc/meminfo).
struct LocalMachine {
  int cores = 1;
  Bytes memory;
};
Result<LocalMachine> ProbeLocalMachine();

/// Names of the shipped descriptions, sorted.
std::vector<std::string> ShippedClusterNames();

/// Folder of the shipped descriptions: $MESHWRIGHT_DATA_DIR/clusters, else the one of the build.
std::string ShippedClusterDir();

struct ResolveOptions {
  std::optional<int> nodes;  ///< hosts; empty: as described
  std::string gpu;           ///< for topology captures
};

/// A cluster from what a user typed: a YAML file, a shipped name, or a topology capture. Unknown
/// names are answered with the nearest ones.
Result<Cluster> ResolveCluster(const std::string& name_or_path, const ResolveOptions& options);

/// GPU models known to `ClusterFromTopo`.
std::vector<std::string> GpuModelNames();

}  // namespace meshwright::topologies
