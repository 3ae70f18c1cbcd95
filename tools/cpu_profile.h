// What CPU ranks of this machine cost: measured once, kept in a cache folder as a device profile
// and a cluster of one rank, both in their documented YAML forms.
#pragma once

#include <string>

#include "tools/measured_cpu.h"
#include "tools/output.h"
#include "topologies/status.h"

namespace meshwright::tools {

/// A measured machine and where its profile is kept (empty: nowhere).
struct CpuMachine : MeasuredCpu {
  std::string profile_path;
};

/// The cache folder: $MESHWRIGHT_CACHE_DIR, $XDG_CACHE_HOME/meshwright or ~/.cache/meshwright;
/// empty when none of the variables is set.
std::string CacheDir();

/// Measures this machine (a few seconds; says so) and keeps the result.
Result<CpuMachine> MeasureThisCpu(Output& output);

/// What was kept for this processor and number of cores, else measured now.
Result<CpuMachine> ThisCpu(Output& output);

}  // namespace meshwright::tools
