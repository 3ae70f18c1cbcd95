// What of the traffic between two GPUs of a host goes straight between their memories instead of
// by NCCL.
#pragma once

#include <optional>

#include "planner/ir/peer_traffic.h"

namespace meshwright::runtime {

struct PeerCopyOptions {
  bool tensor = true, data = true, edges = true;  ///< kinds of groups of two ranks
  std::optional<planner::PeerCarrier> moves;      ///< as of planner::PeerCarrierOf
  /// Also for pairs whose programs have no operations for it: a measurement says later what it does
  /// (PeerChannel::Follow).
  bool idle = false;

  bool any() const { return tensor || data || edges; }
};

}  // namespace meshwright::runtime
