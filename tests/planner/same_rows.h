// Prediction is about what runs: the simulated trace has the rows of the recorded one, rank by
// rank, and the predicted memory is the arena.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "planner/predict/predict.h"
#include "runtime/executor.h"
#include "tests/planner/predict_fixtures.h"

namespace meshwright::planner {

/// Simulates `steps` steps on two invented cores and compares with what the ranks recorded.
inline void ExpectSameRows(const Plan& plan, const Programs& programs,
                           const std::vector<runtime::RunSummary>& recorded, int64_t steps) {
  const Prices prices =
      PricesOf(plan, CpuRanks(static_cast<int>(plan.world_size()), 2), InventedCpuCosts());
  PredictOptions predict;
  predict.trace = true;
  predict.steps = steps;
  const auto simulated = Predict(plan, programs, prices, predict);
  ASSERT_TRUE(simulated.ok()) << simulated.status().message();
  size_t at = 0;
  for (const runtime::RunSummary& rank : recorded) {
    for (TraceRow row : rank.trace) {
      ASSERT_LT(at, simulated->trace.size());
      TraceRow expected = simulated->trace[at++];
      EXPECT_GT(expected.end_ns, expected.start_ns) << expected.label;
      EXPECT_GT(row.end_ns, row.start_ns) << row.label;
      row.start_ns = row.end_ns = expected.start_ns = expected.end_ns = 0;
      ASSERT_EQ(row, expected) << ShortName(plan) << " rank " << row.rank << " " << row.label;
    }
    const auto stage =
        static_cast<size_t>(programs.ranks[static_cast<size_t>(rank.rank)].pp_index);
    EXPECT_EQ(rank.arena_bytes, simulated->prediction.memory[stage].arena())
        << "predicted and allocated memory";
  }
  EXPECT_EQ(at, simulated->trace.size());
}

}  // namespace meshwright::planner
