// The ops that MeasureGpu times: sizes of a grid that belongs to no plan.
#pragma once

#include <vector>

#include "planner/ir/attention_workspace.h"
#include "runtime/bench_op.h"
#include "runtime/measure_gpu.h"

namespace meshwright::runtime::cuda {

/// Memory-bound kernels in bf16, each at several sizes.
std::vector<BenchCase> KernelCases();

/// Shapes and passes of products, without their times.
std::vector<GpuProductSample> ProductCases();

std::vector<planner::AttentionShape> AttentionCases();
BenchCase AttentionCase(const planner::AttentionShape& shape, bool backward, bool deterministic);

}  // namespace meshwright::runtime::cuda
