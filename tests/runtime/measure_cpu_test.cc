// What MeasureCpu returns; how fast this machine is stays out of it.
#include "runtime/measure_cpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "runtime/kernel_bench.h"
#include "runtime/measure_cpu_programs.h"
#include "runtime/run.h"

namespace meshwright::runtime {
namespace {

using planner::DType;
using planner::OpKind;
using ::testing::HasSubstr;

TEST(MeasureCpu, MeasuresEveryKernelOfBothPrecisions) {
  MeasureCpuOptions options;
  options.cores = 2;
  options.seconds_per_sample = 1e-4;
  const auto found = MeasureCpu(options);
  if (found.status().code() == StatusCode::kRunFailed) {
    GTEST_SKIP() << "too busy to measure: " << found.status().message();
  }
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->cores, 2);
  const auto positive = [](double rate) { return rate > 0 && std::isfinite(rate); };
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    std::set<OpKind> kinds;
    for (const CpuKernelSample& s : found->kernels) {
      EXPECT_TRUE(positive(s.bytes_per_s)) << planner::ToString(s.kind);
      if (s.dtype == dtype) kinds.insert(s.kind);
    }
    for (size_t k = 0; k < planner::kOpKindCount; ++k) {
      const auto kind = static_cast<OpKind>(k);
      // Products are measured by shape, a shift counts as a gather; the others take no more than
      // their overhead.
      const bool left_out = planner::IsHost(kind) || kind == OpKind::kRecv ||
                            kind == OpKind::kShift ||
                            planner::RowOf(kind).work == planner::WorkKind::kMatrixProduct ||
                            kind == OpKind::kCountTokens || kind == OpKind::kInvertCount ||
                            kind == OpKind::kStepStatistics || kind == OpKind::kClipFactor;
      EXPECT_EQ(kinds.count(kind), left_out ? 0U : 1U) << planner::ToString(kind);
    }
    EXPECT_GT(std::count_if(found->products.begin(), found->products.end(),
                            [&](const CpuProductSample& s) { return s.dtype == dtype; }),
              40);
  }
  for (const CpuProductSample& s : found->products) EXPECT_TRUE(positive(s.flops_per_s));
  for (const CpuKernelSample& s : found->kernels) {
    const bool attention = s.kind == OpKind::kAttention || s.kind == OpKind::kAttentionGrad;
    EXPECT_EQ(s.flops_per_s > 0, attention) << planner::ToString(s.kind);
    EXPECT_EQ(s.score_bytes_per_s > 0, attention) << planner::ToString(s.kind);
  }
  EXPECT_TRUE(positive(found->core_bytes_per_s));
  EXPECT_GE(found->machine_bytes_per_s, found->core_bytes_per_s);
  EXPECT_GE(found->op_core_s, 0);
  EXPECT_GE(found->rendezvous_core_s, 0);
  EXPECT_GE(found->member_core_s, 0);
  EXPECT_GE(found->rendezvous_latency_s, 0);
}

TEST(MeasureCpu, RefusesOptionsOutOfRange) {
  for (const double seconds : {0.0, -1.0, 11.0, std::nan("")}) {
    MeasureCpuOptions options;
    options.seconds_per_sample = seconds;
    EXPECT_EQ(MeasureCpu(options).status().code(), StatusCode::kInvalidInput) << seconds;
  }
  MeasureCpuOptions options;
  options.cores = 5000;
  EXPECT_THAT(MeasureCpu(options).status().message(), HasSubstr("1024"));
}

TEST(KernelBench, CountsTheWorkOfTheOp) {
  const auto found =
      TimeKernel({OpKind::kAdd,
                  {},
                  {{"a", {64}, DType::kF64}, {"b", {64}, DType::kF64}, {"out", {64}, DType::kF64}}},
                 1e-4);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_GT(found->seconds, 0);
  EXPECT_EQ(found->work.bytes_read, 2 * 64 * 8);
  EXPECT_EQ(found->work.bytes_written, 64 * 8);
}

TEST(KernelBench, RefusesShapesThatDoNotFit) {
  const auto found =
      TimeKernel({OpKind::kAdd,
                  {},
                  {{"a", {64}, DType::kF64}, {"b", {32}, DType::kF64}, {"out", {64}, DType::kF64}}},
                 1e-4);
  EXPECT_EQ(found.status().code(), StatusCode::kInfeasible);
}

TEST(MeasureCpuPrograms, RunAndHaveTheirRounds) {
  const auto data = OpenDataSource({"mock", DataFormat::kMock, Sampling::kRandom, 1, 64, 1, 1});
  ASSERT_TRUE(data.ok()) << data.status().message();
  RunOptions options;
  options.steps = 2;
  options.trace = true;
  for (const OpKind kind :
       {OpKind::kAllReduce, OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kSend}) {
    const planner::Programs programs = RoundProgram(2, 2, 5, 64, kind, DType::kF64);
    ASSERT_EQ(programs.ranks.size(), 4U);
    const auto run = RunOnThreads(programs, **data, options);
    ASSERT_TRUE(run.ok()) << run.status().message();
    EXPECT_EQ(run->front().trace.size(), 2U) << "a task a step";
    EXPECT_EQ(programs.programs.front().tasks.front().instances.size(), 5U);
  }
  const auto run = RunOnThreads(OpProgram(3, 7, 16), **data, options);
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run->size(), 3U);
}

}  // namespace
}  // namespace meshwright::runtime
