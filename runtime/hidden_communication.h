// How much of the communication of a step ran behind computation, from recorded rows of ops.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/ir/trace.h"

namespace meshwright::runtime {

/// Traffic of one class, summed over ranks.
struct CommunicationTime {
  planner::StreamKind traffic = planner::StreamKind::kTensor;
  double busy_s = 0.0;    ///< on the wire; an instant counts once on a rank
  double hidden_s = 0.0;  ///< the part in which the compute stream of the same rank was busy

  /// 0..1; 0 without traffic.
  double hidden_share() const { return busy_s > 0 ? hidden_s / busy_s : 0.0; }
};

/// Traffic of the first step in `rows`, by classes that occur in the order of StreamKind; with rows
/// of the next step, too, what runs behind computation of that one (gathers of parameters) is seen.
/// `rows` are those of all ranks, each rank's in issue order, with equally many on a group by each
/// of its members.
///
/// Operation i of a group is the same on all members. It is over at the same time everywhere, and
/// the member that came last did not wait: the shortest of their times is that of the wire, which
/// ends where the row ends. Clocks of ranks are not compared.
std::vector<CommunicationTime> HiddenCommunication(const std::vector<planner::OpTraceRow>& rows);

}  // namespace meshwright::runtime
