// Splits of small models on GPUs, and one rank on the CPU that says what must come out.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "planner/ir/model_spec.h"
#include "runtime/data_source.h"
#include "runtime/run.h"
#include "tests/planner/verify_common.h"
#include "tests/runtime/cuda/gpu_job.h"

#define SKIP_WITHOUT_GPU() \
  if (runtime::CountGpus() < 1) GTEST_SKIP() << "needs a GPU"

namespace meshwright::testing {

/// Eight sequences of 128 tokens a step, two a micro-batch.
inline planner::SplitRequest SmallRequest(int64_t tp, int64_t pp, int64_t dp,
                                          planner::DType dtype) {
  planner::SplitRequest r;
  r.tp = tp;
  r.pp = pp;
  r.dp = dp;
  r.micro_batch = 2;
  r.global_batch = 8;
  r.sequence = 128;
  r.dtype = dtype;
  r.device = topologies::DeviceKind::kGpu;
  return r;
}

/// One rank on the CPU.
struct Reference {
  GlobalGradients gradients;
  std::vector<double> losses;
};
/// By `request`, but unsplit.
inline Reference RunOnCpu(const planner::ModelSpec& model, planner::SplitRequest request,
                          int64_t steps, const std::string& data = "mock") {
  request.tp = request.pp = request.dp = request.virtual_stages = 1;
  request.device = topologies::DeviceKind::kCpu;
  const planner::Programs programs = planner::testing::Lowered(model, request);
  GradientCollector collector(programs);
  auto source = runtime::OpenDataSource(DataOf(programs, data));
  EXPECT_TRUE(source.ok()) << source.status().message();
  runtime::RunOptions options;
  options.steps = steps;
  options.seed = 7;
  options.lr.peak = 1e-3;
  options.on_gradients = [&](const runtime::ArenaView& view) { collector.Add(view); };
  auto summaries = runtime::RunOnThreads(programs, **source, options);
  EXPECT_TRUE(summaries.ok()) << summaries.status().message();
  return {collector.Take(), summaries->front().losses};
}

inline std::string TextCorpus() {
  return std::string(MESHWRIGHT_SOURCE_DIR) + "/tests/data/text/corpus.txt";
}

/// Arenas have the planned size, copies of a gradient agree.
inline void ExpectSound(const GpuJob& job, const planner::Programs& programs) {
  ASSERT_EQ(job.exit_code, 0) << job.what << ": " << job.ranks[0].error;
  EXPECT_TRUE(job.disagreements.empty()) << job.disagreements.front();
  for (size_t r = 0; r < job.ranks.size(); ++r) {
    const auto program = static_cast<size_t>(programs.ranks[r].program);
    EXPECT_EQ(job.ranks[r].arena_bytes, programs.programs[program].arena.size);
  }
}

inline double LargestDifference(const RankNote& note, const std::vector<double>& losses) {
  double largest = 0.0;
  for (size_t i = 0; i < losses.size() && i < static_cast<size_t>(note.steps); ++i) {
    largest = std::max(largest, std::abs(note.losses[i] - losses[i]));
  }
  return largest;
}

}  // namespace meshwright::testing
