// Buffers of a pipeline edge's messages, with the events that hand them over.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/ir/program.h"

namespace meshwright::planner::lower {

/// The messages of an edge take its buffers (`slots`) in turn, so that one is on its way while
/// another is in use.
struct EdgeBuffers {
  int64_t slots = 0;
  int64_t base = 0;  ///< arena offset of slot 0
  int64_t stride = 0;
  StreamId stream = -1;
  std::vector<EventId> ready;  ///< by slot: filled (received, or produced for sending)
  std::vector<EventId> free;   ///< by slot: consumed, or sent
  int64_t used = 0;            ///< messages so far in this step

  size_t slot() const { return static_cast<size_t>(used % slots); }
  int64_t address() const { return base + used % slots * stride; }
};

}  // namespace meshwright::planner::lower
