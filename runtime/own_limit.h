// What a step would take if every op ran as fast as alone and nothing ever waited.
#pragma once

namespace meshwright::runtime {

/// Of one rank's program. Zero: not measured.
struct OwnLimit {
  double products_s = 0.0;   ///< matrix products at the best time measured alone, cold caches
  double attention_s = 0.0;  ///< attention alone
  double memory_s = 0.0;     ///< bytes of all other ops at the device-to-device copy rate
  double total_s() const { return products_s + attention_s + memory_s; }
};

}  // namespace meshwright::runtime
