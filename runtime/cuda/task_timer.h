// When the tasks of a GPU rank run: events around them on their streams.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "runtime/cuda/cuda_device.h"
#include "runtime/rank_setup.h"
#include "runtime/step_recorder.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// One event before the first op of a task and one after its last op on each stream, for each step
/// in flight. No synchronisation, but a record takes a stream some microseconds: as long as a small
/// message, so tasks of nothing but traffic are timed where a trace is wanted.
class TaskTimer {
 public:
  TaskTimer() = default;
  ~TaskTimer();
  TaskTimer(const TaskTimer&) = delete;
  TaskTimer& operator=(const TaskTimer&) = delete;

  /// `traffic`: also tasks without an op on the compute stream.
  Status Create(const RankSetup& setup, const CudaDevice& device, bool traffic);
  /// The device is idle; times count from now, which is `now_ns` on the recorder's clock.
  Status SetOrigin(int64_t now_ns);

  Status Before(const IssuedOp& op, int64_t step);
  Status After(const IssuedOp& op, int64_t step);
  /// After everything of a step has been issued.
  Status EndStep(int64_t step);

  /// Whether everything of the step is done; an error of the device ends it.
  Result<bool> Done(int64_t step) const;
  /// Hands the times of a step that is done to the recorder. Steps in order.
  Status Report(int64_t step, StepRecorder& recorder);

 private:
  struct Ending {
    int32_t task = 0;
    size_t stream = 0;
  };
  /// Events of one step in flight.
  struct Lane {
    std::vector<cudaEvent_t> begins;   ///< by task; nullptr: not timed
    std::vector<cudaEvent_t> ends;     ///< by ending
    std::vector<cudaEvent_t> streams;  ///< by stream: the end of the step
  };
  Lane& At(int64_t step) { return lanes_[static_cast<size_t>(step) % lanes_.size()]; }
  const Lane& At(int64_t step) const { return lanes_[static_cast<size_t>(step) % lanes_.size()]; }

  const CudaDevice* device_ = nullptr;
  std::vector<bool> begins_task_;   ///< by op in issue order
  std::vector<int32_t> ending_of_;  ///< by op: index into endings_, -1: none
  std::vector<Ending> endings_;
  std::vector<Lane> lanes_;
  cudaEvent_t origin_ = nullptr;
  cudaEvent_t base_ = nullptr;  ///< event at base_ns_: of the origin, then of the step before
  int64_t base_ns_ = 0;
  std::vector<cudaEvent_t> all_;  ///< for the destructor
};

}  // namespace meshwright::runtime::cuda
