// Measurements of this machine -> device profile and cluster of CPU ranks. Joins runtime, which
// measures, with cost models and topologies, which do not know it.
#pragma once

#include <string>

#include "cost_models/device_profile.h"
#include "runtime/measure_cpu.h"
#include "topologies/cluster.h"
#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::tools {

/// A profile of kind CPU; every number has `when` ("measured 2025-01-31 on ...") as its source.
/// `memory` is that of the machine. Kernels are named as planner::KernelName does.
Result<cost::DeviceProfile> CpuProfile(const runtime::CpuMeasurement& measured, Bytes memory,
                                       const std::string& when);

/// `ranks` CPU ranks on one host with the measured cores; the path between them has the measured
/// latency, which prices of collectives use.
Result<topologies::Cluster> CpuCluster(const runtime::CpuMeasurement& measured, Bytes memory,
                                       int ranks, const std::string& when);

}  // namespace meshwright::tools
