// Measures what runtime/own_limit.h describes, on the GPU and in the arena of a run that has ended.
#pragma once

#include <cstddef>

#include "runtime/cuda/cuda_device.h"
#include "runtime/own_limit.h"
#include "runtime/rank_setup.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// Communication and host ops count nothing. Overwrites the arena. kNotFound when a product of the
/// program was never timed (a run without tuning).
Result<OwnLimit> MeasureOwnLimit(const RankSetup& setup, CudaDevice& device, std::byte* arena);

}  // namespace meshwright::runtime::cuda
