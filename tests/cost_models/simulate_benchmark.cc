// Task nodes a second; items_processed counts nodes. Graphs are built outside the timed loop.
#include <benchmark/benchmark.h>

#include "cost_models/simulate.h"
#include "tests/cost_models/task_graphs.h"

namespace meshwright::cost {
namespace {

void Report(benchmark::State& state, const TaskGraph& graph) {
  for (auto _ : state) {
    Result<Timeline> result = Simulate(graph);
    if (!result.ok()) {
      state.SkipWithError(result.status().message().c_str());
      return;
    }
    benchmark::DoNotOptimize(result);
  }
  state.SetItemsProcessed(state.iterations() * graph.node_count());
}

void BM_Pipeline(benchmark::State& state) {
  Report(state, Pipeline1F1B(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)),
                             Nanoseconds(1'000'003), Nanoseconds(2'000'017)));
}
BENCHMARK(BM_Pipeline)->Args({8, 64})->Args({64, 512})->Args({64, 4096});

// Every 8 stages share the cores of a host (4 of them), demand one core a task.
void BM_PipelineSharedCores(benchmark::State& state) {
  const auto stages = static_cast<int>(state.range(0));
  const auto micro_batches = static_cast<int>(state.range(1));
  TaskGraph graph =
      Pipeline1F1B(stages, micro_batches, Nanoseconds(1'000'003), Nanoseconds(2'000'017));
  for (int s = 0; s < stages; ++s) {
    if (s % 8 == 0) graph.AddResource(4000);
    for (int i = 0; i < 2 * micro_batches; ++i) {
      graph.AddDemand(PipelineNode(micro_batches, s, 0, false) + i, s / 8, 1000);
    }
  }
  Report(state, graph);
}
BENCHMARK(BM_PipelineSharedCores)->Args({8, 64})->Args({64, 512});

// As above, and every task also uses a share of its host's memory bandwidth.
void BM_PipelineSharedCoresAndMemory(benchmark::State& state) {
  const auto stages = static_cast<int>(state.range(0));
  const auto micro_batches = static_cast<int>(state.range(1));
  TaskGraph graph =
      Pipeline1F1B(stages, micro_batches, Nanoseconds(1'000'003), Nanoseconds(2'000'017));
  for (int s = 0; s < stages; ++s) {
    if (s % 8 == 0) {
      graph.AddResource(4000);
      graph.AddResource(1000);
    }
    for (int i = 0; i < 2 * micro_batches; ++i) {
      const NodeId node = PipelineNode(micro_batches, s, 0, false) + i;
      graph.AddDemand(node, s / 8 * 2, 1000);
      graph.AddDemand(node, s / 8 * 2 + 1, 150);
    }
  }
  Report(state, graph);
}
BENCHMARK(BM_PipelineSharedCoresAndMemory)->Args({8, 64})->Args({64, 512});

// Many unequal tasks on one resource: the heap of virtual times.
void BM_ManyTasksOneResource(benchmark::State& state) {
  TaskGraph graph;
  const ResourceId resource = graph.AddResource(2000);
  for (int64_t i = 0; i < state.range(0); ++i) {
    const NodeId node = graph.AddNode(Nanoseconds(1 + i * 7919 % 100'003));
    graph.AddDemand(node, resource, 1000);
  }
  Report(state, graph);
}
BENCHMARK(BM_ManyTasksOneResource)->Arg(100'000);

}  // namespace
}  // namespace meshwright::cost
