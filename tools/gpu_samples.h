// What a GPU calibration measured: from the runtime to the cost models, and as a JSON file, so that
// a fit can be repeated without the GPU.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cost_models/fit_gpu.h"
#include "runtime/measure_gpu.h"
#include "topologies/status.h"

namespace meshwright::tools {

/// The measurement in the terms of the cost models; kernels get planner::KernelName.
cost::GpuSamples ToGpuSamples(const runtime::GpuMeasurement& measured);

/// Times in seconds, rates in bytes a second; communication only where it was measured.
nlohmann::json GpuSamplesJson(const cost::GpuSamples& samples);
/// kInvalidInput, naming `source` and the field, for anything else than GpuSamplesJson wrote.
Result<cost::GpuSamples> ParseGpuSamples(const std::string& text, const std::string& source);

}  // namespace meshwright::tools
