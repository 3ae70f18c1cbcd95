// Deadlock check of task lists made by hand: ranks that post sends, receives and collectives, each
// step's operations together, and go on when all of them have completed (strict rendezvous: no
// buffering, an operation completes with its partner).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "topologies/status.h"

namespace meshwright::planner {

struct RendezvousOp {
  enum class Kind : uint8_t { kSend, kRecv, kCollective };
  Kind kind = Kind::kSend;
  int32_t peer = 0;          ///< rank; of kSend and kRecv
  int32_t communicator = 0;  ///< index into RendezvousProgram::communicators; of kCollective
  int32_t tag = 0;           ///< messages and collectives of one tag match in order
  int64_t bytes = 0;
  std::string label;  ///< for messages, e.g. "send act shape 3"
};

/// Operations that are posted together and waited for together.
struct RendezvousStep {
  std::vector<RendezvousOp> ops;
};

struct RendezvousProgram {
  std::vector<std::vector<RendezvousStep>> ranks;
  std::vector<std::vector<int32_t>> communicators;  ///< members
};

/// Ok when all ranks run to their end. kInfeasible names the cycle, the operation without partner
/// or the partners whose bytes differ; kInvalidInput: a rank or communicator that does not exist.
Status CheckRendezvous(const RendezvousProgram& program);

}  // namespace meshwright::planner
