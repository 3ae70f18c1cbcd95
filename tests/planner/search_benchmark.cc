// Search times: Llama-3-70B on 64 H100 and on 1,024, one thread, without simulation.
#include <benchmark/benchmark.h>

#include "cost_models/device_profile.h"
#include "planner/ir/load_model.h"
#include "planner/search/find_plans.h"
#include "topologies/cluster_io.h"

namespace {

using namespace meshwright;
using namespace meshwright::planner;

void PlanLlama70B(benchmark::State& state) {
  const std::string root = MESHWRIGHT_SOURCE_DIR;
  const auto model = LoadModel(root + "/planner/models/llama-3-70b.yaml");
  const auto cluster = topologies::LoadCluster(root + "/topologies/clusters/dgx-h100.yaml");
  const auto profile = cost::LoadDeviceProfile(root + "/cost_models/profiles/h100-sxm.yaml");
  if (!model.ok() || !cluster.ok() || !profile.ok()) {
    state.SkipWithError("model, cluster or profile cannot be read");
    return;
  }
  const auto costs =
      cost::CostModel::Make(*profile, {{cost::Precision::kBf16, cost::Precision::kFp32}});
  const auto whole = cluster->WithDevices(state.range(0));
  SearchOptions options;
  options.global_batch = 4 * state.range(0);
  int64_t configurations = 0;
  for (auto _ : state) {
    const auto found = FindPlans(*model, *whole, *costs, options);
    if (!found.ok()) {
      state.SkipWithError(found.status().message().c_str());
      return;
    }
    configurations = found->counts.configurations;
  }
  state.counters["configurations"] = static_cast<double>(configurations);
}
BENCHMARK(PlanLlama70B)->Arg(64)->Arg(1024)->Unit(benchmark::kMillisecond);

}  // namespace
