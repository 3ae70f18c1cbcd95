// One split of a small model run beside the one-rank fp64 reference.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "planner/lower/lower.h"
#include "planner/lower/make_plan.h"
#include "runtime/run.h"
#include "tests/runtime/gradients.h"
#include "tests/runtime/small_models.h"

namespace meshwright::testing {

inline constexpr int64_t kSequence = 16;

/// Masked labels differ from rank to rank, so that a local token count shows.
inline bool LabelCounts(int64_t /*step*/, int64_t sample, int64_t position) {
  return position < kSequence - (7 * sample + 3) % (kSequence - 1);
}

struct SplitRun {
  GlobalGradients gradients;
  std::vector<std::string> disagreements;
  std::vector<runtime::RunSummary> summaries;
};

struct SplitRunOptions {
  bool shadow = false;
  bool trace = false;
  int64_t steps = 1;
  runtime::OptimizerOptions optimizer;
};

inline runtime::RunOptions MakeRunOptions(const SplitRunOptions& o) {
  runtime::RunOptions run;
  run.steps = o.steps;
  run.seed = 7;
  run.optimizer = o.optimizer;
  run.lr.peak = 1e-3;
  run.deadline_s = 60.0;
  run.trace = o.trace;
  run.label_counts = LabelCounts;
  if (o.shadow) {
    run.shadow.emplace();
    run.shadow->max_delay_us = 100;
    run.shadow->delay_share = 0.02;
    run.shadow->clock = std::make_shared<std::atomic<int64_t>>(0);
  }
  return run;
}

inline Result<SplitRun> RunPrograms(const planner::Programs& programs, const SplitRunOptions& o) {
  runtime::DataOptions data;
  data.path = "mock";
  data.vocab = programs.facts.vocab;
  data.sequence = programs.facts.sequence;
  data.global_batch = programs.facts.global_batch;
  MW_ASSIGN_OR_RETURN(auto source, runtime::OpenDataSource(data));
  GradientCollector collector(programs);
  runtime::RunOptions run = MakeRunOptions(o);
  run.on_gradients = [&](const runtime::ArenaView& view) { collector.Add(view); };
  SplitRun result;
  MW_ASSIGN_OR_RETURN(result.summaries, runtime::RunOnThreads(programs, *source, run));
  result.gradients = collector.Take();
  result.disagreements = collector.disagreements();
  return result;
}

/// Gradients of one rank in fp64 over the same samples.
inline Result<SplitRun> RunReference(const planner::ModelSpec& model, int64_t global_batch,
                                     planner::DType dtype, const SplitRunOptions& o = {}) {
  planner::SplitRequest r;
  r.micro_batch = 1;
  r.global_batch = global_batch;
  r.sequence = kSequence;
  r.dtype = dtype;
  MW_ASSIGN_OR_RETURN(const planner::Plan plan, planner::MakePlan(model, r));
  MW_ASSIGN_OR_RETURN(const planner::Programs programs, planner::Lower(plan));
  return RunPrograms(programs, o);
}

}  // namespace meshwright::testing
