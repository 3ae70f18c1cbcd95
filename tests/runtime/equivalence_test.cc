// The gradient at any split equals the one-rank fp64 gradient (DESIGN section 8), under the shadow
// executor, on arenas of exactly the planned size.
#include "tests/runtime/equivalence.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "planner/verify/verify.h"
#include "tests/planner/same_rows.h"
#include "tests/runtime/combinations.h"

namespace meshwright {
namespace {

using planner::DType;
using planner::Programs;
using testing::Combination;

bool Long() {
  const char* value = std::getenv("MESHWRIGHT_LONG");
  return value != nullptr && std::string(value) == "1";
}

/// One-rank fp64 gradients by model and batch; and the error of one rank in fp32.
class References {
 public:
  const testing::GlobalGradients& Get(const std::string& model, int64_t global_batch) {
    auto& entry = cache_[{model, global_batch}];
    if (entry.empty()) {
      auto run = testing::RunReference(testing::ModelOf(model), global_batch, DType::kF64);
      EXPECT_TRUE(run.ok()) << run.status().message();
      if (run.ok()) entry = std::move(run->gradients);
    }
    return entry;
  }
  double SingleError(const std::string& model, int64_t global_batch) {
    const auto [it, added] = single_.emplace(std::pair{model, global_batch}, 0.0);
    if (added) {
      auto run = testing::RunReference(testing::ModelOf(model), global_batch, DType::kF32);
      EXPECT_TRUE(run.ok()) << run.status().message();
      if (run.ok()) it->second = testing::RelativeError(run->gradients, Get(model, global_batch));
    }
    return it->second;
  }

 private:
  std::map<std::pair<std::string, int64_t>, testing::GlobalGradients> cache_;
  std::map<std::pair<std::string, int64_t>, double> single_;
};

void ExpectMemoryAsPlanned(const Programs& programs, const testing::SplitRun& run) {
  std::vector<runtime::ShadowReport> reports;
  for (const runtime::RunSummary& s : run.summaries) {
    const auto& binding = programs.ranks[static_cast<size_t>(s.rank)];
    const auto& program = programs.programs[static_cast<size_t>(binding.program)];
    EXPECT_EQ(s.arena_bytes, program.arena.size);
    EXPECT_EQ(s.planned_bytes, program.arena.size);
    // The last area is padded to the alignment of tensors.
    EXPECT_LE(s.shadow.high_water_bytes, program.arena.size);
    EXPECT_GT(s.shadow.high_water_bytes, program.arena.size - 256);
    reports.push_back(s.shadow);
  }
  const Status order = runtime::CheckHappensBefore(programs, reports);
  EXPECT_TRUE(order.ok()) << order.message();
}

TEST(Equivalence, GradientsOfEverySplitEqualOneRankInFp64) {
  const auto all = testing::AllCombinations(DType::kF64, testing::kSequence);
  const auto sample = testing::LegalSample(all, Long() ? all.size() : 170);
  ASSERT_GE(sample.size(), 150u);
  References references;
  size_t ran = 0;
  for (const Combination& c : sample) {
    const auto plan = planner::MakePlan(testing::ModelOf(c.model), c.split);
    ASSERT_TRUE(plan.ok());
    SCOPED_TRACE(c.model + " " + planner::ShortName(*plan));
    const auto programs = planner::Lower(*plan);
    ASSERT_TRUE(programs.ok()) << programs.status().message();
    const Status verdict = planner::Verify(*programs, {});
    ASSERT_TRUE(verdict.ok()) << verdict.message();
    testing::SplitRunOptions options;
    options.shadow = true;
    options.trace = true;
    const auto run = testing::RunPrograms(*programs, options);
    ASSERT_TRUE(run.ok()) << run.status().message();
    std::string worst;
    EXPECT_LE(testing::RelativeError(run->gradients, references.Get(c.model, c.split.global_batch),
                                     &worst),
              1e-12)
        << worst;
    EXPECT_TRUE(run->disagreements.empty()) << run->disagreements.front();
    ExpectMemoryAsPlanned(*programs, *run);
    planner::ExpectSameRows(*plan, *programs, run->summaries, options.steps);
    ++ran;
  }
  std::printf("%zu combinations of %zu ran\n", ran, all.size());
}

TEST(Equivalence, GradientsInFp32) {
  const auto all = testing::AllCombinations(DType::kF32, testing::kSequence);
  const auto sample = testing::LegalSample(all, Long() ? 600 : 40);
  References references;
  for (const Combination& c : sample) {
    const auto plan = planner::MakePlan(testing::ModelOf(c.model), c.split);
    ASSERT_TRUE(plan.ok());
    SCOPED_TRACE(c.model + " " + planner::ShortName(*plan));
    const auto programs = planner::Lower(*plan);
    ASSERT_TRUE(programs.ok()) << programs.status().message();
    const auto run = testing::RunPrograms(*programs, {});
    ASSERT_TRUE(run.ok()) << run.status().message();
    const double bound =
        std::max(1e-5, 2.0 * references.SingleError(c.model, c.split.global_batch));
    std::string worst;
    EXPECT_LE(testing::RelativeError(run->gradients, references.Get(c.model, c.split.global_batch),
                                     &worst),
              bound)
        << worst;
  }
}

TEST(Equivalence, ShadowChangesNoBit) {
  const auto all = testing::AllCombinations(DType::kF32, testing::kSequence);
  for (const Combination& c : testing::LegalSample(all, 12)) {
    const auto plan = planner::MakePlan(testing::ModelOf(c.model), c.split);
    ASSERT_TRUE(plan.ok());
    SCOPED_TRACE(c.model + " " + planner::ShortName(*plan));
    const auto programs = planner::Lower(*plan);
    ASSERT_TRUE(programs.ok());
    testing::SplitRunOptions options;
    options.steps = 3;
    const auto plain = testing::RunPrograms(*programs, options);
    options.shadow = true;
    const auto shadow = testing::RunPrograms(*programs, options);
    ASSERT_TRUE(plain.ok()) << plain.status().message();
    ASSERT_TRUE(shadow.ok()) << shadow.status().message();
    EXPECT_EQ(plain->summaries.front().losses, shadow->summaries.front().losses);
    EXPECT_EQ(plain->summaries.front().grad_norms, shadow->summaries.front().grad_norms);
    for (const auto& [name, g] : plain->gradients) {
      EXPECT_EQ(g.values, shadow->gradients.at(name).values) << name;
    }
  }
}

TEST(Equivalence, LossesAndNormsOfAllRanksAgreeWithOneRank) {
  References references;
  planner::SplitRequest r;
  r.tp = r.pp = r.dp = 2;
  r.micro_batch = 2;
  r.global_batch = 12;
  r.sequence = testing::kSequence;
  r.dtype = DType::kF64;
  r.sharding = planner::Sharding::kZero1;
  testing::SplitRunOptions options;
  options.steps = 5;
  const auto reference = testing::RunReference(testing::SmallGpt(), 12, DType::kF64, options);
  const auto plan = planner::MakePlan(testing::SmallGpt(), r);
  ASSERT_TRUE(plan.ok() && reference.ok());
  const auto programs = planner::Lower(*plan);
  ASSERT_TRUE(programs.ok());
  const auto run = testing::RunPrograms(*programs, options);
  ASSERT_TRUE(run.ok()) << run.status().message();
  for (const runtime::RunSummary& s : run->summaries) {
    ASSERT_EQ(s.losses.size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(s.losses[i], reference->summaries.front().losses[i], 1e-10);
      EXPECT_NEAR(s.grad_norms[i], reference->summaries.front().grad_norms[i], 1e-9);
    }
  }
}

TEST(Equivalence, IllegalSplitsAreRefusedWithReasons) {
  size_t refused = 0;
  for (const Combination& c : testing::AllCombinations(DType::kF64, testing::kSequence)) {
    const auto plan = planner::MakePlan(testing::ModelOf(c.model), c.split);
    if (plan.ok()) continue;
    ++refused;
    EXPECT_EQ(plan.status().code(), StatusCode::kInfeasible);
    const std::string& message = plan.status().message();
    bool remedy = false;
    for (const char* words : {"may be", "needs", "pad to", "turn it off", "use vpp 1", "nearest"}) {
      remedy = remedy || message.find(words) != std::string::npos;
    }
    EXPECT_TRUE(remedy) << message;
  }
  EXPECT_GT(refused, 1000u);
}

TEST(Equivalence, ArenaOneGranuleSmallerIsRefused) {
  planner::SplitRequest r;
  r.global_batch = 2;
  r.sequence = testing::kSequence;
  r.dtype = DType::kF32;
  const auto plan = planner::MakePlan(testing::SmallLlama(), r);
  ASSERT_TRUE(plan.ok());
  const auto programs = planner::Lower(*plan);
  ASSERT_TRUE(programs.ok());
  runtime::DataOptions data;
  data.vocab = 64;
  data.sequence = testing::kSequence;
  data.global_batch = 2;
  auto source = runtime::OpenDataSource(data);
  ASSERT_TRUE(source.ok());
  runtime::RunOptions options;
  options.arena_bytes = programs->programs.front().arena.size - 256;
  const auto run = runtime::RunOnThreads(*programs, *source.value(), options);
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.status().code(), StatusCode::kInfeasible);
  EXPECT_NE(run.status().message().find(std::to_string(programs->programs.front().arena.size)),
            std::string::npos)
      << run.status().message();
}

}  // namespace
}  // namespace meshwright
