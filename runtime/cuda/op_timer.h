// How long every op of one step takes on the GPU, summed by what it is. Events between ops cost a
// few microseconds each, so that a timed step is slower than the others.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_device.h"
#include "runtime/executor.h"
#include "runtime/rank_setup.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

class OpTimer {
 public:
  OpTimer() = default;
  ~OpTimer();
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

  /// Events for every op of the rank's program.
  Status Create(const RankSetup& setup, const CudaDevice& device);
  bool created() const { return !events_.empty(); }

  Status Before(const IssuedOp& op);
  Status After(const IssuedOp& op);
  /// Once the step is done: products by shape, other ops by kind, longest first.
  Result<std::vector<OpTime>> Report() const;

 private:
  const CudaDevice* device_ = nullptr;
  std::vector<std::string> names_;   ///< by op in issue order
  std::vector<cudaEvent_t> events_;  ///< two an op
};

}  // namespace meshwright::runtime::cuda
