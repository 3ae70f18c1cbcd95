#include "planner/lower/lower.h"

#include <fmt/format.h>

#include "planner/lower/communicators.h"
#include "planner/lower/stage.h"
#include "planner/lower/tasks.h"

namespace meshwright::planner {
namespace {

void ListUnsupported(const ModuleSpec& m, std::vector<std::string>& out) {
  const auto add = [&](const std::string& what) {
    out.push_back(fmt::format("{}: {}", m.name, what));
  };
  for (const LayerSpec& layer : m.layer_kinds) {
    if (layer.mlp.moe) add("mixture of experts");
    if (layer.attention.latent) add("latent attention");
    if (layer.attention.qk_norm) add("query-key norm");
    if (layer.attention.score_softcap > 0.0) add("attention score soft-capping");
    if (layer.post_norms) add("norms after attention and MLP");
  }
  if (m.logit_softcap > 0.0) add("logit soft-capping");
  if (m.embedding_scale != 1.0) add("scaled embeddings");
  if (m.head_bias) add("bias of the head");
  if (m.next_token_layers > 0) add("multi-token prediction layers");
  if (!m.final_norm || !m.head || m.vocab == 0)
    add("a module without token embedding, final norm or head");
  if (!m.trained) add("frozen modules");
}

}  // namespace

Status CheckSupported(const Plan& plan) {
  std::vector<std::string> found;
  if (plan.modules.size() != 1) found.push_back("several modules in one plan");
  for (const ModuleSpec& m : plan.model.modules) {
    for (const ModulePlan& p : plan.modules) {
      if (p.module == m.name) ListUnsupported(m, found);
    }
  }
  for (const ModulePlan& p : plan.modules) {
    if (p.cp > 1) found.push_back(fmt::format("cp {}: context parallelism", p.cp));
    if (p.ep > 1) found.push_back(fmt::format("ep {}: expert parallelism", p.ep));
  }
  if (found.empty()) return Status::Ok();
  std::string list;
  for (const std::string& f : found) {
    if (list.find(f) == std::string::npos) list += (list.empty() ? "" : "; ") + f;
  }
  return Unsupported(
      fmt::format("model {}: the stack meshwright cannot execute: {}. It runs dense decoder-only "
                  "GPT-2 and Llama "
                  "families; parameter counts work for every readable model.",
                  plan.model.name, list));
}

namespace {

/// `own_programs`: of tensor ranks that differ, each gets its own.
Result<Programs> LowerPlan(const Plan& plan, bool own_programs) {
  MW_RETURN_IF_ERROR(CheckPlan(plan));
  MW_RETURN_IF_ERROR(CheckSupported(plan));
  Programs programs;
  programs.facts = {plan.sequence,
                    plan.micro_batch,
                    plan.micro_batches,
                    plan.global_batch,
                    plan.model.modules.front().vocab,
                    PolicyOf(plan.dtype),
                    plan.optimizer};
  programs.modules = plan.modules;
  for (size_t m = 0; m < plan.modules.size(); ++m) {
    for (int64_t stage = 0; stage < plan.modules[m].pp; ++stage) {
      const int64_t positions = own_programs ? plan.modules[m].programs_per_stage() : 1;
      for (int64_t p = 0; p < positions; ++p) {
        programs.programs.push_back(lower::BuildRankProgram(plan, m, stage, p));
      }
    }
  }
  lower::BuildGroups(plan, own_programs, programs);
  return programs;
}

}  // namespace

Result<Programs> Lower(const Plan& plan) {
  return LowerPlan(plan, true);
}

Result<Programs> LowerForPrices(const Plan& plan) {
  return LowerPlan(plan, false);
}

std::string DumpPasses(const Plan& plan, size_t module, int64_t stage_index) {
  using namespace lower;  // NOLINT(google-build-using-namespace)
  const Stage stage = BuildStage(plan, module, stage_index);
  std::string out;
  for (const StageItem& item : stage.items) {
    if (item.kind != ItemKind::kLayer) continue;
    const ItemParameters& parameters = stage.ParametersOf(item);
    Graph forward = BuildLayer(stage.split, item.kind_index, parameters, !item.first_of_chunk);
    out += "# build\n" + DumpGraph(forward);
    Shard(forward, stage.split);
    out += "# shard\n" + DumpGraph(forward);
    Fuse(forward);
    out += "# fuse\n" + DumpGraph(forward);
    Graph backward = Differentiate(forward, stage.split, parameters, {});
    out += "# differentiate\n" + DumpGraph(backward);
    ApplyRecompute(forward, backward, stage.recompute);
    out += "# recompute (saved tensors are starred)\n" + DumpGraph(forward) + DumpGraph(backward);
    AllocateSaved(forward, &backward);
    OverlapTensorTraffic(forward, stage.split);
    OverlapTensorTraffic(backward, stage.split);
    if (stage.split.tensor_chunks > 1) {
      out += "# overlap\n" + DumpGraph(forward) + DumpGraph(backward);
    }
    const BlockOptions options{0, stage.split.tp > 1};
    out += "# place and allocate\n" + DumpBlock(PlaceAndAllocate(forward, options)) +
           DumpBlock(PlaceAndAllocate(backward, options));
    break;
  }
  return out;
}

}  // namespace meshwright::planner
