// Times products and attention as a training step runs them: one after the other without a pause,
// between memory-bound ops, once clock and temperature have settled. Alone, in short series, they
// run at a higher clock (cost_models/h200_runs.md).
#pragma once

#include <vector>

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/gemm_choices.h"
#include "runtime/cuda/gemm_problem.h"
#include "runtime/cuda/gpu_bench.h"
#include "runtime/measure_gpu.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// A product and the algorithm that it runs with.
struct TunedProduct {
  GpuProductSample sample;
  GemmKey key;
  GemmChoice choice;
};

/// Puts the product on the compute stream. `problem`: of its key.
Status RunTuned(CudaDevice& device, const TunedProduct& product, const GemmProblem& problem,
                const GemmOperands& operands);

/// Fills in the seconds of both lists, in the bench's memory; medians of several rounds over all of
/// them. Attention comes in pairs of one shape, forward first. `clock`: the mean of those rounds,
/// GpuClock::Share.
Status MeasureSustained(CudaDevice& device, GpuBench& bench, std::vector<TunedProduct>* products,
                        std::vector<GpuAttentionSample>* attention, double* clock);

}  // namespace meshwright::runtime::cuda
