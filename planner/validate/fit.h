// Fits a stack's factors to measured rows.
#pragma once

#include <string>
#include <vector>

#include "planner/stack/stack_spec.h"
#include "planner/validate/row_case.h"

namespace meshwright::planner::validate {

struct FitOptions {
  std::vector<std::string> factors;  ///< names of FactorFields to change; the rest stays
  int64_t evaluations = 6000;        ///< of all rows, at most
  /// Pull towards the start: an error of 1 % costs as much as moving a factor by exp(0.01 / pull).
  double pull = 0.01;
  /// Ratios below 1 too: what is fitted then is the device profile, whose rates are the stack's
  /// divided by them.
  bool below_alone = false;
};

struct FitResult {
  stack::StackSpec stack;  ///< factors and residuals replaced
  double before = 0.0;     ///< mean |ln(predicted / measured)|
  double after = 0.0;
  int64_t rows = 0;
};

/// Fits ln(predicted / measured) of the step time of this stack's rows by Huber's loss, a source of
/// n rows weighing sqrt(n): Levenberg-Marquardt in the logarithms of the factors from several
/// starts. Deterministic. kInvalidInput for unknown factors or no row that can be predicted.
Result<FitResult> FitStack(const stack::StackSpec& start, CaseMaker& maker,
                           const std::vector<MeasuredRow>& rows, const FitOptions& options);

/// Sets the allocator's fragmentation so that half of this stack's rows of reserved memory lie
/// above the prediction; before and after are of memory. kInvalidInput without such a row.
Result<FitResult> FitFragmentation(const stack::StackSpec& start, CaseMaker& maker,
                                   const std::vector<MeasuredRow>& rows);

}  // namespace meshwright::planner::validate
