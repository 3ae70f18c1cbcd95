#include "planner/ir/plan.h"

#include <fmt/format.h>

#include <array>

#include "planner/ir/hash.h"

namespace meshwright::planner {
namespace {

template <typename E, size_t N>
Result<E> ParseChoice(const std::string& text, const char* what,
                      const std::array<std::pair<const char*, E>, N>& table) {
  std::string allowed;
  for (const auto& [name, value] : table) {
    if (text == name) return value;
    allowed += (allowed.empty() ? "" : ", ") + std::string(name);
  }
  return InvalidInput(fmt::format("{}: found \"{}\", allowed: {}", what, text, allowed));
}

template <typename E, size_t N>
std::string NameOf(E value, const std::array<std::pair<const char*, E>, N>& table) {
  for (const auto& [name, v] : table) {
    if (v == value) return name;
  }
  MW_CHECK(false && "choice without a name");
  return {};
}

constexpr std::array<std::pair<const char*, DType>, 5> kDTypes = {{{"bf16", DType::kBf16},
                                                                   {"fp32", DType::kF32},
                                                                   {"fp64", DType::kF64},
                                                                   {"int32", DType::kI32},
                                                                   {"int64", DType::kI64}}};
constexpr std::array<std::pair<const char*, Recompute>, 3> kRecomputes = {
    {{"none", Recompute::kNone}, {"selective", Recompute::kSelective}, {"full", Recompute::kFull}}};
constexpr std::array<std::pair<const char*, Sharding>, 2> kShardings = {
    {{"none", Sharding::kNone}, {"zero1", Sharding::kZero1}}};
constexpr std::array<std::pair<const char*, ScheduleKind>, 2> kSchedules = {
    {{"1f1b", ScheduleKind::kOneForwardOneBackward}, {"interleaved", ScheduleKind::kInterleaved}}};
constexpr std::array<std::pair<const char*, OptimizerKind>, 2> kOptimizers = {
    {{"adamw", OptimizerKind::kAdamW}, {"sgd", OptimizerKind::kSgd}}};

}  // namespace

std::string ToString(DType v) {
  return NameOf(v, kDTypes);
}
std::string ToString(Recompute v) {
  return NameOf(v, kRecomputes);
}
std::string ToString(Sharding v) {
  return NameOf(v, kShardings);
}
std::string ToString(ScheduleKind v) {
  return NameOf(v, kSchedules);
}
std::string ToString(OptimizerKind v) {
  return NameOf(v, kOptimizers);
}
Result<DType> ParseDType(const std::string& t) {
  return ParseChoice(t, "dtype", kDTypes);
}
Result<Recompute> ParseRecompute(const std::string& t) {
  return ParseChoice(t, "recompute", kRecomputes);
}
Result<Sharding> ParseSharding(const std::string& t) {
  return ParseChoice(t, "zero", kShardings);
}
Result<ScheduleKind> ParseScheduleKind(const std::string& t) {
  return ParseChoice(t, "schedule", kSchedules);
}
Result<OptimizerKind> ParseOptimizerKind(const std::string& t) {
  return ParseChoice(t, "optimizer", kOptimizers);
}

DTypePolicy PolicyOf(DType compute) {
  DTypePolicy policy;
  policy.compute = compute;
  if (compute == DType::kF64) {
    policy.gradient = policy.moment = policy.statistics = DType::kF64;
  } else {
    policy.master = compute == DType::kBf16;
  }
  return policy;
}

std::string ShortName(const Plan& plan) {
  std::string name;
  for (const ModulePlan& m : plan.modules) {
    if (!name.empty()) name += " | ";
    name += fmt::format("tp{} pp{} dp{}", m.tp, m.pp, m.dp);
    if (m.virtual_stages > 1) name += fmt::format(" v{}", m.virtual_stages);
    name += fmt::format(" mb{}x{}", plan.micro_batch, plan.micro_batches);
    if (m.sequence_parallel) name += " sp";
    if (m.tensor_chunks > 1) name += fmt::format(" tc{}", m.tensor_chunks);
    if (m.sharding == Sharding::kZero1) name += " zero1";
    std::string recompute;
    bool same = true;
    for (Recompute r : m.recompute) {
      same = same && r == m.recompute.front();
      recompute += recompute.empty() ? ToString(r) : "," + ToString(r);
    }
    name += " " + (same && !m.recompute.empty() ? ToString(m.recompute.front()) : recompute);
  }
  return name;
}

uint64_t Fingerprint(const Plan& plan) {
  Hasher h;
  h.Add(plan.stack).Add(static_cast<int64_t>(Fingerprint(plan.model)));
  for (const ModulePlan& m : plan.modules) {
    h.Add(m.module);
    for (int64_t v : {m.tp, m.cp, m.ep, m.dp, m.pp, m.rank_offset, m.virtual_stages,
                      int64_t{m.sequence_parallel}, static_cast<int64_t>(m.sharding), m.kv_copies,
                      m.padded_vocab, m.bucket_elements}) {
      h.Add(v);
    }
    if (m.tensor_chunks > 1) h.Add(m.tensor_chunks);
    if (m.logits_chunk_bytes != kLogitsChunkBytes) h.Add(m.logits_chunk_bytes);
    for (const LayerRange& r : m.chunks) h.Add(r.first_layer).Add(r.layer_count);
    for (Recompute r : m.recompute) h.Add(static_cast<int64_t>(r));
  }
  for (int64_t v : {static_cast<int64_t>(plan.schedule), static_cast<int64_t>(plan.dtype),
                    static_cast<int64_t>(plan.optimizer), static_cast<int64_t>(plan.device),
                    plan.workspace_bytes, plan.sequence, plan.micro_batch, plan.micro_batches,
                    plan.global_batch, plan.vocab_quantum}) {
    h.Add(v);
  }
  if (plan.deterministic) h.Add(std::string("deterministic"));
  for (int64_t gpu : plan.placement) h.Add(gpu);
  return h.value();
}

}  // namespace meshwright::planner
