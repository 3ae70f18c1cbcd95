// Measurements of communication: from the runtime to the cost models, and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cost_models/fit_communication.h"
#include "runtime/measure_communication.h"
#include "topologies/gpu_catalog.h"
#include "topologies/status.h"

namespace meshwright::tools {

/// The measurement in the terms of the cost models; `model` says what links such a GPU has.
/// kInvalidInput when it was measured over NVLink and the model has none.
Result<cost::CommunicationSamples> ToCommunicationSamples(
    const runtime::CommunicationMeasurement& measured, const topologies::GpuModel& model);

/// Times in seconds, rates in bytes a second.
nlohmann::json CommunicationJson(const cost::CommunicationSamples& samples);
/// kInvalidInput, naming `source` and the field or row, for anything else than CommunicationJson
/// makes.
Result<cost::CommunicationSamples> ParseCommunication(const nlohmann::json& from,
                                                      const std::string& source);

}  // namespace meshwright::tools
