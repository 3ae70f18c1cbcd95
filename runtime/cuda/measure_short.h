// Times short products as a training step of a small model runs them: the weights, or what is added
// to their gradients, come from memory, and the activations, which the op before has written or
// will be read next, stay in the L2 cache where they fit. Such steps draw too little power to slow
// the clock; in the mix of MeasureSustained each short product would wait for operands and kernel
// code that a step has at hand (a third of its time, cost_models/h200_runs.md).
#pragma once

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/gpu_bench.h"
#include "runtime/cuda/measure_sustained.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// Short enough for a small model: about 50 us.
bool IsShort(const GpuProductSample& product);

/// Fills in the seconds, launch included, in the bench's memory.
Status MeasureShort(CudaDevice& device, GpuBench& bench, TunedProduct* product);

}  // namespace meshwright::runtime::cuda
