// Makes products and attention of a run ready before the first step, the same on all ranks.
#pragma once

#include <vector>

#include "planner/ir/program.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/gemm_choices.h"
#include "runtime/rank_setup.h"
#include "runtime/store.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// Every product of every class of ranks once, sorted. Addresses count from an aligned arena.
Result<std::vector<GemmKey>> ProductKeys(const planner::Programs& programs);

/// Builds and tunes what the programs' products and the rank's attention need, and the rank's step
/// tables. Rank 0 tunes the products of all classes while the others wait, so that all ranks run
/// the same algorithms. Needs GPU memory for a while: call it before the arena is allocated.
Status PrepareKernels(const planner::Programs& programs, const RankSetup& setup, Store& store,
                      CudaDevice& device);

}  // namespace meshwright::runtime::cuda
