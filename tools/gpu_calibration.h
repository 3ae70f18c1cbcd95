// calibrate --device cuda: measures the present GPU and, where there are several, what goes between
// them, or reads what an earlier run measured, and
// fits a profile to it.
#pragma once

#include <cstdint>
#include <string>

#include "tools/output.h"
#include "topologies/status.h"

namespace meshwright::tools {

struct GpuCalibrationArguments {
  int64_t gpu = 0;      ///< CUDA ordinal
  std::string base;     ///< profile whose other numbers are kept; empty: by the GPU's name
  std::string name;     ///< of the new profile; empty: that of the base
  std::string samples;  ///< where the measurements go; empty: nowhere
  std::string from;     ///< measurements of an earlier run; empty: measure now
  std::string communication = "on";  ///< "off": of one GPU only
  std::string output;                ///< where the profile goes; empty: nowhere
};

/// Prints the fit's residuals. Call it from a process with one thread that has not touched CUDA: it
/// forks.
Status CalibrateGpu(const GpuCalibrationArguments& arguments, Output& output);

}  // namespace meshwright::tools
