#include "planner/space/stage_place.h"

namespace meshwright::planner::space {
namespace {

/// Rounding of sums of a few hundred doubles stays far below this share.
constexpr double kRounding = 1e-9;

}  // namespace

double MostSaved(const StagePlace& place, stack::StageSums sums, double all) {
  double low = 0.0, high = all;
  const auto memory = [&](double saved) {
    sums.saved_bytes = saved;
    return place.costs->Memory(*place.split, sums, place.in_flight).total();
  };
  const double at_high = memory(high);
  if (at_high <= place.memory_bytes) return high;
  const double at_low = memory(low);
  if (at_low > place.memory_bytes) return -1.0;
  // Memory mostly rises evenly: try where the straight line meets the limit.
  const double guess = (place.memory_bytes - at_low) / (at_high - at_low) * high;
  const double margin = kRounding * all;
  if (guess - margin > low && memory(guess - margin) <= place.memory_bytes) low = guess - margin;
  if (guess + margin < high && memory(guess + margin) > place.memory_bytes) high = guess + margin;
  while (high - low > 2 * margin) {
    const double middle = low + (high - low) / 2;
    (memory(middle) <= place.memory_bytes ? low : high) = middle;
  }
  return high;
}

}  // namespace meshwright::planner::space
