// Initial state of a GPU rank, drawn on the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "runtime/kernels.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// As InitializeParameters, in device memory: the same values up to the rounding of logarithm and
/// cosine. Master weights (bf16) start as the parameters' rounded values. Enqueues on `stream`.
Status InitializeOnGpu(const RankContext& rank, uint64_t seed, std::byte* arena,
                       cudaStream_t stream);

}  // namespace meshwright::runtime::cuda
