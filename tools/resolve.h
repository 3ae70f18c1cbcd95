// From what a user typed to values: models, machines, plan files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cost_models/cost_model.h"
#include "cost_models/device_profile.h"
#include "planner/ir/plan.h"
#include "tools/command_line.h"
#include "tools/output.h"
#include "topologies/cluster.h"
#include "topologies/status.h"

namespace meshwright::tools {

/// --cluster and what goes with it.
struct ClusterOptions {
  std::string cluster;
  std::optional<int64_t> nodes;
  std::string gpu;
  std::string profile;  ///< of the devices, instead of the one that the cluster names
  std::optional<int64_t> gpus;

  void Declare(OptionSet& options);
};

/// A cluster, what its devices cost, and how many of them are used.
struct Machine {
  topologies::Cluster cluster;
  cost::DeviceProfile profile;
  int64_t gpus = 0;
  bool on_cpu() const { return profile.cpu.has_value(); }
};

/// `ranks_wanted`: how many the split asks for; used for `cpu` without --gpus, 0: one a core.
Result<Machine> ResolveMachine(const ClusterOptions& options, int64_t ranks_wanted, Output& output);

/// The cluster alone: of a file, a shipped name, a capture or this machine's GPUs.
Result<topologies::Cluster> ResolveGpuCluster(const ClusterOptions& options);

/// What `nvidia-smi -L` and `nvidia-smi topo -m` print on this machine. NotFound without NVIDIA
/// GPUs.
Result<std::string> LocalTopology();

/// Profile of the cluster's devices; CPU ranks get that of this machine. kUnsupported for unlike
/// devices.
Result<cost::DeviceProfile> ProfileOf(const topologies::Cluster& cluster, Output& output);

/// Prices of a profile for plans of one dtype that train `model` on sequences of a length: with its
/// ClockStretch.
Result<cost::CostModel> CostsFor(const cost::DeviceProfile& profile, planner::DType dtype,
                                 const planner::ModelSpec& model, int64_t sequence,
                                 const topologies::Cluster& cluster);
Result<cost::CostModel> CostsFor(const cost::DeviceProfile& profile, const planner::Plan& plan,
                                 const topologies::Cluster& cluster);

/// Reads a plan file and checks it.
Result<planner::Plan> LoadPlan(const std::string& path);

/// The cluster that a plan was made for, from the text inside it.
Result<topologies::Cluster> ClusterOfPlan(const planner::Plan& plan);

}  // namespace meshwright::tools
