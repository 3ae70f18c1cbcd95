// Pinned host memory between the host and the arena: what a step gets from the host (learning rate,
// step number, ids) and what it gives back (statistics). A lane for each step in flight.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/cuda/gpu_memory.h"
#include "runtime/rank_setup.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// What a step tells of itself.
struct StepResult {
  double squared_norm = 0.0;
  double loss_sum = 0.0;
  double tokens = 0.0;
};

class HostLanes {
 public:
  /// Room for all ids that a step of the program loads.
  Status Create(const RankSetup& setup, int64_t steps_in_flight);

  /// Copies learning rate and 1-based step number to `to` in device memory.
  Status WriteScalars(int64_t step, double rate, std::byte* to, cudaStream_t stream);
  /// Host memory for the ids that the load op with this index copies to the device.
  int32_t* Ids(int32_t op, int64_t step) const;
  /// Copies the statistics from device memory; there once the stream has come that far.
  Status ReadBack(int64_t step, const std::byte* from, cudaStream_t stream);
  /// Statistics of a finished step, once; none when it read nothing back.
  std::optional<StepResult> TakeStatistics(int64_t step);

 private:
  std::byte* Lane(int64_t step) const {
    return memory_.data() + step % static_cast<int64_t>(read_back_.size()) * lane_bytes_;
  }

  HostMemory memory_;
  int64_t lane_bytes_ = 0;
  std::vector<int64_t> ids_at_;  ///< by op: in a lane, -1: loads nothing
  std::vector<bool> read_back_;  ///< by lane
};

}  // namespace meshwright::runtime::cuda
