// Measured rows of our own runs, predicted as plans: lowered, proven, simulated.
#pragma once

#include <string>
#include <vector>

#include "planner/validate/summary.h"
#include "tools/output.h"

namespace meshwright::tools {

/// Predicts rows under stack meshwright. The interval is twice kOwnStepDeviation.
class OwnRows {
 public:
  /// `cluster` and `profile` empty: by the gpu column.
  OwnRows(std::vector<planner::validate::SourceFacts> facts, std::string cluster,
          std::string profile);

  /// As planner::validate::PredictRow.
  Result<planner::validate::RowResult> Predict(const planner::validate::MeasuredRow& row,
                                               Output& output);

 private:
  std::string cluster_, profile_;
  planner::validate::CaseMaker maker_;
};

}  // namespace meshwright::tools
