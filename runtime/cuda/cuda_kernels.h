// The CUDA table: kernels in bf16 (fp32 arithmetic) and fp32, one function an op kind. Semantics
// are those of the CPU kernels (cpu_kernels.h); differences stand here:
//   - Kernels enqueue on the op's stream and return; they neither synchronise nor allocate.
//   - Under bf16 the gradients, statistics and moments are fp32 (planner::PolicyOf).
//   - A label outside the vocabulary makes the row's statistics NaN, so the loss is NaN: the host
//     does not look at labels.
#pragma once

#include "runtime/kernels.h"

namespace meshwright::runtime::cuda {

/// Table for ranks whose RankContext::device is a CudaDevice. StepTables::Build must have run for
/// the rank before kRotary, kSquaredNorm and kOptimizerStep.
const KernelTable& CudaKernels();

// kernels_embedding.cu
Status CountTokens(const OpCall& call);
Status InvertCount(const OpCall& call);
Status Embed(const OpCall& call);
Status EmbedGrad(const OpCall& call);
Status AddPositions(const OpCall& call);
Status PositionsGrad(const OpCall& call);
// kernels_norm.cu, kernels_norm_grad.cu
Status Norm(const OpCall& call);
Status NormApply(const OpCall& call);
Status NormGrad(const OpCall& call);
// linear_kernels.cc, attention.cc
Status Linear(const OpCall& call);
Status LinearInputGrad(const OpCall& call);
Status LinearWeightGrad(const OpCall& call);
Status Attention(const OpCall& call);
Status AttentionGrad(const OpCall& call);
// kernels_elementwise.cu
Status BiasAdd(const OpCall& call);
Status BiasGrad(const OpCall& call);
Status Rotary(const OpCall& call);
Status Add(const OpCall& call);
Status Copy(const OpCall& call);
// kernels_activation.cu
Status Activation(const OpCall& call);
Status ActivationGrad(const OpCall& call);
// kernels_loss.cu
Status SoftmaxStats(const OpCall& call);
Status CrossEntropyGrad(const OpCall& call);
// kernels_step.cu
Status SquaredNorm(const OpCall& call);
Status StepStatistics(const OpCall& call);
Status ClipFactor(const OpCall& call);
Status OptimizerStep(const OpCall& call);

}  // namespace meshwright::runtime::cuda
