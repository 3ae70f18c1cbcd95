// What of the traffic between two GPUs of a host goes by copy engines instead of NCCL.
#pragma once

#include <cstdint>
#include <optional>

namespace meshwright::runtime {

struct PeerCopyOptions {
  bool tensor = true, data = true, edges = true;  ///< kinds of groups of two ranks
  /// Smaller operations go by NCCL; absent: planner::PeerCopiesFrom.
  std::optional<int64_t> least_bytes;
  /// Also for pairs whose programs have no operations for it: a measurement says later what it does
  /// (PeerChannel::Follow).
  bool idle = false;

  bool any() const { return tensor || data || edges; }
};

}  // namespace meshwright::runtime
