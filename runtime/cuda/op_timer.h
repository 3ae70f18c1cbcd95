// When every op of the last steps runs on the GPU, and how long, summed by what it is. Events
// between ops cost a few microseconds each, so that a timed step is slower than the others.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_device.h"
#include "runtime/executor.h"
#include "runtime/rank_setup.h"
#include "runtime/step_recorder.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

class OpTimer {
 public:
  OpTimer() = default;
  ~OpTimer();
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

  /// Events for every op of the rank's program in steps `first_step` .. `steps` - 1.
  Status Create(const RankSetup& setup, const CudaDevice& device, int64_t first_step,
                int64_t steps);
  /// Whether the step is the last that is timed.
  bool ends(int64_t step) const { return !events_.empty() && step + 1 == steps_; }

  bool times(int64_t step) const { return !events_.empty() && step >= first_step_; }
  /// Around an op on its stream; nothing for a step that is not timed.
  Status Before(const IssuedOp& op, int64_t step);
  Status After(const IssuedOp& op, int64_t step);
  /// Once the last step is done: when each op ran, from the start of the first.
  Status ReportTimes(StepRecorder& recorder) const;
  /// Once the last step is done, of that step: products by shape, other ops by kind, longest first.
  Result<std::vector<OpTime>> Report() const;

 private:
  size_t At(size_t op, int64_t step) const {
    return 2 * (names_.size() * static_cast<size_t>(step - first_step_) + op);
  }

  const CudaDevice* device_ = nullptr;
  int64_t first_step_ = 0, steps_ = 0;
  std::vector<std::string> names_;   ///< by op in issue order
  std::vector<cudaEvent_t> events_;  ///< two an op and step
};

}  // namespace meshwright::runtime::cuda
