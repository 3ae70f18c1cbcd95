// What CPU ranks of this machine cost: measured once, kept in a cache folder as a device profile
// and a cluster of one rank, both in their documented YAML forms.
#pragma once

#include <string>

#include "cost_models/device_profile.h"
#include "runtime/measure_cpu.h"
#include "tools/output.h"
#include "topologies/cluster.h"
#include "topologies/cluster_io.h"
#include "topologies/status.h"

namespace meshwright::tools {

/// A measured machine. `host` says what ranks share; its `ranks` is set by whoever uses it.
struct CpuMachine {
  cost::DeviceProfile profile;
  topologies::CpuHostOptions host;
  std::string profile_path;  ///< where the profile is kept; empty: nowhere
};

/// Device profile of a measurement; `cpu_name` and the date of measuring go into the sources.
cost::DeviceProfile ToDeviceProfile(const runtime::CpuMeasurement& measured,
                                    const topologies::LocalMachine& machine,
                                    const std::string& cpu_name);

/// The cache folder: $MESHWRIGHT_CACHE_DIR, $XDG_CACHE_HOME/meshwright or ~/.cache/meshwright;
/// empty when none of the variables is set.
std::string CacheDir();

/// Measures this machine (a few seconds; says so) and keeps the result.
Result<CpuMachine> MeasureThisCpu(Output& output);

/// What was kept for this processor and number of cores, else measured now.
Result<CpuMachine> ThisCpu(Output& output);

}  // namespace meshwright::tools
