// Streams and event registers of a GPU rank: CUDA's own.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

#include "runtime/cuda/cuda_device.h"
#include "runtime/stream_sink.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// Work is put on its stream at once. The first error is kept; after it nothing is put any more.
class GpuStreams final : public StreamSink {
 public:
  using Enqueue = std::function<Status(planner::StreamId, const StreamWork&)>;

  GpuStreams(const CudaDevice& device, Enqueue enqueue)
      : device_(device), enqueue_(std::move(enqueue)) {}
  ~GpuStreams() override;
  GpuStreams(const GpuStreams&) = delete;
  GpuStreams& operator=(const GpuStreams&) = delete;
  /// Makes `events` registers.
  Status Create(int events);

  void Wait(planner::StreamId stream, planner::EventId event) override;
  void Launch(planner::StreamId stream, const StreamWork& work) override;
  void Record(planner::StreamId stream, planner::EventId event) override;

  const Status& status() const { return status_; }

 private:
  void Note(cudaError_t error, const char* call);

  const CudaDevice& device_;
  const Enqueue enqueue_;
  std::vector<cudaEvent_t> events_;
  Status status_;
};

}  // namespace meshwright::runtime::cuda
