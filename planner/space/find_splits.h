// FindSplits: the best splits of a module over the whole space, proven best for the objective of
// planner/stack/stage_costs.h.
//
// Shapes (what tables depend on) are tried by their lower bound, least first, out of families that
// have one themselves (shapes.h); a family or shape whose bound is above the worst of the best is
// cut with all its tuples. The tuples of the others are bounded one by one (bounds.h), and those
// that are left are solved exactly, least bound first (inner.h). The result does not depend on that
// order: only what is certainly worse is cut, and equal objectives are ordered by tuple.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/space/inner.h"
#include "planner/space/space.h"
#include "topologies/status.h"

namespace meshwright::planner::space {

/// Counts and proof. Under ModeRule::kUniform every mode of a tuple counts as a configuration.
struct Certificate {
  int64_t configurations = 0;  ///< legal tuples, cut ones too
  int64_t evaluated = 0;       ///< solved exactly
  int64_t bounded = 0;         ///< cut by a bound, alone or with others
  int64_t bounded_alone = 0;   ///< of them, by a bound of their own
  int64_t feasible = 0;        ///< evaluated ones that fit and may be among the best
  int64_t shapes = 0;
  int64_t shapes_cut = 0;
  double seconds = 0.0;        ///< wall time
  double lower_bound_s = 0.0;  ///< no solution's objective is below
  double gap = 0.0;            ///< best / lower bound - 1; 0: proven best
};

struct SpaceResult {
  std::vector<Solution> best;  ///< one a tuple, by objective, then tuple
  Certificate certificate;
};

/// Errors: kInvalidInput by CheckSpace; kInfeasible when no tuple is legal (with reasons) or
/// nothing fits (WhatWouldFit in answers.h says what would), or when the time limit came first.
Result<SpaceResult> FindSplits(const std::vector<DeviceGroup>& groups, const SpaceOptions& options);

}  // namespace meshwright::planner::space
