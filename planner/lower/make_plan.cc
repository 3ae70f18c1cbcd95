#include "planner/lower/make_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace meshwright::planner {
namespace {

Status CheckPositive(const SplitRequest& r) {
  const std::pair<const char*, int64_t> fields[] = {{"tp", r.tp},
                                                    {"pp", r.pp},
                                                    {"dp", r.dp},
                                                    {"cp", r.cp},
                                                    {"ep", r.ep},
                                                    {"vpp", r.virtual_stages},
                                                    {"micro-batch", r.micro_batch},
                                                    {"global-batch", r.global_batch},
                                                    {"vocab-quantum", r.vocab_quantum}};
  for (const auto& [name, value] : fields) {
    if (value < 1 || value > (int64_t{1} << 24)) {
      return InvalidInput(
          fmt::format("{}: found {}, allowed 1 to {}", name, value, int64_t{1} << 24));
    }
  }
  if (r.sequence < 0 || r.sequence > (int64_t{1} << 24)) {
    return InvalidInput(
        fmt::format("sequence: found {}, allowed 1 to {}", r.sequence, int64_t{1} << 24));
  }
  return Status::Ok();
}

}  // namespace

std::vector<int64_t> EvenLayers(int64_t layers, int64_t stages) {
  std::vector<int64_t> result(static_cast<size_t>(stages), layers / stages);
  // Extra layers go to the stages nearest the middle, the later one first at equal distance.
  std::vector<int64_t> order(static_cast<size_t>(stages));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return std::abs(2 * a - (stages - 1)) < std::abs(2 * b - (stages - 1));
  });
  for (int64_t i = 0; i < layers % stages; ++i) {
    ++result[static_cast<size_t>(order[static_cast<size_t>(i)])];
  }
  return result;
}

Result<Plan> MakePlan(const ModelSpec& model, const SplitRequest& r) {
  MW_RETURN_IF_ERROR(CheckPositive(r));
  if (model.modules.empty()) return InvalidInput(model.name + ": the model has no modules");
  const ModuleSpec& spec = model.modules.front();
  Plan plan;
  plan.model = model;
  plan.model_fingerprint = Fingerprint(model);
  plan.dtype = r.dtype;
  plan.optimizer = r.optimizer;
  plan.device = r.device;
  plan.workspace_bytes = WorkspaceBytes(r.device);
  plan.deterministic = r.deterministic && r.device == topologies::DeviceKind::kGpu;
  plan.sequence = r.sequence > 0 ? r.sequence : spec.max_positions;
  plan.micro_batch = r.micro_batch;
  plan.global_batch = r.global_batch;
  plan.micro_batches = r.global_batch / (r.micro_batch * r.dp);
  plan.vocab_quantum = r.vocab_quantum;
  plan.schedule =
      r.virtual_stages > 1 ? ScheduleKind::kInterleaved : ScheduleKind::kOneForwardOneBackward;

  ModulePlan m;
  m.module = spec.name;
  m.tp = r.tp;
  m.cp = r.cp;
  m.ep = r.ep;
  m.dp = r.dp;
  m.pp = r.pp;
  m.virtual_stages = r.virtual_stages;
  m.sequence_parallel = r.sequence_parallel.value_or(
      r.tp > 1 && r.tensor_chunks == 1 && plan.sequence > 0 && plan.sequence % r.tp == 0);
  m.tensor_chunks = r.tensor_chunks;
  m.sharding = r.sharding;
  for (const LayerSpec& layer : spec.layer_kinds) {
    const int64_t kv = layer.attention.kv_heads;
    if (kv > 0 && r.tp > kv && r.tp % kv == 0) m.kv_copies = std::max(m.kv_copies, r.tp / kv);
  }
  const int64_t quantum = r.vocab_quantum * r.tp;
  m.padded_vocab = (spec.vocab + quantum - 1) / quantum * quantum;
  m.logits_chunk_bytes = r.logits_chunk_bytes;
  m.bucket_elements =
      r.bucket_elements > 0 ? r.bucket_elements : std::max<int64_t>(40'000'000, 1'000'000 * r.dp);
  std::vector<int64_t> layers = r.layers;
  if (layers.empty()) layers = EvenLayers(spec.layer_count(), r.pp * r.virtual_stages);
  int64_t at = 0;
  for (int64_t count : layers) {
    m.chunks.push_back({at, count});
    at += count;
  }
  m.recompute = r.recompute.empty() ? std::vector<Recompute>{Recompute::kNone} : r.recompute;
  if (m.recompute.size() == 1) m.recompute.assign(static_cast<size_t>(r.pp), m.recompute.front());
  plan.modules.push_back(std::move(m));
  plan.placement.resize(static_cast<size_t>(plan.world_size()));
  std::iota(plan.placement.begin(), plan.placement.end(), 0);
  MW_RETURN_IF_ERROR(CheckPlan(plan));
  return plan;
}

}  // namespace meshwright::planner
