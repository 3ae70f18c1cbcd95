// The CUDA table, and the errors that all CUDA kernels share.
#include "runtime/cuda/cuda_kernels.h"

#include <fmt/format.h>

#include "runtime/cuda/operands.h"

namespace meshwright::runtime::cuda {
namespace {

KernelTable MakeTable() {
  using K = planner::OpKind;
  KernelTable table;
  table.device = "cuda";
  const auto set = [&](K kind, Kernel kernel) {
    table.kernels[static_cast<size_t>(kind)] = kernel;
  };
  set(K::kCountTokens, CountTokens);
  set(K::kInvertCount, InvertCount);
  set(K::kEmbed, Embed);
  set(K::kEmbedGrad, EmbedGrad);
  set(K::kAddPositions, AddPositions);
  set(K::kPositionsGrad, PositionsGrad);
  set(K::kNorm, Norm);
  set(K::kNormApply, NormApply);
  set(K::kNormGrad, NormGrad);
  set(K::kLinear, Linear);
  set(K::kLinearInputGrad, LinearInputGrad);
  set(K::kLinearWeightGrad, LinearWeightGrad);
  set(K::kBiasAdd, BiasAdd);
  set(K::kBiasGrad, BiasGrad);
  set(K::kRotary, Rotary);
  set(K::kAttention, Attention);
  set(K::kAttentionGrad, AttentionGrad);
  set(K::kActivation, Activation);
  set(K::kActivationGrad, ActivationGrad);
  set(K::kAdd, Add);
  set(K::kCopy, Copy);
  set(K::kSoftmaxStats, SoftmaxStats);
  set(K::kCrossEntropyGrad, CrossEntropyGrad);
  set(K::kSquaredNorm, SquaredNorm);
  set(K::kStepStatistics, StepStatistics);
  set(K::kClipFactor, ClipFactor);
  set(K::kOptimizerStep, OptimizerStep);
  return table;
}

}  // namespace

const KernelTable& CudaKernels() {
  static const KernelTable table = MakeTable();
  return table;
}

std::string Where(const OpCall& call) {
  return fmt::format("block {}: op {}", call.block.name, planner::ToString(call.op.kind));
}

Status UnsupportedDType(const OpCall& call, const char* name) {
  const planner::TensorView& view = *Operands(call).View(name);
  return Unsupported(
      fmt::format("{}: operand {} (tensor {}) is {}; GPU ranks compute in bf16 or fp32, choose one "
                  "of these dtypes",
                  Where(call), name, view.name, planner::ToString(view.dtype)));
}

Status Launched(const OpCall& call) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return Status::Ok();
  return CudaStatus(error, "kernel launch", Where(call));
}

}  // namespace meshwright::runtime::cuda
