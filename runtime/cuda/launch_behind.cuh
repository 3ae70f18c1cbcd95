// Kernels that start while the one before them in the stream ends.
#pragma once

#include "runtime/cuda/operands.h"

namespace meshwright::runtime::cuda {

/// Lets the next kernel of the stream start its blocks before this one has ended, if it was
/// launched so. It sees nothing of this one until AwaitKernelBefore.
__device__ inline void AllowNextKernel() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/// Until the kernel before has ended and its stores are seen.
__device__ inline void AwaitKernelBefore() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// Launches a kernel that reads and writes nothing before AwaitKernelBefore. With `behind` its
/// blocks may take their places before the kernel before has ended.
template <typename... P, typename... A>
Status Launch(const OpCall& call, bool behind, void (*kernel)(P...), dim3 grid, dim3 block,
              size_t shared, const A&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = StreamOf(call);
  config.attrs = &attribute;
  config.numAttrs = behind ? 1 : 0;
  MW_CUDA_CALL(cudaLaunchKernelEx(&config, kernel, P(arguments)...));
  return Launched(call);
}

}  // namespace meshwright::runtime::cuda
