// The kernel seam: one table of functions keyed by op kind. CPU and CUDA implement the same table.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "planner/ir/op_schema.h"
#include "planner/ir/program.h"
#include "topologies/status.h"

namespace meshwright::runtime {

/// Hyper-parameters of the optimizer step that are fixed for a run.
struct OptimizerOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  ///< decoupled; only on parameters whose entry has `decay`
  double clip = 1.0;          ///< global gradient norm; 0: off
};

/// What a rank is, as kernels need it. Lives as long as the executor.
struct RankContext {
  const planner::RankProgram* program = nullptr;
  const planner::RankBinding* binding = nullptr;
  planner::StepFacts facts;
  planner::ModulePlan grid;  ///< sizes tp, dp, pp ... of the rank's module
  OptimizerOptions optimizer;
  void* device = nullptr;  ///< of GPU ranks: what kernels of their table expect; nullptr on CPUs
};

/// One op bound to memory.
struct OpCall {
  const RankContext& rank;
  const planner::Block& block;
  const planner::Op& op;
  const planner::Instance& instance;
  const planner::Task& task;
  std::byte* arena = nullptr;

  /// Address of the operand at position `i`, nullptr when it is absent.
  std::byte* Address(size_t i) const {
    const int32_t tensor = op.operands[i].tensor;
    if (tensor < 0) return nullptr;
    const planner::TensorView& t = block.tensors[static_cast<size_t>(tensor)];
    return arena + instance.base[static_cast<size_t>(t.region)] + t.offset;
  }
  const planner::TensorView* View(size_t i) const {
    const int32_t tensor = op.operands[i].tensor;
    return tensor < 0 ? nullptr : &block.tensors[static_cast<size_t>(tensor)];
  }
};

using Kernel = Status (*)(const OpCall& call);

/// Table of a device; nullptr for kinds that the executor does itself (communication, host ops).
struct KernelTable {
  std::string device;  ///< "cpu"
  std::array<Kernel, planner::kOpKindCount> kernels{};
};

/// Reference kernels in fp32 and fp64: OpenBLAS (one thread a rank) for products, plain loops else.
const KernelTable& CpuKernels();

}  // namespace meshwright::runtime
