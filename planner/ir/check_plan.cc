// CheckPlan: every condition a plan must meet (parallelism.md sections 9 and 10), reported
// together.
#include <fmt/format.h>

#include <set>
#include <vector>

#include "planner/ir/plan.h"

namespace meshwright::planner {
namespace {

class Problems {
 public:
  template <typename... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    list_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  Status ToStatus() && { return Status::OfProblems(std::move(list_)); }

 private:
  std::vector<std::string> list_;
};

std::string Divisors(int64_t n, int64_t limit) {
  std::string text;
  for (int64_t d = 1; d <= std::min(n, limit); ++d) {
    if (n % d == 0) text += (text.empty() ? "" : ", ") + std::to_string(d);
  }
  return text;
}

void CheckTensor(const ModulePlan& m, const ModuleSpec& spec, Problems& problems) {
  const int64_t tp = m.tp;
  for (const LayerSpec& layer : spec.layer_kinds) {
    if (layer.attention.heads < 1 || layer.attention.kv_heads < 1) {
      problems.Add("module {}: {} attention and {} key-value heads, needs at least 1 of each",
                   spec.name, layer.attention.heads, layer.attention.kv_heads);
      return;
    }
  }
  int64_t copies = 1;
  for (const LayerSpec& layer : spec.layer_kinds) {
    const AttentionSpec& a = layer.attention;
    if (a.heads % tp != 0) {
      problems.Add(
          "tp {}: {} attention heads of module {} do not divide (remainder {}); tp may be {}", tp,
          a.heads, spec.name, a.heads % tp, Divisors(a.heads, 64));
    }
    if (a.kv_heads % tp != 0 && tp % a.kv_heads != 0) {
      problems.Add(
          "tp {}: {} key-value heads of module {} neither divide nor are divided; tp may be {} "
          "or a multiple of {} (each head then stored tp/{} times)",
          tp, a.kv_heads, spec.name, Divisors(a.kv_heads, 64), a.kv_heads, a.kv_heads);
    } else if (tp > a.kv_heads) {
      copies = std::max(copies, tp / a.kv_heads);
    }
    const int64_t ffn = layer.mlp.moe ? layer.mlp.moe->expert_ffn : layer.mlp.ffn;
    if (ffn % tp != 0)
      problems.Add("tp {}: FFN width {} does not divide (remainder {})", tp, ffn, ffn % tp);
    if (layer.mlp.moe && layer.mlp.moe->experts % m.ep != 0) {
      problems.Add("ep {}: {} experts do not divide (remainder {}); ep may be {}", m.ep,
                   layer.mlp.moe->experts, layer.mlp.moe->experts % m.ep,
                   Divisors(layer.mlp.moe->experts, 1024));
    }
    if (!layer.mlp.moe && m.ep > 1)
      problems.Add("ep {}: module {} has no experts; ep must be 1", m.ep, spec.name);
  }
  for (const LayerSpec& layer : spec.layer_kinds) {
    const int64_t kv = layer.attention.kv_heads;
    if (copies > 1 && (kv % tp == 0 || tp / kv != copies)) {
      problems.Add(
          "tp {}: layer kinds of module {} would store key-value heads {} and {} times; one number "
          "must serve all, use a tp up to the smallest number of key-value heads",
          tp, spec.name, copies, std::max<int64_t>(1, tp / kv));
    }
  }
  if (m.kv_copies != copies) {
    problems.Add("kv_copies {}: with tp {} each key-value head is stored {} times", m.kv_copies, tp,
                 copies);
  }
}

void CheckLayers(const ModulePlan& m, const ModuleSpec& spec, Problems& problems) {
  const int64_t layers = spec.layer_count();
  if (static_cast<int64_t>(m.chunks.size()) != m.pp * m.virtual_stages) {
    problems.Add("layer ranges: {} given, pp {} x vpp {} needs {}", m.chunks.size(), m.pp,
                 m.virtual_stages, m.pp * m.virtual_stages);
    return;
  }
  if (m.pp * m.virtual_stages > layers) {
    problems.Add(
        "pp {} x vpp {} = {} stages: the model has {} layers and every stage needs one; lower "
        "pp or vpp",
        m.pp, m.virtual_stages, m.pp * m.virtual_stages, layers);
    return;
  }
  int64_t next = 0;
  for (size_t i = 0; i < m.chunks.size(); ++i) {
    const LayerRange& r = m.chunks[i];
    if (r.first_layer != next || r.layer_count < 1) {
      problems.Add(
          "layer range {} is [{}, {}), expected to begin at {} and hold at least one layer", i,
          r.first_layer, r.first_layer + r.layer_count, next);
      return;
    }
    next += r.layer_count;
  }
  if (next != layers) {
    problems.Add("layer ranges cover {} layers, the model has {}: no layer may be dropped or added",
                 next, layers);
  }
}

void CheckSchedule(const Plan& plan, const ModulePlan& m, Problems& problems) {
  if (m.virtual_stages > 1 && m.pp < 2) {
    problems.Add("vpp {}: virtual stages need pp > 1, found pp {}; use vpp 1 or raise pp",
                 m.virtual_stages, m.pp);
  }
  if (m.virtual_stages > 1 && plan.micro_batches < m.pp) {
    problems.Add(
        "vpp {}: the interleaved schedule needs at least pp = {} micro-batches, found {} "
        "(global batch {} / (micro-batch {} x dp {})); raise the global batch to {} or use vpp 1",
        m.virtual_stages, m.pp, plan.micro_batches, plan.global_batch, plan.micro_batch, m.dp,
        m.pp * plan.micro_batch * m.dp);
  }
  const bool interleaved = plan.schedule == ScheduleKind::kInterleaved;
  if (interleaved != (m.virtual_stages > 1)) {
    problems.Add("schedule {}: vpp is {}; interleaved goes with vpp > 1 and 1f1b with vpp 1",
                 ToString(plan.schedule), m.virtual_stages);
  }
  const int64_t samples = plan.micro_batch * m.dp;
  if (plan.global_batch % samples != 0 || plan.global_batch < samples) {
    problems.Add(
        "global batch {}: not a multiple of micro-batch {} x dp {} = {}; nearest are {} and {}",
        plan.global_batch, plan.micro_batch, m.dp, samples,
        std::max<int64_t>(1, plan.global_batch / samples) * samples,
        (plan.global_batch / samples + 1) * samples);
  } else if (plan.micro_batches * samples != plan.global_batch) {
    problems.Add("micro-batches {}: global batch {} / (micro-batch {} x dp {}) is {}",
                 plan.micro_batches, plan.global_batch, plan.micro_batch, m.dp,
                 plan.global_batch / samples);
  }
}

void CheckModule(const Plan& plan, const ModulePlan& m, const ModuleSpec& spec,
                 Problems& problems) {
  CheckTensor(m, spec, problems);
  CheckLayers(m, spec, problems);
  CheckSchedule(plan, m, problems);
  if (m.sequence_parallel && m.tp == 1) {
    problems.Add("sequence parallelism: needs tp > 1, found tp 1; turn it off");
  }
  if (m.sequence_parallel && plan.sequence % m.tp != 0) {
    problems.Add(
        "sequence {}: sequence parallelism needs a multiple of tp {} (remainder {}); pad to {}",
        plan.sequence, m.tp, plan.sequence % m.tp, (plan.sequence / m.tp + 1) * m.tp);
  }
  if (m.tensor_chunks > 1 && m.tp == 1) {
    problems.Add("tensor chunks {}: they overlap the traffic of tp > 1, found tp 1; use 1 chunk",
                 m.tensor_chunks);
  }
  if (m.tensor_chunks > 1 && m.sequence_parallel && m.tensor_chunks % m.tp != 0) {
    problems.Add(
        "tensor chunks {}: with sequence parallelism they are parts of the {} ranks' slices; use a "
        "multiple of tp {}, or 1",
        m.tensor_chunks, m.tp, m.tp);
  }
  if (m.tensor_chunks < 1 || plan.sequence % std::max<int64_t>(m.tensor_chunks, 1) != 0) {
    problems.Add("tensor chunks {}: must be 1 or more and divide the sequence {}", m.tensor_chunks,
                 plan.sequence);
  }
  if (m.cp > 1 && plan.sequence % (2 * m.cp) != 0) {
    problems.Add("sequence {}: context parallelism needs a multiple of 2 x cp = {}; pad to {}",
                 plan.sequence, 2 * m.cp, (plan.sequence / (2 * m.cp) + 1) * 2 * m.cp);
  }
  if (spec.max_positions > 0 && plan.sequence > spec.max_positions) {
    problems.Add("sequence {}: module {} has {} positions; use a shorter sequence or another model",
                 plan.sequence, spec.name, spec.max_positions);
  }
  const int64_t quantum = plan.vocab_quantum * m.tp;
  const int64_t padded = (spec.vocab + quantum - 1) / quantum * quantum;
  if (spec.vocab > 0 && m.padded_vocab != padded) {
    problems.Add("padded vocabulary {}: {} rounded up to a multiple of {} x tp {} is {}",
                 m.padded_vocab, spec.vocab, plan.vocab_quantum, m.tp, padded);
  }
  if (m.logits_chunk_bytes < 1) {
    problems.Add("chunk of logits: found {} bytes, needs at least 1", m.logits_chunk_bytes);
  }
  if (static_cast<int64_t>(m.recompute.size()) != m.pp) {
    problems.Add("recompute: {} values, expected one a stage ({})", m.recompute.size(), m.pp);
  }
}

}  // namespace

Status CheckPlan(const Plan& plan) {
  Problems problems;
  if (plan.modules.empty()) problems.Add("the plan has no modules");
  if (plan.sequence < 1)
    problems.Add("sequence: found {}, needs at least 1 (pass --seq)", plan.sequence);
  if (plan.micro_batch < 1)
    problems.Add("micro-batch: found {}, needs at least 1", plan.micro_batch);
  if (plan.micro_batches < 1) {
    problems.Add(
        "micro-batches: global batch {} is less than one micro-batch per data-parallel rank",
        plan.global_batch);
  }
  if (plan.vocab_quantum < 1)
    problems.Add("vocabulary quantum: found {}, needs at least 1", plan.vocab_quantum);
  for (const ModulePlan& m : plan.modules) {
    const ModuleSpec* spec = nullptr;
    for (const ModuleSpec& s : plan.model.modules) {
      if (s.name == m.module) spec = &s;
    }
    if (spec == nullptr) {
      problems.Add("module {}: the model has no module of this name", m.module);
      continue;
    }
    if (std::min({m.tp, m.cp, m.ep, m.dp, m.pp, m.virtual_stages}) < 1) {
      problems.Add("module {}: tp, cp, ep, dp, pp and vpp must be at least 1", m.module);
      continue;
    }
    CheckModule(plan, m, *spec, problems);
  }
  const int64_t world = plan.modules.empty() ? 0 : plan.world_size();
  if (static_cast<int64_t>(plan.placement.size()) != world) {
    problems.Add("placement: {} ranks placed, the grid has {}", plan.placement.size(), world);
  }
  if (std::set<int64_t>(plan.placement.begin(), plan.placement.end()).size() !=
      plan.placement.size()) {
    problems.Add("placement: two ranks share a GPU; every rank needs its own");
  }
  return std::move(problems).ToStatus();
}

}  // namespace meshwright::planner
