// Collective and message ops on their communicator.
#pragma once

#include <cuda_runtime_api.h>

#include "runtime/cuda/device_communicator.h"
#include "runtime/kernels.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// Enqueues the op. An all-gather without an input takes its own slice of the output, a
/// reduce-scatter without an output its own slice of the input. kUnsupported for other ops.
Status Communicate(const OpCall& call, DeviceCommunicator& communicator, cudaStream_t stream);

}  // namespace meshwright::runtime::cuda
