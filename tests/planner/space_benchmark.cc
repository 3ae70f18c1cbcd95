// Search of the whole space, one core: optimum with certificate, on the stack `megatron`.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <cstdlib>
#include <iostream>
#include <memory>

#include "cost_models/device_profile.h"
#include "planner/ir/load_model.h"
#include "planner/space/find_splits.h"
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
  double seconds = 0.0;
  for (auto _ : state) {
    state.PauseTiming();
    auto costs = CostsOf(scene);  // tables are priced within the search
    state.ResumeTiming();
    if (!costs.ok()) return state.SkipWithError(costs.status().message().c_str());
    space::SpaceOptions options;
    options.gpus = {scene.gpus};
    options.global_batch = scene.global_batch;
    if (std::getenv("LIMITS")) {
      options.most_tp = 8;
      options.most_cp = 16;
      options.most_micro_batch = 16;
      options.sequence_parallel_tied = true;
    }
    if (scene.fp8) options.formats.push_back(LinearFormat::kFp8);
    const auto found =
        space::FindSplits({{scene.profile, costs->get(), MemoryOf(**costs), 0}}, options);
    if (!found.ok()) return state.SkipWithError(found.status().message().c_str());
    certificate = found->certificate;
    best = ShortName(found->best.front().tuple.split);
    seconds = found->best.front().objective_s;
  }
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
WHOLE(Gpt3On512, "gpt3-175b", "dgx-a100-80", "a100-80", 512, 1536, 2048, false);
WHOLE(Gpt3On4096, "gpt3-175b", "dgx-a100-80", "a100-80", 4096, 4096, 2048, false);
WHOLE(OneTrillionOn4096, "1t", "dgx-a100-80", "a100-80", 4096, 4096, 2048, false);
WHOLE(Llama405BOn16384, "llama-3.1-405b", "dgx-h100", "h100-sxm", 16384, 2048, 8192, true);
WHOLE(DeepSeekV3On2048, "deepseek-v3", "dgx-h100", "h100-sxm", 2048, 15360, 4096, true);
WHOLE(MixtralOn64, "mixtral-8x7b", "dgx-h100", "h100-sxm", 64, 1024, 4096, true);

}  // namespace
