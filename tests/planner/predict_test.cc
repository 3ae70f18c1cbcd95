// Figures of a prediction: time, throughput, MFU, memory.
#include "planner/predict/predict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "tests/cost_models/cpu_profile.h"
#include "tests/planner/predict_fixtures.h"

namespace meshwright::planner {
namespace {

using ::testing::HasSubstr;

TEST(Predict, FollowsItsFormulas) {
  SplitRequest request;
  request.tp = 2;
  request.pp = 2;
  request.dp = 2;
  request.global_batch = 16;
  request.sequence = 1024;
  request.sharding = Sharding::kZero1;
  const Plan plan = PlanOf(ShippedModel("gpt2"), request);
  const Programs programs = Lowered(plan);
  const Prices prices = PricesOf(plan, ShippedCluster("dgx-h100", 8), ShippedCosts("h100-sxm"));
  const auto found = Predict(plan, programs, prices);
  ASSERT_TRUE(found.ok()) << found.status().message();
  const Prediction& p = found->prediction;
  EXPECT_GT(p.step_time_s, 0);
  EXPECT_DOUBLE_EQ(p.tokens_per_s_per_gpu, 16 * 1024 / p.step_time_s / 8);
  // GPT-2: 12 layers of 12 x 768^2 weights, head 50257 x 768; causal attention 6 S^2/2 x 2 x 768 a
  // layer.
  const double weights = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
  const double flops = 16 * (6 * weights * 1024 + 12 * 6.0 * 1024 * 1024 / 2 * 2 * 768);
  EXPECT_NEAR(p.model_tflops_per_gpu, flops / p.step_time_s / 8 / 1e12, 1e-9);
  EXPECT_NEAR(p.mfu, p.model_tflops_per_gpu / 989.4, 1e-9) << "dense peak, not the sparse 1979";
  ASSERT_EQ(p.memory.size(), 2U);
  ASSERT_EQ(p.stage_time_s.size(), 2U);
  EXPECT_NEAR(p.bubble_fraction, 1 - (p.stage_time_s[0] + p.stage_time_s[1]) / (2 * p.step_time_s),
              1e-12);
  EXPECT_EQ(p.memory[0].arena(), programs.programs[0].arena.size);
  EXPECT_EQ(found->classes, 2) << "one a stage";
}

TEST(Predict, CountsMemoryOutsideTheArenaByCommunicator) {
  const auto profile = cost::LoadDeviceProfile("h200-sxm");
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  RankProgram program;
  constexpr int64_t kMiB = 1 << 20;
  const int64_t alone =
      (profile->gpu->context_memory.value + profile->gpu->library_memory.value).value();
  EXPECT_EQ(OutsideBytes(program, *profile).value(), alone);
  program.communicators = {{"tp", CommunicatorKind::kTensor, 8},
                           {"edge", CommunicatorKind::kEdge, 2}};
  // As measured on two GPUs: 490 MiB for all, 32 CTAs of 18 MiB, an edge of 13 MiB.
  EXPECT_EQ(OutsideBytes(program, *profile).value(), alone + (490 + 32 * 18 + 13) * kMiB);
  // A pair whose operations all go straight between memories leaves NCCL's buffers unmade.
  program.communicators[0].size = 2;
  EXPECT_EQ(OutsideBytes(program, *profile).value(), alone + (490 + 140 + 13) * kMiB);
  // So do two stages that share a weight, with a quarter of the CTAs.
  program.communicators.push_back({"tied", CommunicatorKind::kTied, 2});
  EXPECT_EQ(OutsideBytes(program, *profile).value(), alone + (490 + 140 + 13 + 35) * kMiB);
  program.communicators.pop_back();
  auto apart = *profile;  // GPUs that do not reach each other's memory: nothing goes past NCCL
  std::erase_if(apart.gpu->traffic,
                [](const cost::TrafficFit& fit) { return fit.carrier != cost::Carrier::kNccl; });
  EXPECT_EQ(OutsideBytes(program, apart).value(), alone + (490 + 32 * 18 + 13) * kMiB);
  program.communicators[0].size = 8;
  // What is known where our runtime has not been measured.
  auto other = *profile;
  other.gpu->run_memory.reset();
  EXPECT_EQ(OutsideBytes(program, other).value(), alone + (386 + 32 * 12 + 32 * 2) * kMiB);
  EXPECT_EQ(OutsideBytes(program, cost::InventedCpu()).value(), 0);
}

TEST(Predict, MfuOfCpuRanksIsOfTheCoresTheyGet) {
  const Plan plan = PlanOf(TinyGpt(4), Tiny(1, 1, 2));
  const Programs programs = Lowered(plan);
  cost::DeviceProfile profile = cost::InventedCpu();
  profile.peaks = {{cost::Precision::kFp32, cost::Invented(FlopsPerSecond(50e9))}};
  const Prices prices = PricesOf(plan, CpuRanks(2, 1), ModelOf(profile, {cost::Precision::kFp32}));
  const auto found = Predict(plan, programs, prices);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_NEAR(found->prediction.mfu, found->prediction.model_tflops_per_gpu * 1e12 / 25e9, 1e-12);
  EXPECT_LT(found->prediction.mfu, 1.0);
}

TEST(Predict, CountsTheGatherThatTheNextStepHides) {
  SplitRequest request = Tiny(1, 1, 8);
  request.dtype = DType::kBf16;
  const Plan plan = PlanOf(ShippedModel("gpt2"), request);
  const Programs programs = Lowered(plan);
  const Prices prices = PricesOf(plan, ShippedCluster("dgx-h100", 8), ShippedCosts("h100-sxm"));
  PredictOptions one;
  one.steps = 1;
  const auto first = Predict(plan, programs, prices, one);
  const auto second = Predict(plan, programs, prices);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_LE(second->prediction.step_time_s, first->prediction.step_time_s);
}

TEST(Predict, TheFirstTensorRanksProgramStandsForTheOthers) {
  for (const auto& [tp, pp, chunks] : {std::tuple{2, 2, 2}, {2, 1, 4}, {4, 2, 4}, {4, 1, 8}}) {
    SplitRequest request;
    request.tp = tp;
    request.pp = pp;
    request.global_batch = 8;
    request.sequence = 1024;
    request.sequence_parallel = true;
    request.tensor_chunks = chunks;
    request.device = topologies::DeviceKind::kGpu;
    for (const char* model : {"gpt2", "llama-3.2-1b"}) {
      const Plan plan = PlanOf(ShippedModel(model), request);
      const Prices prices = PricesOf(plan, ShippedCluster("dgx-h100", 8), ShippedCosts("h100-sxm"));
      PredictOptions apart;
      apart.fold = false;
      const auto whole = Predict(plan, Lowered(plan), prices, apart);
      const Programs alike = LowerForPrices(plan).value();
      EXPECT_EQ(alike.programs.size(), static_cast<size_t>(pp));
      const auto folded = Predict(plan, alike, prices);
      ASSERT_TRUE(whole.ok() && folded.ok());
      EXPECT_EQ(whole->classes, tp * pp);
      EXPECT_EQ(folded->classes, pp);
      EXPECT_EQ(Predict(plan, Lowered(plan), prices)->classes, pp) << "other rows, at the same time";
      EXPECT_DOUBLE_EQ(whole->prediction.step_time_s, folded->prediction.step_time_s)
          << model << ", tp " << tp << ", pp " << pp << ", " << chunks << " chunks";
      EXPECT_EQ(whole->prediction.memory, folded->prediction.memory);
    }
  }
}

TEST(Predict, RefusesStepsOutOfRange) {
  const Plan plan = PlanOf(TinyGpt(4), Tiny(1, 1, 1));
  const Prices prices = PricesOf(plan, CpuRanks(1, 1), InventedCpuCosts());
  for (const int64_t steps : {0, 17}) {
    PredictOptions options;
    options.steps = steps;
    const auto found = Predict(plan, Lowered(plan), prices, options);
    EXPECT_EQ(found.status().code(), StatusCode::kInvalidInput);
    EXPECT_THAT(found.status().message(), HasSubstr("1 to 16"));
  }
}

}  // namespace
}  // namespace meshwright::planner
