// plan.json: a plan as text, complete enough to be lowered on another machine.
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "planner/ir/model_yaml.h"
#include "planner/ir/plan.h"
#include "planner/ir/plan_json_fields.h"
#include "topologies/cluster_io.h"

namespace meshwright::planner {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;
using plan_json::Object;
using plan_json::Problems;

constexpr const char* kVersionKey = "meshwright_plan";
constexpr int64_t kMostBytesOfMemory = int64_t{1} << 60;
constexpr int64_t kMostStages = 4096;

std::string Hex(uint64_t value) {
  return fmt::format("0x{:016x}", value);
}

// --- members that are written and read alike

struct MemoryField {
  const char* name;
  int64_t MemoryBreakdown::*member;
};
constexpr std::array<MemoryField, 9> kMemoryFields = {{
    {"parameters", &MemoryBreakdown::parameters},
    {"gradients", &MemoryBreakdown::gradients},
    {"optimizer", &MemoryBreakdown::optimizer},
    {"saved", &MemoryBreakdown::saved},
    {"scratch", &MemoryBreakdown::scratch},
    {"communication", &MemoryBreakdown::communication},
    {"io", &MemoryBreakdown::io},
    {"outside", &MemoryBreakdown::outside},
    {"slots", &MemoryBreakdown::slots},
}};

struct PredictionField {
  const char* name;
  double Prediction::*member;
};
constexpr std::array<PredictionField, 5> kPredictionFields = {{
    {"step_time_s", &Prediction::step_time_s},
    {"bubble_fraction", &Prediction::bubble_fraction},
    {"tokens_per_s_per_gpu", &Prediction::tokens_per_s_per_gpu},
    {"model_tflops_per_gpu", &Prediction::model_tflops_per_gpu},
    {"mfu", &Prediction::mfu},
}};

struct ModuleField {
  const char* name;
  int64_t ModulePlan::*member;
  int64_t low;
  int64_t high;
};
constexpr std::array<ModuleField, 10> kModuleFields = {{
    {"tp", &ModulePlan::tp, 1, plan_json::kMostOfAnAxis},
    {"cp", &ModulePlan::cp, 1, plan_json::kMostOfAnAxis},
    {"ep", &ModulePlan::ep, 1, plan_json::kMostOfAnAxis},
    {"dp", &ModulePlan::dp, 1, plan_json::kMostOfAnAxis},
    {"pp", &ModulePlan::pp, 1, kMostStages},
    {"rank_offset", &ModulePlan::rank_offset, 0, plan_json::kMostRanks},
    {"virtual_stages", &ModulePlan::virtual_stages, 1, kMostStages},
    {"kv_copies", &ModulePlan::kv_copies, 1, plan_json::kMostOfAnAxis},
    {"padded_vocab", &ModulePlan::padded_vocab, 0, int64_t{1} << 42},
    {"bucket_elements", &ModulePlan::bucket_elements, 0, plan_json::kMostElements},
}};

struct StepField {
  const char* name;
  int64_t Plan::*member;
};
constexpr std::array<StepField, 5> kStepFields = {{
    {"sequence", &Plan::sequence},
    {"micro_batch", &Plan::micro_batch},
    {"micro_batches", &Plan::micro_batches},
    {"global_batch", &Plan::global_batch},
    {"vocab_quantum", &Plan::vocab_quantum},
}};

// --- writing

Ordered WriteModule(const ModulePlan& m) {
  Ordered json;
  json["module"] = m.module;
  for (const ModuleField& f : kModuleFields) json[f.name] = m.*f.member;
  json["sequence_parallel"] = m.sequence_parallel;
  if (m.tensor_chunks > 1) json["tensor_chunks"] = m.tensor_chunks;
  if (m.logits_chunk_bytes != kLogitsChunkBytes) json["logits_chunk_bytes"] = m.logits_chunk_bytes;
  json["zero"] = ToString(m.sharding);
  json["chunks"] = Ordered::array();
  for (const LayerRange& r : m.chunks) json["chunks"].push_back({r.first_layer, r.layer_count});
  json["recompute"] = Ordered::array();
  for (const Recompute r : m.recompute) json["recompute"].push_back(ToString(r));
  return json;
}

Ordered WritePrediction(const Prediction& p) {
  Ordered json;
  for (const PredictionField& f : kPredictionFields) json[f.name] = p.*f.member;
  json["stage_time_s"] = p.stage_time_s;
  json["memory"] = Ordered::array();
  for (const MemoryBreakdown& m : p.memory) {
    Ordered memory;
    for (const MemoryField& f : kMemoryFields) memory[f.name] = m.*f.member;
    json["memory"].push_back(std::move(memory));
  }
  return json;
}

// --- reading

ModulePlan ReadModule(const Json& json, const std::string& path, Problems& problems) {
  Object object(json, path, problems);
  ModulePlan m;
  m.module = object.Text("module", 256);
  int64_t ranks = 1;
  for (const ModuleField& f : kModuleFields) m.*f.member = object.Integer(f.name, f.low, f.high);
  for (const int64_t axis : {m.tp, m.cp, m.ep, m.dp, m.pp}) {
    ranks = ranks > plan_json::kMostRanks ? ranks : ranks * axis;
  }
  if (ranks > plan_json::kMostRanks) {
    problems.Add(path, "more ranks than that",
                 fmt::format("tp x cp x ep x dp x pp up to {}", plan_json::kMostRanks));
  }
  m.sequence_parallel = object.Flag("sequence_parallel");
  const auto has = [&](const char* key) { return json.is_object() && json.contains(key); };
  if (has("tensor_chunks")) m.tensor_chunks = object.Integer("tensor_chunks", 1, 64);
  if (has("logits_chunk_bytes")) {
    m.logits_chunk_bytes = object.Integer("logits_chunk_bytes", 1, kMostBytesOfMemory);
  }
  m.sharding = object.Choice<Sharding>("zero", ParseSharding);
  object.List("chunks", kMostStages * 16, [&](const Json& element, const std::string& at) {
    const bool pair = element.is_array() && element.size() == 2 && element[0].is_number_integer() &&
                      element[1].is_number_integer();
    const int64_t first = pair ? element[0].get<int64_t>() : -1;
    const int64_t count = pair ? element[1].get<int64_t>() : -1;
    if (first < 0 || count < 0 || first > kMostStages * 16 || count > kMostStages * 16) {
      problems.Add(at, plan_json::Describe(element), "[first layer, number of layers]");
      return;
    }
    m.chunks.push_back({first, count});
  });
  object.List("recompute", kMostStages, [&](const Json& element, const std::string& at) {
    const auto mode = ParseRecompute(element.is_string() ? element.get<std::string>() : "");
    if (mode.ok()) {
      m.recompute.push_back(*mode);
    } else {
      problems.Add(at, plan_json::Describe(element), "none, selective, full");
    }
  });
  object.Done();
  return m;
}

Prediction ReadPrediction(Object object) {
  Prediction p;
  for (const PredictionField& f : kPredictionFields) p.*f.member = object.Number(f.name);
  object.List("stage_time_s", kMostStages, [&](const Json& element, const std::string& at) {
    if (element.is_number() && element.get<double>() >= 0) {
      p.stage_time_s.push_back(element.get<double>());
    } else {
      object.problems().Add(at, plan_json::Describe(element), "a number of at least 0");
    }
  });
  object.List("memory", kMostStages, [&](const Json& element, const std::string& at) {
    Object memory(element, at, object.problems());
    MemoryBreakdown m;
    for (const MemoryField& f : kMemoryFields) {
      m.*f.member = memory.Integer(f.name, 0, kMostBytesOfMemory);
    }
    memory.Done();
    p.memory.push_back(m);
  });
  object.Done();
  return p;
}

/// Name, fingerprint and text of model or cluster.
struct Embedded {
  std::string name;
  uint64_t fingerprint = 0;
  std::string yaml;
};

Embedded ReadEmbedded(Object object) {
  Embedded e;
  e.name = object.Text("name", 4096);
  e.fingerprint = object.Hex("fingerprint");
  e.yaml = object.Text("yaml");
  object.Done();
  return e;
}

Status Differs(const std::string& source, const char* what, uint64_t stated, uint64_t found) {
  return InvalidInput(
      fmt::format("{}: {}: the file states fingerprint {}, its content has {}: the {} was changed "
                  "after the plan was "
                  "made; plan again, or state the new fingerprint to accept the change",
                  source, what, Hex(stated), Hex(found), what));
}

Status ReadModel(const Embedded& e, const std::string& source, Plan& plan) {
  const auto model = ParseModelYaml(e.yaml, source + ": model.yaml");
  if (!model.ok()) return model.status();
  plan.model = *model;
  plan.model_fingerprint = e.fingerprint;
  if (plan.model.name != e.name) {
    return InvalidInput(
        fmt::format("{}: model.name: found {}, its text names another model; correct one", source,
                    plan_json::Describe(Json(e.name))));
  }
  const uint64_t found = Fingerprint(plan.model);
  return found == e.fingerprint ? Status::Ok() : Differs(source, "model", e.fingerprint, found);
}

Status ReadCluster(const Embedded& e, const std::string& source, Plan& plan) {
  plan.cluster_name = e.name;
  plan.cluster_text = e.yaml;
  plan.cluster_fingerprint = e.fingerprint;
  if (e.yaml.empty()) {
    if (e.fingerprint == 0) return Status::Ok();  // made without a cluster
    return InvalidInput(source +
                        ": cluster: found a fingerprint without text, allowed: both or none");
  }
  const auto cluster = topologies::ParseClusterYaml(e.yaml, source + ": cluster.yaml");
  if (!cluster.ok()) return cluster.status();
  const uint64_t found = cluster->Fingerprint();
  return found == e.fingerprint ? Status::Ok() : Differs(source, "cluster", e.fingerprint, found);
}

Result<topologies::DeviceKind> ParseDevice(const std::string& text) {
  if (text == "gpu") return topologies::DeviceKind::kGpu;
  if (text == "cpu") return topologies::DeviceKind::kCpu;
  return InvalidInput(fmt::format("device: found '{}', allowed: gpu, cpu", text));
}

Result<Plan> ReadPlan(const Json& json, const std::string& source) {
  Problems problems(source);
  Object object(json, "", problems);
  const int64_t version = object.Integer(kVersionKey, 1, 1'000'000);
  if (problems.empty() && version != kPlanSchemaVersion) {
    return InvalidInput(
        fmt::format("{}: {}: found version {}, this program reads {}; plan again, or use the "
                    "version that wrote it",
                    source, kVersionKey, version, kPlanSchemaVersion));
  }
  Plan plan;
  plan.stack = object.Text("stack", 256);
  const Embedded model = ReadEmbedded(object.Sub("model"));
  const Embedded cluster = ReadEmbedded(object.Sub("cluster"));
  plan.schedule = object.Choice<ScheduleKind>("schedule", ParseScheduleKind);
  plan.dtype = object.Choice<DType>("dtype", ParseDType);
  plan.optimizer = object.Choice<OptimizerKind>("optimizer", ParseOptimizerKind);
  plan.device = object.Choice<topologies::DeviceKind>("device", ParseDevice);
  plan.workspace_bytes = object.Integer("workspace_bytes", 0, int64_t{1} << 40);
  plan.deterministic = object.FlagOr("deterministic", false);
  for (const StepField& f : kStepFields) {
    plan.*f.member = object.Integer(f.name, 1, plan_json::kMostSamples);
  }
  object.List("modules", 64, [&](const Json& element, const std::string& at) {
    plan.modules.push_back(ReadModule(element, at, problems));
  });
  object.List("bridges", 4096, [&](const Json& element, const std::string& at) {
    Object bridge(element, at, problems);
    plan.bridges.push_back({static_cast<int>(bridge.Integer("from", 0, 63)),
                            static_cast<int>(bridge.Integer("to", 0, 63))});
    bridge.Done();
  });
  plan.placement = object.Integers("placement", 2 * plan_json::kMostRanks, 0, int64_t{1} << 30);
  plan.prediction = ReadPrediction(object.Sub("prediction"));
  plan.reasons = object.Texts("reasons", plan_json::kMostLines);
  plan.warnings = object.Texts("warnings", plan_json::kMostLines);
  object.List("runners_up", plan_json::kMostLines, [&](const Json& element, const std::string& at) {
    Object runner(element, at, problems);
    RunnerUp r;
    r.plan = runner.Text("plan");
    r.step_time_s = runner.Number("step_time_s");
    r.reason = runner.Text("reason");
    runner.Done();
    plan.runners_up.push_back(std::move(r));
  });
  const uint64_t fingerprint = object.Hex("plan_fingerprint");
  object.Done();
  MW_RETURN_IF_ERROR(problems.ToStatus());
  MW_RETURN_IF_ERROR(ReadModel(model, source, plan));
  MW_RETURN_IF_ERROR(ReadCluster(cluster, source, plan));
  const uint64_t found = Fingerprint(plan);
  if (found != fingerprint) return Differs(source, "plan", fingerprint, found);
  return plan;
}

/// Refuses nesting beyond kDeepest before anything is built from it.
bool TooDeep(const std::string& text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++depth > plan_json::kDeepest) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

}  // namespace

std::string WritePlanJson(const Plan& plan) {
  Ordered json;
  json[kVersionKey] = kPlanSchemaVersion;
  json["stack"] = plan.stack;
  json["model"] = {{"name", plan.model.name},
                   {"fingerprint", Hex(plan.model_fingerprint)},
                   {"yaml", PrintModelYaml(plan.model)}};
  json["cluster"] = {{"name", plan.cluster_name},
                     {"fingerprint", Hex(plan.cluster_fingerprint)},
                     {"yaml", plan.cluster_text}};
  json["schedule"] = ToString(plan.schedule);
  json["dtype"] = ToString(plan.dtype);
  json["optimizer"] = ToString(plan.optimizer);
  json["device"] = plan.device == topologies::DeviceKind::kGpu ? "gpu" : "cpu";
  json["workspace_bytes"] = plan.workspace_bytes;
  if (plan.deterministic) json["deterministic"] = true;
  for (const StepField& f : kStepFields) json[f.name] = plan.*f.member;
  json["modules"] = Ordered::array();
  for (const ModulePlan& m : plan.modules) json["modules"].push_back(WriteModule(m));
  json["bridges"] = Ordered::array();
  for (const BridgePlan& b : plan.bridges)
    json["bridges"].push_back({{"from", b.from}, {"to", b.to}});
  json["placement"] = plan.placement;
  json["prediction"] = WritePrediction(plan.prediction);
  json["reasons"] = plan.reasons;
  json["warnings"] = plan.warnings;
  json["runners_up"] = Ordered::array();
  for (const RunnerUp& r : plan.runners_up) {
    json["runners_up"].push_back(
        {{"plan", r.plan}, {"step_time_s", r.step_time_s}, {"reason", r.reason}});
  }
  json["plan_fingerprint"] = Hex(Fingerprint(plan));
  return json.dump(2, ' ', false, Ordered::error_handler_t::replace) + "\n";
}

Result<Plan> ParsePlanJson(const std::string& text, const std::string& source) {
  if (text.size() > plan_json::kMostBytes) {
    return InvalidInput(fmt::format("{}: found {} bytes, allowed: {}; this is not a plan", source,
                                    text.size(), plan_json::kMostBytes));
  }
  if (TooDeep(text)) {
    return InvalidInput(fmt::format("{}: found objects nested deeper than {}; this is not a plan",
                                    source, plan_json::kDeepest));
  }
  std::string twice;  // first key that an object holds twice
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    const auto level = static_cast<size_t>(depth);
    if (event == Json::parse_event_t::object_start) {
      keys.resize(level + 1);
      keys[level].clear();
    } else if (event == Json::parse_event_t::key && level >= 1 && level <= keys.size()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys[level - 1].insert(key).second && twice.empty()) twice = key;
    }
    return true;
  };
  try {
    const Json json = Json::parse(text, watch);
    if (!twice.empty()) {
      return InvalidInput(fmt::format("{}: found the key {} twice in one object; keep one", source,
                                      plan_json::Describe(Json(twice))));
    }
    return ReadPlan(json, source);
  } catch (const Json::parse_error& error) {
    const size_t end = std::min(error.byte, text.size());
    const auto line =
        1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    return InvalidInput(fmt::format("{}: line {}: not JSON (byte {}); write the plan again", source,
                                    line, error.byte));
  } catch (const Json::exception& error) {
    return InvalidInput(fmt::format("{}: not a plan: {}", source, error.what()));
  }
}

}  // namespace meshwright::planner
