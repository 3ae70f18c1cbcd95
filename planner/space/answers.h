// Questions around the best split, each answered by searches: the front of time, memory and GPUs,
// what every decision is worth, and what would fit when nothing does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/space/find_splits.h"
#include "planner/space/space.h"
#include "topologies/status.h"

namespace meshwright::planner::space {

struct FrontOptions {
  /// Each point is the fastest below this share of the peak of the point before: the resolution in
  /// memory. Between 0 and 1, both excluded.
  double memory_share = 0.97;
  double price_per_gpu_hour = 0.0;  ///< any currency; 0: no costs
  double tokens = 0.0;              ///< to train on, for costs; 0: no costs
};

/// A split that no other beats in step time, memory and number of GPUs at once.
struct FrontPoint {
  Solution solution;
  int64_t gpus = 0;
  double peak_bytes = 0.0;  ///< on the fullest device
  double cost = 0.0;        ///< TrainingCost, where price and tokens are given
};

/// Currency: GPUs x price x hours of tokens / (global batch x sequence) steps.
double TrainingCost(int64_t gpus, double price_per_gpu_hour, double tokens, double step_s,
                    int64_t global_batch, int64_t sequence);

/// By GPUs, then time. Every point is the proven optimum under its memory limit; a split missing
/// from the front saves less than 1 - memory_share of memory. One group: all of `options.gpus` are
/// tried. Errors: of FindSplits, for the first count when none fits; kInvalidInput.
Result<std::vector<FrontPoint>> ParetoFront(const std::vector<DeviceGroup>& groups,
                                            const SpaceOptions& options, const FrontOptions& front);

/// The best split with one decision taken otherwise.
struct RunnerUp {
  std::string axis;    ///< "tp", "micro-batch" ...
  std::string chosen;  ///< the winner's value
  std::optional<Solution> other;
  double loss = 0.0;   ///< other's objective / the winner's - 1
  std::string reason;  ///< where there is no other
};

/// One for each axis that options neither hold nor exclude a value of.
std::vector<RunnerUp> RunnersUp(const std::vector<DeviceGroup>& groups, const SpaceOptions& options,
                                const Solution& winner);

/// A change under which a search found this.
struct Change {
  std::string text;
  Solution solution;
};

struct NothingFitsAnswer {
  double needed_share = 0.0;    ///< of the memory that there is, to a hundredth
  Solution least;               ///< the fastest split within needed_share
  int64_t stage = 0;            ///< the one that binds
  double limit_bytes = 0.0;     ///< of that stage's device
  std::vector<Change> changes;  ///< that fit, by step time; memory and GPUs last
  std::string Text() const;
};

/// When FindSplits says that nothing fits. Errors: of FindSplits when it is not for memory;
/// kInfeasible when nothing helps, with what was tried.
Result<NothingFitsAnswer> WhatWouldFit(const std::vector<DeviceGroup>& groups,
                                       const SpaceOptions& options);

}  // namespace meshwright::planner::space
