// Measurements of this machine -> device profile and host of CPU ranks. Joins runtime, which
// measures, with cost models and topologies, which do not know it.
#pragma once

#include <string>

#include "cost_models/device_profile.h"
#include "runtime/measure_cpu.h"
#include "topologies/cluster_io.h"
#include "topologies/status.h"

namespace meshwright::tools {

/// A measured machine. `host` says what ranks share; its `ranks` is set by whoever uses it.
struct MeasuredCpu {
  cost::DeviceProfile profile;
  topologies::CpuHostOptions host;
};

/// Profile and host of a measurement. Kernels are named as planner::KernelName does; every number
/// has `cpu_name` and the date in its source. Errors: those of cost::Validate.
Result<MeasuredCpu> ToMeasuredCpu(const runtime::CpuMeasurement& measured,
                                  const topologies::LocalMachine& machine,
                                  const std::string& cpu_name);

/// Corrects a measurement by small whole training programs, whose ops run between others (colder
/// caches, more threads at once) than when they are timed alone. Each moves one number until
/// simulated and measured step agree: one rank the rates of kernels; four ranks a core, data
/// parallel, the efficiency of shared cores; in groups of two and of four what a rendezvous and its
/// further members take of a core; a rank a core (two cores or more) how long a rendezvous lasts
/// there. A correction of kernels beyond a factor of 4 either way is refused: the machine was busy.
/// Takes some seconds.
Status FitToPrograms(const topologies::LocalMachine& machine, runtime::CpuMeasurement* measured);

}  // namespace meshwright::tools
