// Predictions of measured rows and how far they are off.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/validate/row_case.h"

namespace meshwright::planner::validate {

/// One row's prediction; `reason` says why there is none.
struct RowResult {
  std::string id;
  std::string source;
  std::string group;  ///< rows of the same model, batch, sequence and GPUs
  std::string stack;
  std::string split;
  std::optional<double> measured_step_s, predicted_step_s;
  double low_s = 0.0, high_s = 0.0;  ///< interval of the step
  std::optional<double> measured_peak_gib, predicted_peak_gib;
  std::vector<std::string> assumptions;
  std::string reason;
  bool held_out = false;  ///< its group was hidden from the fit
};

/// "model L.. h.. s.. b.. on GPUs": what rows share among which a planner would choose.
std::string GroupOf(const MeasuredRow& row);

/// "model L.. h..": what is hidden from fits, or not, as a whole.
std::string ModelGroupOf(const MeasuredRow& row);

/// What a row states itself. kInvalidInput for measurements that are no numbers above 0.
Result<RowResult> MeasuredPart(const MeasuredRow& row);

/// Predicts a row. A cell that cannot be read is an error; a row that does not say enough is a
/// result with a reason.
Result<RowResult> PredictRow(CaseMaker& maker, const MeasuredRow& row);

/// Errors of a set of predictions; relative, so 0.05 is 5 %.
struct ErrorSummary {
  std::string name;
  int64_t rows = 0;       ///< in the table
  int64_t predicted = 0;  ///< with prediction and measurement
  double mape = 0.0, median = 0.0, p90 = 0.0, max = 0.0, bias = 0.0;
  std::string worst;  ///< id of the row with the largest error
};
ErrorSummary SummarizeSteps(const std::string& name, const std::vector<const RowResult*>& rows);
ErrorSummary SummarizeMemory(const std::string& name, const std::vector<const RowResult*>& rows);

/// How good the choice among measured rows of one group is.
struct ChoiceSummary {
  std::string name;
  int64_t groups = 0;  ///< with at least three predicted rows of unlike measurements
  double mean_regret =
      0.0;  ///< measured time of the row predicted fastest / the fastest measured - 1
  double max_regret = 0.0;
  double mean_spearman = 0.0;  ///< rank correlation, ties share their mean rank
};
ChoiceSummary SummarizeChoice(const std::string& name, const std::vector<const RowResult*>& rows);

/// Whether the rows of a model (ModelGroupOf) of a source are hidden from fits: by bit 4 of FNV-1a
/// over both, the bit that cuts the published sources into halves most evenly.
bool IsHeldOut(const std::string& source, const std::string& model);

}  // namespace meshwright::planner::validate
