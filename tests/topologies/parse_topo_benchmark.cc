// Parsing of a 72-GPU matrix (target: below 2 ms), and of what surrounds it.
#include <benchmark/benchmark.h>

#include <string>

#include "topologies/cluster_io.h"
#include "topologies/parse_nvidia_smi_topo.h"

namespace meshwright::topologies {
namespace {

// An NVLink domain of `gpus` with one NIC a GPU.
std::string Capture(int gpus) {
  const int n = 2 * gpus;
  const auto name = [&](int i) {
    return i < gpus ? "GPU" + std::to_string(i) : "NIC" + std::to_string(i - gpus);
  };
  std::string text;
  for (int i = 0; i < n; ++i) text += "\t" + name(i);
  text += "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n";
  for (int i = 0; i < n; ++i) {
    text += name(i);
    for (int j = 0; j < n; ++j) {
      text += i == j                 ? "\t X "
              : i < gpus && j < gpus ? "\tNV18"
              : (i - j) % gpus == 0  ? "\tPIX"
                                     : "\tSYS";
    }
    text += i < gpus ? "\t0-71\t0\t\tN/A\n" : "\t\t\t\t\n";
  }
  return text;
}

void BM_ParseTopo(benchmark::State& state) {
  const std::string text = Capture(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    auto report = ParseNvidiaSmiTopo(text);
    if (!report.ok()) state.SkipWithError(report.status().message().c_str());
    benchmark::DoNotOptimize(report);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) *
                          static_cast<int64_t>(text.size()));
}
BENCHMARK(BM_ParseTopo)->Arg(8)->Arg(72)->Unit(benchmark::kMillisecond);

void BM_ClusterFromTopo(benchmark::State& state) {
  const auto report = ParseNvidiaSmiTopo(Capture(static_cast<int>(state.range(0))));
  TopoOptions options;
  options.gpu = "B200";
  for (auto _ : state) benchmark::DoNotOptimize(ClusterFromTopo(*report, options));
}
BENCHMARK(BM_ClusterFromTopo)->Arg(8)->Arg(72)->Unit(benchmark::kMillisecond);

void BM_Place32768Devices(benchmark::State& state) {
  const auto cluster = ResolveCluster("dgx-h100", {4096, ""});
  const int sizes[] = {8, 8, 512};
  for (auto _ : state) benchmark::DoNotOptimize(cluster->BestOrder(sizes));
}
BENCHMARK(BM_Place32768Devices)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace meshwright::topologies
