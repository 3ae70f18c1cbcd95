// Times runs of collectives on one rank.
#pragma once

#include <cuda_runtime_api.h>

#include "runtime/cuda/communication_path.h"
#include "runtime/cuda/gpu_memory.h"
#include "runtime/deadline.h"

namespace meshwright::runtime::cuda {

/// How operations come to the GPU.
enum class Issue {
  kBackToBack,  ///< each as soon as the host has made the call: small ones wait for the host
  kQueued,      ///< the host is ahead, as in a training step: small ones wait for the GPU alone
};
inline constexpr Issue kIssues[] = {Issue::kBackToBack, Issue::kQueued};

/// Waits without blocking in CUDA, so that a rank that waits for ever becomes an error
/// (kRunFailed).
inline Status AwaitStream(cudaStream_t stream) {
  const Deadline deadline(60.0);
  while (true) {
    const cudaError_t state = cudaStreamQuery(stream);
    if (state == cudaSuccess) return Status::Ok();
    if (state != cudaErrorNotReady) return CudaStatus(state, "cudaStreamQuery");
    if (!deadline.passed()) continue;
    return RunFailed(
        "communication is not done within 60 s; another rank has failed or does something else");
  }
}

/// Events around the operations on their stream.
class CallTimer {
 public:
  CallTimer() = default;
  ~CallTimer() {
    for (cudaEvent_t event : {begin_, end_}) {
      if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
    }
  }
  CallTimer(const CallTimer&) = delete;
  CallTimer& operator=(const CallTimer&) = delete;

  Status Create() {
    MW_RETURN_IF_ERROR(delay_.Allocate(kDelayBytes));
    MW_CUDA_CALL(cudaEventCreate(&begin_));
    MW_CUDA_CALL(cudaEventCreate(&end_));
    return Status::Ok();
  }

  /// Microseconds of one of `calls` operations on this rank. Ranks meet in an untimed run before.
  /// `calls_a_delay`: operations that the host is sure to issue in 200 us.
  Result<double> Time(Path& path, int calls, Issue issue, int calls_a_delay = kCallsADelay) {
    const bool queued = issue == Issue::kQueued;
    // While this is written, the host issues both runs.
    for (int covered = 0; queued && covered < 2 * calls; covered += calls_a_delay) {
      MW_CUDA_CALL(cudaMemsetAsync(delay_.data(), 0, kDelayBytes, path.stream()));
    }
    MW_RETURN_IF_ERROR(path.Issue());
    if (!queued) MW_RETURN_IF_ERROR(AwaitStream(path.stream()));
    MW_CUDA_CALL(cudaEventRecord(begin_, path.stream()));
    MW_RETURN_IF_ERROR(path.Issue());
    MW_CUDA_CALL(cudaEventRecord(end_, path.stream()));
    MW_RETURN_IF_ERROR(AwaitStream(path.stream()));
    float milliseconds = 0.0F;
    MW_CUDA_CALL(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return 1e3 * static_cast<double>(milliseconds) / calls;
  }

 private:
  static constexpr size_t kDelayBytes = size_t{1} << 30;  // at least 200 us at 5 TB/s
  static constexpr int kCallsADelay = 8;                  // 25 us each, twice what one takes

  DeviceMemory delay_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace meshwright::runtime::cuda
