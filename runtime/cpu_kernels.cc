// The CPU table, and what all CPU kernels share.
#include "runtime/cpu_kernels.h"

#include <fmt/format.h>

#include "runtime/cpu_blas.h"

namespace meshwright::runtime {
namespace {

KernelTable MakeTable() {
  using K = planner::OpKind;
  UseOneBlasThread();
  KernelTable table;
  table.device = "cpu";
  const auto set = [&](K kind, Kernel kernel) {
    table.kernels[static_cast<size_t>(kind)] = kernel;
  };
  set(K::kCountTokens, cpu::CountTokens);
  set(K::kInvertCount, cpu::InvertCount);
  set(K::kEmbed, cpu::Embed);
  set(K::kEmbedGrad, cpu::EmbedGrad);
  set(K::kAddPositions, cpu::AddPositions);
  set(K::kPositionsGrad, cpu::PositionsGrad);
  set(K::kNorm, cpu::Norm);
  set(K::kNormApply, cpu::NormApply);
  set(K::kNormGrad, cpu::NormGrad);
  set(K::kLinear, cpu::Linear);
  set(K::kLinearInputGrad, cpu::LinearInputGrad);
  set(K::kLinearWeightGrad, cpu::LinearWeightGrad);
  set(K::kBiasAdd, cpu::BiasAdd);
  set(K::kBiasGrad, cpu::BiasGrad);
  set(K::kRotary, cpu::Rotary);
  set(K::kAttention, cpu::Attention);
  set(K::kAttentionGrad, cpu::AttentionGrad);
  set(K::kActivation, cpu::Activation);
  set(K::kActivationGrad, cpu::ActivationGrad);
  set(K::kAdd, cpu::Add);
  set(K::kCopy, cpu::Copy);
  set(K::kSoftmaxStats, cpu::SoftmaxStats);
  set(K::kCrossEntropyGrad, cpu::CrossEntropyGrad);
  set(K::kSquaredNorm, cpu::SquaredNorm);
  set(K::kStepStatistics, cpu::StepStatistics);
  set(K::kClipFactor, cpu::ClipFactor);
  set(K::kOptimizerStep, cpu::OptimizerStep);
  return table;
}

}  // namespace

const KernelTable& CpuKernels() {
  static const KernelTable table = MakeTable();
  return table;
}

namespace cpu {

std::string Where(const OpCall& call) {
  return fmt::format("block {}: op {}", call.block.name, planner::ToString(call.op.kind));
}

Status CheckDTypes(const OpCall& call) {
  for (size_t i = 0; i < call.op.operands.size(); ++i) {
    const planner::TensorView* view = call.View(i);
    if (view != nullptr && view->dtype == planner::DType::kBf16) {
      return Unsupported(fmt::format(
          "{}: tensor {} is bf16; CPU ranks compute in fp32 or fp64, choose one of these dtypes",
          Where(call), view->name));
    }
  }
  return Status::Ok();
}

}  // namespace cpu
}  // namespace meshwright::runtime
