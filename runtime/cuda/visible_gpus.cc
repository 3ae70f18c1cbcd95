#include <cuda_runtime_api.h>

#include "runtime/cuda/cuda_device.h"
#include "runtime/gpu_run.h"

namespace meshwright::runtime {

Status CheckGpuBuild() {
  return Status::Ok();
}

Result<int> VisibleGpus() {
  cuda::AskForHardwareQueues();
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    return cuda::CudaStatus(
        error, "cudaGetDeviceCount",
        "no GPU can be used; check the driver, or run on CPU ranks (--device cpu)");
  }
  return count;
}

}  // namespace meshwright::runtime
