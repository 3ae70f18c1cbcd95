#include "runtime/lr_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace meshwright::runtime {
namespace {

constexpr std::array<const char*, 3> kNames = {"constant", "cosine", "linear"};
constexpr double kPi = 3.14159265358979323846;

}  // namespace

std::string ToString(LrDecay decay) {
  return kNames[static_cast<size_t>(decay)];
}

Result<LrDecay> ParseLrDecay(const std::string& text) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (text == kNames[i]) return static_cast<LrDecay>(i);
  }
  return InvalidInput(
      fmt::format("learning-rate decay \"{}\" is unknown; use {}", text, fmt::join(kNames, ", ")));
}

Status CheckLrOptions(const LrOptions& o) {
  if (!std::isfinite(o.peak) || o.peak < 0) {
    return InvalidInput(fmt::format("learning rate {} must be a finite number >= 0", o.peak));
  }
  if (o.warmup_steps < 0) {
    return InvalidInput(fmt::format("warm-up of {} steps: must be >= 0", o.warmup_steps));
  }
  if (o.decay == LrDecay::kConstant) return Status::Ok();
  if (!std::isfinite(o.floor) || o.floor < 0 || o.floor > o.peak) {
    return InvalidInput(fmt::format(
        "lowest learning rate {} must lie between 0 and the learning rate {}", o.floor, o.peak));
  }
  if (o.decay_steps <= o.warmup_steps) {
    return InvalidInput(fmt::format(
        "{} decay ends at step {}, within the warm-up of {} steps; end it later or shorten the "
        "warm-up",
        ToString(o.decay), o.decay_steps, o.warmup_steps));
  }
  return Status::Ok();
}

double LearningRate(const LrOptions& o, int64_t step) {
  if (step < o.warmup_steps) {
    return o.peak * static_cast<double>(step) / static_cast<double>(o.warmup_steps);
  }
  if (o.decay == LrDecay::kConstant) return o.peak;
  if (step >= o.decay_steps) return o.floor;
  const double x = static_cast<double>(step - o.warmup_steps) /
                   static_cast<double>(o.decay_steps - o.warmup_steps);
  if (o.decay == LrDecay::kLinear) return o.peak + (o.floor - o.peak) * x;
  return o.floor + (o.peak - o.floor) * 0.5 * (1.0 + std::cos(kPi * x));
}

}  // namespace meshwright::runtime
