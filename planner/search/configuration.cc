#include "planner/search/configuration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "planner/lower/make_plan.h"
#include "planner/predict/few_micro_batches.h"

namespace meshwright::planner::search {
namespace {

/// Largest sizes that keep every product of sizes within 64 bits.
constexpr int64_t kMostSamples = int64_t{1} << 24;
constexpr int64_t kMostTokens = int64_t{1} << 24;
constexpr int64_t kMostMicroBatchTokens = int64_t{1} << 28;
constexpr int64_t kMostGpus = int64_t{1} << 17;

bool Held(const std::optional<int64_t>& held, int64_t value) {
  return !held || *held == value;
}

/// Adds what is legal for one grid.
class GridConfigurations {
 public:
  GridConfigurations(const ModuleSpec& module, const SearchOptions& options, int64_t sequence,
                     int64_t most_overlapped, std::vector<Configuration>& out)
      : module_(module),
        options_(options),
        sequence_(sequence),
        most_overlapped_(most_overlapped),
        out_(out) {}

  void Add(int64_t tp, int64_t pp, int64_t dp) {
    Configuration c;
    c.tp = tp;
    c.pp = pp;
    c.dp = dp;
    if (options_.global_batch % dp != 0) return;
    const int64_t samples = options_.global_batch / dp;
    for (const int64_t micro_batch : DivisorsOf(samples)) {
      if (!Held(options_.micro_batch, micro_batch)) continue;
      if (micro_batch * sequence_ > kMostMicroBatchTokens) continue;
      c.micro_batch = micro_batch;
      c.micro_batches = samples / micro_batch;
      // Fewer micro-batches than stages: only for who insists on the stages.
      if (c.micro_batches < pp && !options_.pp) continue;
      for (const int64_t v : VirtualStages(pp, c.micro_batches)) {
        c.virtual_stages = v;
        AddVariants(c);
      }
    }
  }

 private:
  std::vector<int64_t> VirtualStages(int64_t pp, int64_t micro_batches) const {
    const int64_t layers = module_.layer_count();
    std::vector<int64_t> all;
    const int64_t most = options_.virtual_stages.value_or(options_.max_virtual_stages);
    for (int64_t v = 1; v <= most && pp * v <= layers; ++v) {
      if (v > 1 && (pp == 1 || micro_batches < pp)) break;
      if (!Held(options_.virtual_stages, v)) continue;
      if (!options_.layers.empty() && static_cast<int64_t>(options_.layers.size()) != pp * v) {
        continue;
      }
      all.push_back(v);
    }
    return all;
  }

  /// In which the traffic of a tensor group may go beside products. With sequence parallelism they
  /// are parts of slices; else sums, which copy engines carry for pairs only.
  std::vector<int64_t> TensorChunks(int64_t tp, bool sp) const {
    std::vector<int64_t> chunks = {1};
    if (options_.tensor_chunks) {
      chunks = {*options_.tensor_chunks};
    } else if (tp > 1 && tp <= most_overlapped_ && (sp || tp == 2)) {
      chunks = {1, tp, 2 * tp};
    }
    std::erase_if(chunks, [&](int64_t n) {
      return n > 1 && (tp == 1 || sequence_ % n != 0 || (sp && n % tp != 0));
    });
    return chunks;
  }

  void AddVariants(Configuration c) {
    std::vector<bool> sequence_parallel = {false};
    if (c.tp > 1 && sequence_ % c.tp == 0) sequence_parallel = {true, false};
    for (const bool sp : sequence_parallel) {
      // Held on: also where tp 1 leaves nothing to cut.
      if (options_.sequence_parallel && *options_.sequence_parallel != sp && c.tp > 1) continue;
      c.without_sequence_parallel = !sp;
      for (const int64_t chunks : TensorChunks(c.tp, sp)) {
        c.tensor_chunks = chunks;
        AddShardings(c);
      }
    }
  }

  void AddShardings(Configuration c) {
    const Sharding widest = c.dp > 1 ? Sharding::kZero1 : Sharding::kNone;
    for (const Sharding sharding : {Sharding::kNone, Sharding::kZero1}) {
      if (sharding > widest) break;
      if (options_.sharding && std::min(*options_.sharding, widest) != sharding) continue;
      for (const PlacementOrder order :
           {PlacementOrder::kDataInside, PlacementOrder::kPipelineInside}) {
        if (order == PlacementOrder::kPipelineInside && (c.pp == 1 || c.dp == 1)) continue;
        c.sharding = sharding;
        c.order = order;
        out_.push_back(c);
      }
    }
  }

  const ModuleSpec& module_;
  const SearchOptions& options_;
  const int64_t sequence_;
  const int64_t most_overlapped_;
  std::vector<Configuration>& out_;
};

Status CheckAxis(const char* name, const std::optional<int64_t>& value, int64_t most) {
  if (value && (*value < 1 || *value > most)) {
    return InvalidInput(fmt::format("{}: found {}, allowed 1 to {}", name, *value, most));
  }
  return Status::Ok();
}

}  // namespace

int64_t Configuration::SimulatedOpsOf(int64_t layers) const {
  Configuration fewer = *this;
  fewer.micro_batches = SimulatedMicroBatches(pp, virtual_stages, micro_batches);
  return fewer.OpsOf(layers);
}

std::string NameOf(const Configuration& c) {
  std::string name = fmt::format("tp{} pp{} dp{}", c.tp, c.pp, c.dp);
  if (c.virtual_stages > 1) name += fmt::format(" v{}", c.virtual_stages);
  name += fmt::format(" mb{}x{}", c.micro_batch, c.micro_batches);
  if (c.sequence_parallel()) name += " sp";
  if (c.tensor_chunks > 1) name += fmt::format(" tc{}", c.tensor_chunks);
  if (c.sharding == Sharding::kZero1) name += " zero1";
  return name;
}

std::vector<int64_t> DivisorsOf(int64_t n) {
  std::vector<int64_t> low, high;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    low.push_back(d);
    if (d * d != n) high.push_back(n / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

int64_t KeyValueCopies(const ModuleSpec& module, int64_t tp) {
  int64_t copies = 1;
  int64_t all = 0;
  for (const LayerSpec& layer : module.layer_kinds) {
    const AttentionSpec& a = layer.attention;
    const int64_t ffn = layer.mlp.moe ? layer.mlp.moe->expert_ffn : layer.mlp.ffn;
    if (a.heads % tp != 0 || ffn % tp != 0) return 0;
    if (a.kv_heads % tp != 0 && tp % a.kv_heads != 0) return 0;
    const int64_t here = std::max<int64_t>(1, tp / a.kv_heads);
    if (all != 0 && here != all) return 0;  // one count of copies a module
    all = here;
    copies = here;
  }
  return copies;
}

std::vector<Configuration> Enumerate(const ModuleSpec& module, const SearchOptions& options,
                                     int64_t gpus, int64_t sequence, int64_t most_overlapped) {
  std::vector<Configuration> all;
  GridConfigurations grid(module, options, sequence, most_overlapped, all);
  for (const int64_t tp : DivisorsOf(gpus)) {
    if (!Held(options.tp, tp) || KeyValueCopies(module, tp) == 0) continue;
    for (const int64_t pp : DivisorsOf(gpus / tp)) {
      const int64_t dp = gpus / tp / pp;
      if (!Held(options.pp, pp) || !Held(options.dp, dp) || pp > module.layer_count()) continue;
      grid.Add(tp, pp, dp);
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

Status CheckOptions(const ModelSpec& model, const SearchOptions& o) {
  if (model.modules.size() != 1) {
    return Unsupported(fmt::format("model {}: {} modules; the search plans models of one module",
                                   model.name, model.modules.size()));
  }
  const auto range = [](const char* name, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return Status::Ok();
    return InvalidInput(fmt::format("{}: found {}, allowed {} to {}", name, value, low, high));
  };
  MW_RETURN_IF_ERROR(range("gpus", o.gpus, 0, kMostGpus));
  MW_RETURN_IF_ERROR(range("global batch", o.global_batch, 1, kMostSamples));
  MW_RETURN_IF_ERROR(range("sequence", o.sequence, 0, kMostTokens));
  MW_RETURN_IF_ERROR(range("vocabulary quantum", o.vocab_quantum, 1, kMostSamples));
  MW_RETURN_IF_ERROR(
      range("bytes of a chunk of logits", o.logits_chunk_bytes, 1, int64_t{1} << 40));
  MW_RETURN_IF_ERROR(range("bucket elements", o.bucket_elements, 0, int64_t{1} << 40));
  MW_RETURN_IF_ERROR(range("top", o.top, 1, 1000));
  MW_RETURN_IF_ERROR(range("threads", o.threads, 1, 256));
  MW_RETURN_IF_ERROR(range("most virtual stages", o.max_virtual_stages, 1, 1024));
  MW_RETURN_IF_ERROR(CheckAxis("tp", o.tp, kMostGpus));
  MW_RETURN_IF_ERROR(CheckAxis("cp", o.cp, kMostGpus));
  MW_RETURN_IF_ERROR(CheckAxis("ep", o.ep, kMostGpus));
  MW_RETURN_IF_ERROR(CheckAxis("pp", o.pp, kMostGpus));
  MW_RETURN_IF_ERROR(CheckAxis("dp", o.dp, kMostGpus));
  MW_RETURN_IF_ERROR(CheckAxis("vpp", o.virtual_stages, 1024));
  MW_RETURN_IF_ERROR(CheckAxis("micro-batch", o.micro_batch, kMostSamples));
  if (o.dtype == DType::kI32 || o.dtype == DType::kI64) {
    return InvalidInput(
        fmt::format("dtype: found {}, allowed: bf16, fp32, fp64", ToString(o.dtype)));
  }
  if (o.memory_limit && o.memory_limit->value() < 1) {
    return InvalidInput(
        fmt::format("memory limit: found {} B, needs at least 1", o.memory_limit->value()));
  }
  const int64_t sequence = o.sequence > 0 ? o.sequence : model.modules.front().max_positions;
  if (sequence < 1) {
    return InvalidInput("sequence: the model states no maximum; say how many tokens a sample has");
  }
  if (o.micro_batch && *o.micro_batch * sequence > kMostMicroBatchTokens) {
    return InvalidInput(fmt::format("micro-batch: {} samples of {} tokens are more than {} tokens",
                                    *o.micro_batch, sequence, kMostMicroBatchTokens));
  }
  return Status::Ok();
}

Status WhyNoneIsLegal(const ModelSpec& model, const SearchOptions& o, int64_t gpus,
                      int64_t sequence) {
  const ModuleSpec& module = model.modules.front();
  std::vector<std::string> why;
  const int64_t held = o.tp.value_or(1) * o.pp.value_or(1) * o.dp.value_or(1);
  const bool all_held = o.tp && o.pp && o.dp;
  if (all_held ? held != gpus : gpus % held != 0) {
    std::vector<std::string> factors;
    const auto list = [&](const char* name, const std::optional<int64_t>& value) {
      if (!value) return;
      const int64_t others = held / *value;
      factors.push_back(gpus % others == 0 && !all_held
                            ? fmt::format("{} {} (may be {})", name, *value,
                                          fmt::join(DivisorsOf(gpus / others), ", "))
                            : fmt::format("{} {}", name, *value));
    };
    list("tp", o.tp);
    list("pp", o.pp);
    list("dp", o.dp);
    why.push_back(fmt::format("{} GPUs: not {} {} = {}; {}", gpus,
                              all_held ? "equal to" : "a multiple of", fmt::join(factors, " x "),
                              held, "change one of them or the number of GPUs"));
  }
  // The held split as a plan: CheckPlan names every other problem.
  SplitRequest r;
  r.tp = o.tp.value_or(1);
  r.pp = o.pp.value_or(1);
  r.dp = o.dp.value_or(gpus % (r.tp * r.pp) == 0 && o.tp && o.pp ? gpus / (r.tp * r.pp) : 1);
  r.ep = o.ep.value_or(1);
  r.virtual_stages = o.virtual_stages.value_or(1);
  r.micro_batch = o.micro_batch.value_or(1);
  r.global_batch = o.global_batch;
  r.sequence = sequence;
  r.sequence_parallel = o.sequence_parallel;
  r.tensor_chunks = o.tensor_chunks.value_or(1);
  r.layers = o.layers;
  r.vocab_quantum = o.vocab_quantum;
  r.logits_chunk_bytes = o.logits_chunk_bytes;
  const Result<Plan> plan = MakePlan(model, r);
  if (!plan.ok()) why.push_back(plan.status().message());
  if (why.empty()) {
    why.push_back(fmt::format(
        "no tp x pp x dp = {} divides {} heads, {} layers and the global batch of {} samples "
        "(micro-batches at least pp); use another number of GPUs or another global batch",
        gpus, module.layer_kinds.front().attention.heads, module.layer_count(), o.global_batch));
  }
  return Infeasible(fmt::format("model {} on {} GPUs: no legal split: {}", model.name, gpus,
                                fmt::join(why, "; ")));
}

}  // namespace meshwright::planner::search
