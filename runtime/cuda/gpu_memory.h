// Memory that a GPU rank owns: one allocation, freed with its owner.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "runtime/cuda/cuda_device.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// Of the present device, by all processes.
inline Result<int64_t> UsedBytes() {
  size_t free = 0, total = 0;
  MW_CUDA_CALL(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(total - free);
}

inline cudaError_t AllocatePinned(void** memory, size_t bytes) {
  return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
}
inline cudaError_t AllocateDevice(void** memory, size_t bytes) {
  return cudaMalloc(memory, bytes);
}

template <cudaError_t (*Allocator)(void**, size_t), cudaError_t (*Free)(void*)>
class OwnedMemory {
 public:
  OwnedMemory() = default;
  ~OwnedMemory() { static_cast<void>(Free(memory_)); }
  OwnedMemory(const OwnedMemory&) = delete;
  OwnedMemory& operator=(const OwnedMemory&) = delete;

  /// Once. kRunFailed when there are no `bytes` bytes.
  Status Allocate(int64_t bytes) {
    void* memory = nullptr;
    MW_CUDA_CALL(Allocator(&memory, static_cast<size_t>(bytes)));
    memory_ = static_cast<std::byte*>(memory);
    return Status::Ok();
  }
  std::byte* data() const { return memory_; }

 private:
  std::byte* memory_ = nullptr;
};

using HostMemory = OwnedMemory<AllocatePinned, cudaFreeHost>;  ///< pinned, for copies that overlap
using DeviceMemory = OwnedMemory<AllocateDevice, cudaFree>;

}  // namespace meshwright::runtime::cuda
