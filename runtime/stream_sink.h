// Where the issuing thread of a rank puts its work: streams and event registers, on CPU or GPU.
#pragma once

#include <cstdint>

#include "planner/ir/program.h"

namespace meshwright::runtime {

/// Work of a stream: a value that the owner of the streams understands.
struct StreamWork {
  const void* item = nullptr;
  int64_t step = 0;
};

/// Streams and event registers as CUDA defines them; one thread issues.
class StreamSink {
 public:
  virtual ~StreamSink() = default;
  /// What is launched on `stream` from now on starts after the latest record of `event`.
  virtual void Wait(planner::StreamId stream, planner::EventId event) = 0;
  virtual void Launch(planner::StreamId stream, const StreamWork& work) = 0;
  /// `event` is complete once everything launched on `stream` so far is.
  virtual void Record(planner::StreamId stream, planner::EventId event) = 0;
};

}  // namespace meshwright::runtime
