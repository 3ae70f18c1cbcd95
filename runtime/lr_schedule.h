// Learning rate by step.
#pragma once

#include <cstdint>
#include <string>

#include "topologies/status.h"

namespace meshwright::runtime {

enum class LrDecay : uint8_t { kConstant, kCosine, kLinear };
/// "constant", "cosine", "linear".
std::string ToString(LrDecay decay);
Result<LrDecay> ParseLrDecay(const std::string& text);

struct LrOptions {
  double peak = 3e-4;        ///< learning rate at the end of the warm-up
  double floor = 0.0;        ///< learning rate from `decay_steps` on; not used by kConstant
  int64_t warmup_steps = 0;  ///< steps of linear rise from peak / warmup_steps to peak; 0: none
  int64_t decay_steps = 0;   ///< step, counted from 1, at which the floor is reached
  LrDecay decay = LrDecay::kConstant;
  friend bool operator==(const LrOptions&, const LrOptions&) = default;
};

/// Ranges of all fields; names the field, what was found and what is allowed.
Status CheckLrOptions(const LrOptions& options);

/// Learning rate of `step` (1-based). Warm-up: peak * step / warmup_steps. Then, with
/// x = (step - warmup_steps) / (decay_steps - warmup_steps) held to at most 1, cosine:
/// floor + (peak - floor) * (1 + cos(pi x)) / 2; linear: peak + (floor - peak) * x.
double LearningRate(const LrOptions& options, int64_t step);

}  // namespace meshwright::runtime
