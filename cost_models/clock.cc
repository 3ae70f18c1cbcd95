#include "cost_models/clock.h"

#include <cmath>

#include "cost_models/op_time.h"

namespace meshwright::cost {

double StretchOf(const BusyTime& busy, const PowerClock& clock) {
  const double reference = clock.reference.value;
  double limited = 0.0;  // time x clock
  double power = 0.0;    // energy at the highest clock over time x limit
  for (const BusyTime::Limited& work : busy.limited) {
    limited += work.time.value() * reference;
    power += work.time.value() * reference / std::pow(work.clock, 3);
  }
  const double memory = busy.memory.value();
  if (limited <= 0) return 1.0;
  power += clock.memory_power.value * memory;
  const auto spare = [&](double f) { return limited / f + memory - f * f * power; };
  double low = 0.05;
  double high = 1.0;
  if (spare(high) >= 0) return reference;
  while (high - low > 1e-9) {
    const double middle = (low + high) / 2;
    (spare(middle) >= 0 ? low : high) = middle;
  }
  return reference / low;
}

bool ClockDecides(const Work& work) {
  if (work.precision != Precision::kBf16 && work.precision != Precision::kFp16) return false;
  return work.kind == WorkKind::kAttention ||
         (work.kind == WorkKind::kGemm && work.flops.value() >= kLargeProductFlops);
}

double ClockAlone(const Work& work, const GpuModel& gpu) {
  const double products = gpu.power_clock ? gpu.power_clock->products.value : 1.0;
  return work.kind == WorkKind::kAttention ? AttentionClock(work, gpu, products) : products;
}

}  // namespace meshwright::cost
