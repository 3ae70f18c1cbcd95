// Search of the whole space, one core: optimum with certificate, on the stack `megatron`.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <cmath>
#include <memory>

#include "cost_models/device_profile.h"
#include "planner/ir/load_model.h"
#include "planner/space/finalists.h"
#include "planner/space/find_splits.h"
#include "planner/stack/pipeline.h"
#include "planner/stack/stack_costs.h"
#include "topologies/cluster_io.h"

namespace {

using namespace meshwright;
using namespace meshwright::planner;
using stack::LinearFormat;

struct Scene {
  const char* model;  ///< file name, or "1t"
  const char* cluster;
  const char* profile;
  int64_t gpus;
  int64_t global_batch;
  int64_t sequence;
  bool fp8;
  bool limited;  ///< tp up to 8, cp and micro-batch up to 16, sequence parallelism where tp > 1
};

/// The one-trillion-parameter GPT of Narayanan et al. 2021, table 1.
ModelSpec OneTrillion(ModelSpec gpt3) {
  ModuleSpec& m = gpt3.modules.front();
  m.hidden = 25600;
  for (LayerSpec& l : m.layer_kinds) {
    l.attention.heads = l.attention.kv_heads = 160;
    l.attention.head_dim = 160;
    l.mlp.ffn = 4 * m.hidden;
  }
  m.layers.assign(128, 0);
  return gpt3;
}

Result<std::unique_ptr<stack::StackStageCosts>> CostsOf(const Scene& scene) {
  const std::string root = MESHWRIGHT_SOURCE_DIR;
  const bool trillion = std::string(scene.model) == "1t";
  MW_ASSIGN_OR_RETURN(ModelSpec model, LoadModel(root + "/planner/models/" +
                                                 (trillion ? "gpt3-175b" : scene.model) + ".yaml"));
  if (trillion) model = OneTrillion(std::move(model));
  MW_ASSIGN_OR_RETURN(
      const topologies::Cluster hosts,
      topologies::LoadCluster(root + "/topologies/clusters/" + scene.cluster + ".yaml"));
  MW_ASSIGN_OR_RETURN(const topologies::Cluster cluster, hosts.WithDevices(scene.gpus));
  MW_ASSIGN_OR_RETURN(
      cost::DeviceProfile profile,
      cost::LoadDeviceProfile(root + "/cost_models/profiles/" + scene.profile + ".yaml"));
  MW_ASSIGN_OR_RETURN(stack::StackSpec spec,
                      stack::LoadStack(root + "/cost_models/stacks/megatron.yaml"));
  MW_ASSIGN_OR_RETURN(const stack::Fabric fabric, stack::FabricOf(cluster));
  return stack::StackStageCosts::Make(
      {model.modules.front(), std::move(spec), fabric, std::move(profile), scene.sequence, 1.0});
}

double MemoryOf(const stack::StackStageCosts& costs) {
  return static_cast<double>(costs.inputs().profile.memory.value.value());
}

void Whole(benchmark::State& state, const Scene& scene) {
  space::Certificate certificate;
  std::string best;
  double seconds = 0.0, gap = 0.0;
  for (auto _ : state) {
    state.PauseTiming();
    auto costs = CostsOf(scene);  // tables are priced within the search
    state.ResumeTiming();
    if (!costs.ok()) return state.SkipWithError(costs.status().message().c_str());
    space::SpaceOptions options;
    options.gpus = {scene.gpus};
    options.global_batch = scene.global_batch;
    if (scene.limited) {
      options.most_tp = 8;
      options.most_cp = options.most_micro_batch = 16;
      options.sequence_parallel_tied = true;
    }
    if (scene.fp8) options.formats.push_back(LinearFormat::kFp8);
    const auto found =
        space::FindSplits({{scene.profile, costs->get(), MemoryOf(**costs), 0}}, options);
    if (!found.ok()) return state.SkipWithError(found.status().message().c_str());
    certificate = found->certificate;
    best = ShortName(found->best.front().tuple.split);
    seconds = found->best.front().objective_s;
    state.PauseTiming();
    const auto finalists = space::SimulateFinalists(
        {{scene.profile, costs->get(), MemoryOf(**costs), 0}}, found->best);
    if (!finalists.ok()) return state.SkipWithError(finalists.status().message().c_str());
    for (const space::Finalist& f : *finalists) gap = std::max(gap, std::abs(f.gap));
    state.ResumeTiming();
  }
  state.counters["simulated_gap"] = gap;
  state.SetLabel(best);
  state.counters["step_s"] = seconds;
  state.counters["configurations"] = static_cast<double>(certificate.configurations);
  state.counters["evaluated"] = static_cast<double>(certificate.evaluated);
  state.counters["bounded_alone"] = static_cast<double>(certificate.bounded_alone);
  state.counters["shapes"] = static_cast<double>(certificate.shapes);
  state.counters["shapes_cut"] = static_cast<double>(certificate.shapes_cut);
  state.counters["gap"] = certificate.gap;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_MiB"] = static_cast<double>(usage.ru_maxrss) / 1024;
}

#define WHOLE(name, ...) \
  BENCHMARK_CAPTURE(Whole, name, Scene{__VA_ARGS__})->Unit(benchmark::kMillisecond)
WHOLE(Gpt3On512, "gpt3-175b", "dgx-a100-80", "a100-80", 512, 1536, 2048, false, false);
WHOLE(Gpt3On4096, "gpt3-175b", "dgx-a100-80", "a100-80", 4096, 4096, 2048, false, false);
WHOLE(OneTrillionOn4096, "1t", "dgx-a100-80", "a100-80", 4096, 4096, 2048, false, false);
WHOLE(Llama405BOn16384, "llama-3.1-405b", "dgx-h100", "h100-sxm", 16384, 2048, 8192, true, false);
WHOLE(MixtralOn64, "mixtral-8x7b", "dgx-h100", "h100-sxm", 64, 1024, 4096, true, false);
WHOLE(DeepSeekV3On2048, "deepseek-v3", "dgx-h100", "h100-sxm", 2048, 15360, 4096, true, true);
WHOLE(DeepSeekV3On2048Unlimited, "deepseek-v3", "dgx-h100", "h100-sxm", 2048, 15360, 4096, true,
      false);

/// A step of MT-NLG 530B on 3,360 GPUs (Smith et al. 2022): tp 8, pp 35, dp 12, batch 1,920 in
/// micro-batches of one; argument: virtual stages (3: batch 2,100, which the schedule needs).
void SimulateStep(benchmark::State& state) {
  stack::Split split;
  split.tp = 8;
  split.pp = 35;
  split.virtual_stages = state.range(0);
  split.dp = 12;
  split.micro_batches = split.virtual_stages > 1 ? 175 : 160;
  split.schedule = split.virtual_stages > 1 ? stack::Schedule::kInterleaved
                                            : stack::Schedule::kOneForwardOneBackward;
  stack::StagePasses stage;
  stage.chunks.assign(static_cast<size_t>(split.virtual_stages), {0.011, 0.012, 0.011});
  stage.end_s = 0.5;
  const std::vector<stack::StagePasses> stages(35, stage);
  int64_t nodes = 0;
  for (auto _ : state) {
    const auto run = stack::SimulatePipeline(split, stages, 1e-4);
    if (!run.ok()) return state.SkipWithError(run.status().message().c_str());
    nodes = run->nodes;
  }
  state.counters["nodes"] = static_cast<double>(nodes);
  state.counters["nodes/s"] =
      benchmark::Counter(static_cast<double>(nodes), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(SimulateStep)->Arg(1)->Arg(3)->Unit(benchmark::kMillisecond);

/// Llama-3-70B on 64 H100 and 64 A100: stages of unlike speed and memory.
void Mixed(benchmark::State& state) {
  const Scene fast{"llama-3-70b", "dgx-h100", "h100-sxm", 64, 1024, 8192, false, true};
  const Scene slow{"llama-3-70b", "dgx-a100-80", "a100-80", 64, 1024, 8192, false, true};
  space::Certificate certificate;
  std::string best;
  for (auto _ : state) {
    state.PauseTiming();
    auto h100 = CostsOf(fast);
    auto a100 = CostsOf(slow);
    if (!h100.ok() || !a100.ok()) return state.SkipWithError("profiles cannot be read");
    space::SpaceOptions options;
    options.global_batch = fast.global_batch;
    options.most_tp = 8;
    options.most_cp = options.most_micro_batch = 16;
    options.sequence_parallel_tied = true;
    state.ResumeTiming();
    const auto found = space::FindSplits({{"h100-sxm", h100->get(), MemoryOf(**h100), 64},
                                          {"a100-80", a100->get(), MemoryOf(**a100), 64}},
                                         options);
    if (!found.ok()) return state.SkipWithError(found.status().message().c_str());
    certificate = found->certificate;
    best = ShortName(found->best.front().tuple.split) + ", layers";
    for (const int64_t n : found->best.front().layers) best += " " + std::to_string(n);
  }
  state.SetLabel(best);
  state.counters["configurations"] = static_cast<double>(certificate.configurations);
  state.counters["evaluated"] = static_cast<double>(certificate.evaluated);
  state.counters["gap"] = certificate.gap;
}
BENCHMARK(Mixed)->Unit(benchmark::kMillisecond);

/// The axes of Calculon (Isaev et al. 2023) that Split has, every tuple by itself: tp, pp,
/// interleaving, dp, micro-batch, three recompute modes, ZeRO-1 or none, equal stages. Its other
/// axes (overlap and network of each dimension) are prices: one search for each of `variants`.
void Reduced(benchmark::State& state) {
  const Scene scene{"gpt3-175b", "dgx-a100-80", "a100-80", 4096, 1536, 2048, false, false};
  auto first = CostsOf(scene);
  if (!first.ok()) return state.SkipWithError(first.status().message().c_str());
  const int64_t variants = state.range(0);
  int64_t configurations = 0, evaluated = 0, bounded = 0;
  for (auto _ : state) {
    configurations = evaluated = bounded = 0;
    for (int64_t variant = 0; variant < variants; ++variant) {
      state.PauseTiming();
      stack::CostInputs inputs = (*first)->inputs();
      stack::StackLowering& l = inputs.stack.lowering;
      bool* const flags[] = {&l.hides_tensor_gradients,    &l.hides_gradient_reduction,
                             &l.hides_parameter_gather,    &l.hides_messages,
                             &l.fused_weight_accumulation, &inputs.fabric.in_switch_reduction};
      for (size_t bit = 0; bit < 6; ++bit) *flags[bit] = ((variant >> bit) & 1) != 0;
      if (((variant >> 6) & 1) != 0) {
        inputs.fabric.network_share = BytesPerSecond(inputs.fabric.network_share.value() / 2);
      }
      if (((variant >> 7) & 1) != 0) {
        inputs.fabric.local_bandwidth = BytesPerSecond(inputs.fabric.local_bandwidth.value() / 2);
      }
      auto costs = stack::StackStageCosts::Make(std::move(inputs));
      if (!costs.ok()) return state.SkipWithError(costs.status().message().c_str());
      space::SpaceOptions options;
      options.gpus = {scene.gpus};
      options.global_batch = scene.global_batch;
      options.held.cp = 1;
      options.sharding = {stack::ShardingLevel::kNone, stack::ShardingLevel::kZero1};
      options.schedules = {stack::Schedule::kOneForwardOneBackward, stack::Schedule::kInterleaved};
      options.orders = {stack::RankOrder::kDataInside};
      options.modes = {true, true, true, false};
      options.mode_rule = space::ModeRule::kUniform;
      options.even_layers = true;
      options.cut_subtrees = false;
      options.top = 1;
      state.ResumeTiming();
      const auto found =
          space::FindSplits({{scene.profile, costs->get(), MemoryOf(**costs), 0}}, options);
      if (!found.ok()) return state.SkipWithError(found.status().message().c_str());
      configurations += found->certificate.configurations;
      evaluated += found->certificate.evaluated;
      bounded += found->certificate.bounded_alone;
    }
  }
  state.counters["configurations"] = static_cast<double>(configurations);
  state.counters["evaluated"] = static_cast<double>(evaluated);
  state.counters["bounded_alone"] = static_cast<double>(bounded);
  state.counters["tuples/s"] = benchmark::Counter(static_cast<double>(configurations),
                                                  benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(Reduced)->Arg(1)->Arg(256)->Unit(benchmark::kMillisecond);

}  // namespace
