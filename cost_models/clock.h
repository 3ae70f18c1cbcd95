// The clock of a GPU at its power limit, by what a step keeps it busy with.
#pragma once

#include <vector>

#include "cost_models/device_profile.h"
#include "cost_models/work.h"
#include "topologies/units.h"

namespace meshwright::cost {

/// Time of a step at the profile's rates.
struct BusyTime {
  /// Products, or attention of one head size.
  struct Limited {
    double clock = 1.0;  ///< alone at the limit
    Seconds time;
  };
  std::vector<Limited> limited;
  Seconds memory;  ///< of memory-bound kernels
};

/// Time of what the clock decides over that at the profile's rates: reference / clock. The clock f,
/// a share of the highest, keeps the mean power of the step at the limit, or is 1 where that leaves
/// power to spare. Work i takes the limit's power alone at its clock c_i; power beyond that of an
/// idle GPU goes as f^3 (voltage rises with the clock), time of limited work w_i as 1 / f, that of
/// memory-bound kernels m not at all:
///   sum w_i r / f + m = f^2 (sum w_i r / c_i^3 + memory_power m),  r the reference.
/// On three H200s (cost_models/h200_runs.md) clocks of eight models came out within 6 %, on average
/// 2.5 %.
double StretchOf(const BusyTime& busy, const PowerClock& clock);

/// Whether the work's time was taken at the reference clock: attention, and products that
/// `calibrate` times in its mix (the others alone, at the highest clock).
bool ClockDecides(const Work& work);
inline constexpr double kLargeProductFlops = 3e10;

/// Its clock alone at the limit.
double ClockAlone(const Work& work, const GpuModel& gpu);

}  // namespace meshwright::cost
