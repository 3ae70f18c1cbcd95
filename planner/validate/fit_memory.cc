// The part of a stack's memory that its tensors do not explain.
#include <algorithm>
#include <cmath>

#include "planner/stack/step.h"
#include "planner/validate/fit.h"

namespace meshwright::planner::validate {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// Bytes that a complete row of this stack is predicted to allocate; 0 for other rows.
Result<double> AllocatedOf(const stack::StackSpec& start, CaseMaker& maker,
                           const MeasuredRow& row) {
  const Result<RowCase> made = maker.Make(row);
  if (!made.ok() || made->stack != start.name) return 0.0;
  stack::CostInputs inputs = made->inputs;
  inputs.stack = start;
  inputs.stack.lowering = made->inputs.stack.lowering;  // rows may say more of their kernels
  MW_ASSIGN_OR_RETURN(const auto costs, stack::StackStageCosts::Make(std::move(inputs)));
  const Result<std::vector<stack::StageContent>> stages =
      stack::EvenStages(costs->module(), made->split, made->mode);
  if (!costs->Supports(made->split.format) || !stages.ok()) return 0.0;
  double most = 0;
  for (const stack::StageMemory& m : PredictStep(*costs, made->split, *stages).memory) {
    most = std::max(most, m.allocated());
  }
  return most;
}

}  // namespace

Result<FitResult> FitFragmentation(const stack::StackSpec& start, CaseMaker& maker,
                                   const std::vector<MeasuredRow>& rows) {
  std::vector<double> ratios;
  for (const MeasuredRow& row : rows) {
    MW_ASSIGN_OR_RETURN(const std::optional<double> gib, row.Number("measured_peak_mem_gib"));
    if (!gib || row.Text("mem_metric").find("reserved") == std::string::npos) continue;
    MW_ASSIGN_OR_RETURN(const double allocated, AllocatedOf(start, maker, row));
    const double reserved = *gib * kGiB - start.allocator.reserve_bytes;
    if (allocated > 0 && reserved > 0) ratios.push_back(reserved / allocated);
  }
  if (ratios.empty()) {
    return InvalidInput("--fit fragmentation: no row is of stack '" + start.name +
                        "' and states reserved memory (columns measured_peak_mem_gib, mem_metric)");
  }
  std::sort(ratios.begin(), ratios.end());
  const size_t n = ratios.size();
  const double median = (ratios[(n - 1) / 2] + ratios[n / 2]) / 2;
  FitResult result;
  result.stack = start;
  result.stack.allocator.fragmentation = std::clamp(median - 1, 0.0, 2.0);
  result.rows = static_cast<int64_t>(n);
  for (const double ratio : ratios) {
    const double log = std::log(ratio);
    const auto count = static_cast<double>(n);
    result.before += std::abs(std::log1p(start.allocator.fragmentation) - log) / count;
    result.after += std::abs(std::log1p(result.stack.allocator.fragmentation) - log) / count;
  }
  return result;
}

}  // namespace meshwright::planner::validate
