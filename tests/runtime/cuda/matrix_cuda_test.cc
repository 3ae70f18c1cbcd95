// Four and eight ranks in all three dimensions: gradients and losses against one CPU rank.
#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>

#include "tests/runtime/cuda/gpu_splits.h"

namespace meshwright {
namespace {

using planner::DType;
using testing::GpuJob;
using testing::Reference;

struct Split {
  int64_t tp, pp, dp;
  int64_t virtual_stages = 1;
  bool zero1 = false;
};
constexpr Split kMatrix[] = {
    {2, 2, 2, 1, true},  {2, 2, 2, 2, false}, {8, 1, 1},          {1, 8, 1, 1}, {1, 8, 1, 2},
    {1, 1, 8, 1, false}, {1, 1, 8, 1, true},  {4, 2, 1, 1},       {4, 2, 1, 2}, {2, 4, 1, 1},
    {2, 4, 1, 2},        {4, 1, 2, 1, false}, {4, 1, 2, 1, true}, {4, 1, 1},    {2, 1, 2, 1, true},
};
std::string NameOf(const Split& s) {
  return fmt::format("tp{}_pp{}_dp{}{}{}", s.tp, s.pp, s.dp,
                     s.virtual_stages > 1 ? "_interleaved" : "", s.zero1 ? "_zero1" : "");
}

/// A chunk a layer where the pipeline is deep; wide enough for eight tensor ranks.
planner::ModelSpec ModelOf(const Split& s) {
  planner::ModelSpec model = planner::testing::TinyModel("llama-tiny");
  model.modules.front().layers.assign(
      static_cast<size_t>(std::max<int64_t>(4, s.pp * s.virtual_stages)), 0);
  return model;
}

planner::SplitRequest RequestOf(const Split& s, DType dtype) {
  planner::SplitRequest r = testing::SmallRequest(s.tp, s.pp, s.dp, dtype);
  r.global_batch = 16;
  r.micro_batch = r.global_batch / (s.dp * 2 * s.pp);
  r.virtual_stages = s.virtual_stages;
  r.sharding = s.zero1 ? planner::Sharding::kZero1 : planner::Sharding::kNone;
  return r;
}

/// Fifty, and two where ranks share GPUs: each operation between them takes milliseconds then.
int64_t StepsOf(const Split& s) {
  return runtime::CountGpus() >= s.tp * s.pp * s.dp ? 50 : 2;
}

class GpuMatrix : public ::testing::TestWithParam<std::tuple<DType, Split>> {};

TEST_P(GpuMatrix, GradientsAndLossesAreThoseOfOneCpuRank) {
  const auto& [dtype, split] = GetParam();
  SKIP_WITHOUT_GPU();
  const planner::ModelSpec model = ModelOf(split);
  const std::string text = testing::TextCorpus();
  testing::GpuJobOptions options;
  options.steps = StepsOf(split);
  options.data = text;
  options.deadline_s = 120.0;
  const Reference exact = testing::RunOnCpu(model, RequestOf({1, 1, 1}, DType::kF64), 1, text);
  const Reference curve =
      testing::RunOnCpu(model, RequestOf({1, 1, 1}, DType::kF32), options.steps, text);
  const auto run = [&](const Split& s, testing::GpuJob* job) {
    const planner::Programs programs = planner::testing::Lowered(model, RequestOf(s, dtype));
    *job = testing::RunOnGpus(programs, options);
    testing::ExpectSound(*job, programs);
  };
  GpuJob job, alone;
  ASSERT_NO_FATAL_FAILURE(run(split, &job));
  ASSERT_EQ(job.ranks[0].steps, options.steps);
  std::string worst;
  const double error = testing::RelativeError(job.gradients, exact.gradients, &worst);
  const double largest = testing::LargestDifference(job.ranks[0], curve.losses);
  const double last = job.ranks[0].losses[options.steps - 1];
  std::printf("%s, %s: gradients %.2e (%s), loss %.4f -> %.4f, largest difference %.1e\n",
              NameOf(split).c_str(), planner::ToString(dtype).c_str(), error, worst.c_str(),
              job.ranks[0].losses[0], last, largest);
  if (dtype == DType::kF32) {
    EXPECT_LE(error, 1e-5);
    EXPECT_LE(largest, 1e-3);
  } else {
    ASSERT_NO_FATAL_FAILURE(run({1, 1, 1}, &alone));
    EXPECT_LE(error, 2 * testing::RelativeError(alone.gradients, exact.gradients));
    EXPECT_LE(largest, 5e-2);
  }
  EXPECT_LT(last, job.ranks[0].losses[0]);
}

INSTANTIATE_TEST_SUITE_P(Splits, GpuMatrix,
                         ::testing::Combine(::testing::Values(DType::kF32, DType::kBf16),
                                            ::testing::ValuesIn(kMatrix)),
                         [](const auto& of) {
                           return NameOf(std::get<1>(of.param)) + "_" +
                                  planner::ToString(std::get<0>(of.param));
                         });

}  // namespace
}  // namespace meshwright
