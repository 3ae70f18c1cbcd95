#include "runtime/cuda/prepare_kernels.h"

#include <set>
#include <string>
#include <utility>

#include "planner/ir/op_schema.h"
#include "runtime/cuda/attention.h"
#include "runtime/cuda/gemm.h"
#include "runtime/cuda/step_tables.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::OpKind;

bool IsProduct(OpKind kind) {
  return kind == OpKind::kLinear || kind == OpKind::kLinearInputGrad ||
         kind == OpKind::kLinearWeightGrad;
}

/// f(OpCall) for every op of every instance; the arena is not there yet.
template <typename F>
Status ForEachOp(const RankContext& context, F f) {
  const planner::RankProgram& program = *context.program;
  for (const planner::Task& task : program.tasks) {
    for (const planner::Instance& instance : task.instances) {
      const planner::Block& block = program.blocks[static_cast<size_t>(instance.block)];
      for (const planner::Op& op : block.ops) {
        MW_RETURN_IF_ERROR(f(OpCall{context, block, op, instance, task, nullptr}));
      }
    }
  }
  return Status::Ok();
}

Status PrepareAttention(const RankContext& context, AttentionEngine& attention) {
  std::set<const planner::Op*> seen;
  return ForEachOp(context, [&](const OpCall& call) {
    const OpKind kind = call.op.kind;
    if (kind != OpKind::kAttention && kind != OpKind::kAttentionGrad) return Status::Ok();
    return seen.insert(&call.op).second ? attention.Prepare(call) : Status::Ok();
  });
}

}  // namespace

Result<std::vector<GemmKey>> ProductKeys(const planner::Programs& programs) {
  std::set<GemmKey> keys;
  for (const planner::RankProgram& program : programs.programs) {
    RankContext context;
    context.program = &program;
    context.facts = programs.facts;
    MW_RETURN_IF_ERROR(ForEachOp(context, [&](const OpCall& call) -> Status {
      if (!IsProduct(call.op.kind)) return Status::Ok();
      MW_ASSIGN_OR_RETURN(const GemmKey key, GemmEngine::KeyOf(call));
      keys.insert(key);
      return Status::Ok();
    }));
  }
  return std::vector<GemmKey>(keys.begin(), keys.end());
}

Status PrepareKernels(const planner::Programs& programs, const RankSetup& setup, Store& store,
                      CudaDevice& device) {
  constexpr double kTuningDeadline = 300.0;  // s
  constexpr char kChoicesKey[] = "gemm choices";
  GemmEngine& gemm = device.gemm();
  const bool first = setup.context.binding == &programs.ranks.front();
  if (!first) {
    MW_ASSIGN_OR_RETURN(const std::string choices, store.Get(kChoicesKey, kTuningDeadline));
    MW_RETURN_IF_ERROR(gemm.ImportChoices(choices));
  }
  MW_ASSIGN_OR_RETURN(const std::vector<GemmKey> keys, ProductKeys(programs));
  MW_RETURN_IF_ERROR(gemm.Prepare(keys));
  if (first && programs.ranks.size() > 1) {
    MW_RETURN_IF_ERROR(store.Set(kChoicesKey, gemm.ExportChoices()));
  }
  MW_RETURN_IF_ERROR(PrepareAttention(setup.context, device.attention()));
  return device.step_tables().Build(setup.context);
}

}  // namespace meshwright::runtime::cuda
