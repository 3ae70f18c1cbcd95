// What `run` shows: a line a step, and predicted beside measured at the end.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "planner/ir/plan.h"
#include "runtime/executor.h"
#include "tools/output.h"
#include "tools/run_job.h"

namespace meshwright::tools {

/// "step 12 of 100  loss 3.2104  grad norm 1.02  lr 0.0003  51,234 tokens/s".
std::string StepText(const runtime::StepReport& report, int64_t steps);
/// `step` (from 1), `loss`, `grad_norm`, `lr`, `tokens_per_s`, `step_time_s`, `times_s` by task
/// kind of rank 0, waiting included.
nlohmann::json StepJson(const runtime::StepReport& report);

/// Median of the steps' times without the first; of that one if there is no other.
double MedianStepTime(const JobSummary& job);

/// The last line of `run --json`.
nlohmann::json JobJson(const JobSummary& job, const planner::Prediction& predicted);
/// Losses, then predicted beside measured. A prediction of 0 s is none.
std::string JobText(const JobSummary& job, const planner::Plan& plan,
                    const planner::Prediction& predicted, const Style& style);

}  // namespace meshwright::tools
