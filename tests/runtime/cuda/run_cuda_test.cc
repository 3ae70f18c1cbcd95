// Whole runs of one to four ranks: gradients against one CPU rank in fp64, curves.
#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "planner/predict/predict.h"
#include "runtime/cuda/prepare_kernels.h"
#include "tests/runtime/cuda/gpu_splits.h"

namespace meshwright {
namespace {

using planner::DType;
using planner::Plan;
using planner::Programs;
using planner::SplitRequest;
using testing::GpuJob;
using testing::Reference;
using testing::SmallRequest;

Programs LoweredFor(const std::string& model, const SplitRequest& request) {
  return planner::testing::Lowered(planner::testing::TinyModel(model), request);
}

Reference RunOnCpu(const std::string& model, DType dtype, int64_t steps,
                   const std::string& data = "mock") {
  return testing::RunOnCpu(planner::testing::TinyModel(model), SmallRequest(1, 1, 1, dtype), steps,
                           data);
}

struct Split {
  const char* name;
  int64_t tp, pp, dp, virtual_stages;
  bool zero1;
  planner::Recompute recompute;
  int64_t tensor_chunks = 1;
  planner::PeerCarrier carrier = planner::PeerCarrier::kNccl;  ///< of moves; sums by kernels
  bool sequence_parallel = true;
};
constexpr auto kKernels = planner::PeerCarrier::kKernels;
constexpr auto kCopies = planner::PeerCarrier::kCopyEngines;
constexpr Split kSplits[] = {
    {"one GPU", 1, 1, 1, 1, false, planner::Recompute::kNone},
    {"one GPU, selective", 1, 1, 1, 1, false, planner::Recompute::kSelective},
    {"one GPU, full", 1, 1, 1, 1, false, planner::Recompute::kFull},
    {"tp2 sp", 2, 1, 1, 1, false, planner::Recompute::kNone},
    {"tp2 sp, copies", 2, 1, 1, 1, false, planner::Recompute::kNone, 1, kCopies},
    {"tp2 sp in 2 chunks", 2, 1, 1, 1, false, planner::Recompute::kSelective, 2},
    {"tp2 sp in 2 chunks, copies", 2, 1, 1, 1, false, planner::Recompute::kNone, 2, kCopies},
    {"tp2 sp in 4 chunks, copies", 2, 1, 1, 1, false, planner::Recompute::kFull, 4, kCopies},
    {"tp2 sp in 4 chunks, kernels", 2, 1, 1, 1, false, planner::Recompute::kNone, 4, kKernels},
    {"tp2 in 2 chunks", 2, 1, 1, 1, false, planner::Recompute::kSelective, 2,
     planner::PeerCarrier::kNccl, false},
    {"tp2 in 4 chunks, copies", 2, 1, 1, 1, false, planner::Recompute::kNone, 4, kCopies, false},
    {"tp4 sp in 4 chunks, copies", 4, 1, 1, 1, false, planner::Recompute::kNone, 4, kCopies},
    {"tp4 sp in 8 chunks, kernels", 4, 1, 1, 1, false, planner::Recompute::kFull, 8, kKernels},
    {"tp4 sp in 8 chunks", 4, 1, 1, 1, false, planner::Recompute::kNone, 8},
    {"dp4 zero1, copies", 1, 1, 4, 1, true, planner::Recompute::kNone, 1, kCopies},
    {"pp2", 1, 2, 1, 1, false, planner::Recompute::kNone},
    {"pp2, copies", 1, 2, 1, 1, false, planner::Recompute::kNone, 1, kCopies},
    {"pp2 v2", 1, 2, 1, 2, false, planner::Recompute::kFull},
    {"pp2 v2, copies", 1, 2, 1, 2, false, planner::Recompute::kNone, 1, kCopies},
    {"pp2 v2, kernels", 1, 2, 1, 2, false, planner::Recompute::kNone, 1, kKernels},
    {"dp2", 1, 1, 2, 1, false, planner::Recompute::kNone},
    {"dp2, kernels", 1, 1, 2, 1, false, planner::Recompute::kNone, 1, kKernels},
    {"dp2 zero1", 1, 1, 2, 1, true, planner::Recompute::kNone},
    {"dp2 zero1, copies", 1, 1, 2, 1, true, planner::Recompute::kNone, 1, kCopies},
};

const Split& SplitNamed(const std::string& name) {
  return *std::find_if(std::begin(kSplits), std::end(kSplits),
                       [&](const Split& split) { return split.name == name; });
}

Programs ProgramsOf(const std::string& model, const Split& split, DType dtype) {
  SplitRequest r = SmallRequest(split.tp, split.pp, split.dp, dtype);
  r.virtual_stages = split.virtual_stages;
  r.sharding = split.zero1 ? planner::Sharding::kZero1 : planner::Sharding::kNone;
  r.recompute = {split.recompute};
  r.tensor_chunks = split.tensor_chunks;
  if (split.tp > 1) r.sequence_parallel = split.sequence_parallel;
  return LoweredFor(model, r);
}

testing::GpuJobOptions OptionsOf(const Split& split) {
  testing::GpuJobOptions options;
  const bool peers = split.carrier != planner::PeerCarrier::kNccl;
  options.peer_copies = {peers, peers, peers, split.carrier};
  return options;
}

/// Of the first step's gradients; -1 when the job failed.
double GradientError(const std::string& model, DType dtype, const Split& split) {
  static std::map<std::string, Reference> exact;  // slow: made once a model
  if (!exact.contains(model)) exact[model] = RunOnCpu(model, DType::kF64, 1);
  const Programs programs = ProgramsOf(model, split, dtype);
  const GpuJob job = testing::RunOnGpus(programs, OptionsOf(split));
  testing::ExpectSound(job, programs);
  if (::testing::Test::HasFatalFailure()) return -1.0;
  std::string worst;
  const double error = testing::RelativeError(job.gradients, exact[model].gradients, &worst);
  std::printf("%s, %s, %s: %.2e (%s)\n", model.c_str(), planner::ToString(dtype).c_str(),
              split.name, error, worst.c_str());
  return error;
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<DType, Split>>& of) {
  std::string name = std::get<1>(of.param).name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == ' ' || c == ','; }, '_');
  return name + "_" + planner::ToString(std::get<0>(of.param));
}

class GpuGradients : public ::testing::TestWithParam<std::tuple<DType, Split>> {};

TEST_P(GpuGradients, EqualOneCpuRank) {
  const auto& [dtype, split] = GetParam();
  SKIP_WITHOUT_GPU();
  for (const std::string model : {"gpt-tiny", "llama-tiny"}) {
    const double error = GradientError(model, dtype, split);
    ASSERT_FALSE(HasFatalFailure());
    if (dtype == DType::kF32) {
      EXPECT_LE(error, 1e-5) << model;
      continue;
    }
    static std::map<std::string, double> single;  // of one GPU
    if (!single.contains(model)) single[model] = GradientError(model, dtype, kSplits[0]);
    EXPECT_LE(error, 2 * single[model]) << model;
    EXPECT_LE(error, 0.1) << model;
  }
}

INSTANTIATE_TEST_SUITE_P(Splits, GpuGradients,
                         ::testing::Combine(::testing::Values(DType::kF32, DType::kBf16),
                                            ::testing::ValuesIn(kSplits)),
                         NameOf);

/// Curves of training on text stay together.
class GpuTraining : public ::testing::TestWithParam<std::tuple<DType, Split>> {};

TEST_P(GpuTraining, TwoHundredStepsFollowTheCpu) {
  const auto& [dtype, split] = GetParam();
  SKIP_WITHOUT_GPU();
  constexpr int64_t kSteps = 200;
  const std::string text = testing::TextCorpus();
  static const Reference reference = RunOnCpu("gpt-tiny", DType::kF32, kSteps, text);
  testing::GpuJobOptions options = OptionsOf(split);
  options.steps = kSteps;
  options.data = text;
  const GpuJob job = testing::RunOnGpus(ProgramsOf("gpt-tiny", split, dtype), options);
  ASSERT_EQ(job.exit_code, 0) << job.what << ": " << job.ranks[0].error;
  ASSERT_EQ(job.ranks[0].steps, kSteps);
  const double largest = testing::LargestDifference(job.ranks[0], reference.losses);
  std::printf("%s, %s: loss %.4f -> %.4f, largest difference to the CPU %.1e\n", split.name,
              planner::ToString(dtype).c_str(), job.ranks[0].losses[0],
              job.ranks[0].losses[kSteps - 1], largest);
  EXPECT_LE(largest, dtype == DType::kF32 ? 1e-2 : 5e-2);
  EXPECT_LT(job.ranks[0].losses[kSteps - 1], job.ranks[0].losses[0] - 1.0);
}

std::vector<Split> SplitsWithoutRecomputation() {
  std::vector<Split> splits;
  std::copy_if(std::begin(kSplits), std::end(kSplits), std::back_inserter(splits),
               [](const Split& split) { return split.recompute == planner::Recompute::kNone; });
  return splits;
}

INSTANTIATE_TEST_SUITE_P(Splits, GpuTraining,
                         ::testing::Combine(::testing::Values(DType::kF32, DType::kBf16),
                                            ::testing::ValuesIn(SplitsWithoutRecomputation())),
                         NameOf);

TEST(GpuRun, DeterministicModeRepeatsItsBits) {
  SKIP_WITHOUT_GPU();
  testing::GpuJobOptions options;
  options.steps = 5;
  options.deterministic = true;
  SplitRequest request = SmallRequest(1, 1, 1, DType::kBf16);
  request.deterministic = true;
  const Programs programs = LoweredFor("gpt-tiny", request);
  const GpuJob first = testing::RunOnGpus(programs, options);
  ASSERT_EQ(first.exit_code, 0) << first.ranks[0].error;
  for (int again = 0; again < 3; ++again) {
    const GpuJob job = testing::RunOnGpus(programs, options);
    ASSERT_EQ(job.exit_code, 0) << job.ranks[0].error;
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(job.ranks[0].losses[i], first.ranks[0].losses[i]);
      EXPECT_EQ(job.ranks[0].grad_norms[i], first.ranks[0].grad_norms[i]);
    }
  }
}

TEST(GpuRun, GraphsChangeNoBit) {
  SKIP_WITHOUT_GPU();
  testing::GpuJobOptions options;
  options.steps = 8;  // captured in the third
  options.deterministic = true;
  SplitRequest request = SmallRequest(1, 1, 1, DType::kBf16);
  request.deterministic = true;
  for (const char* model : {"gpt-tiny", "llama-tiny"}) {
    const Programs programs = LoweredFor(model, request);
    GpuJob jobs[2];
    for (const bool graphs : {false, true}) {
      options.graphs = graphs;
      jobs[graphs] = testing::RunOnGpus(programs, options);
      ASSERT_EQ(jobs[graphs].exit_code, 0) << jobs[graphs].ranks[0].error;
    }
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(jobs[0].ranks[0].losses[i], jobs[1].ranks[0].losses[i]) << model << ", step " << i;
      EXPECT_EQ(jobs[0].ranks[0].grad_norms[i], jobs[1].ranks[0].grad_norms[i]) << model;
    }
  }
}

TEST(GpuRun, OpsAreTimedAndTheOwnLimitIsBelowTheStep) {
  SKIP_WITHOUT_GPU();
  testing::GpuJobOptions options;
  options.steps = 4;
  options.tune = true;
  options.time_ops = true;
  const Programs programs = ProgramsOf("llama-tiny", kSplits[0], DType::kBf16);
  const GpuJob job = testing::RunOnGpus(programs, options);
  ASSERT_EQ(job.exit_code, 0) << job.ranks[0].error;
  const testing::RankNote& note = job.ranks[0];
  int64_t ops = 0;
  for (const planner::Task& task : programs.programs[0].tasks) {
    for (const planner::Instance& instance : task.instances) {
      ops += static_cast<int64_t>(
          programs.programs[0].blocks[static_cast<size_t>(instance.block)].ops.size());
    }
  }
  EXPECT_EQ(note.timed_ops, ops);
  EXPECT_GT(note.timed_s, 0.0);
  EXPECT_LT(note.timed_s, note.step_s);
  EXPECT_GT(note.limit_s, 0.0);
  EXPECT_LT(note.limit_s, note.step_s) << "launches alone take longer at these sizes";
}

TEST(ProductKeys, AreThoseOfAllStagesOnce) {
  const auto keys_of = [](const Programs& programs) {
    const auto keys = runtime::cuda::ProductKeys(programs);
    EXPECT_TRUE(keys.ok()) << keys.status().message();
    return keys.ok() ? *keys : std::vector<runtime::cuda::GemmKey>();
  };
  const auto both = keys_of(ProgramsOf("llama-tiny", SplitNamed("pp2"), DType::kBf16));
  EXPECT_EQ(std::set(both.begin(), both.end()).size(), both.size());
  // The stages of two have the products of one: layers on both, the head on the last.
  EXPECT_TRUE(both == keys_of(ProgramsOf("llama-tiny", kSplits[0], DType::kBf16)));
  const bool head = std::any_of(both.begin(), both.end(), [](const auto& key) {
    return key.n >= planner::testing::TinyModel("llama-tiny").modules.front().vocab;
  });
  EXPECT_TRUE(head);
}

TEST(GpuRun, TraceHasARowATaskAndStepAndAnOpOfTheLastTwo) {
  SKIP_WITHOUT_GPU();
  testing::GpuJobOptions options;
  options.steps = 3;
  options.trace = true;
  const Programs programs = ProgramsOf("gpt-tiny", SplitNamed("pp2"), DType::kBf16);
  const GpuJob job = testing::RunOnGpus(programs, options);
  ASSERT_EQ(job.exit_code, 0) << job.ranks[0].error;
  for (size_t r = 0; r < job.ranks.size(); ++r) {
    const auto program = static_cast<size_t>(programs.ranks[r].program);
    EXPECT_EQ(job.ranks[r].trace_rows,
              options.steps * static_cast<int64_t>(programs.programs[program].tasks.size()));
    EXPECT_EQ(
        job.ranks[r].op_rows,
        static_cast<int64_t>(
            planner::MakeOpTraceRows(programs, static_cast<int32_t>(r), 1, options.steps).size()));
  }
}

}  // namespace
}  // namespace meshwright
