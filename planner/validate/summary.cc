#include "planner/validate/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>

#include "planner/ir/hash.h"

namespace meshwright::planner::validate {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr size_t kLeastGroup = 3;

ErrorSummary Summarize(const std::string& name, const std::vector<const RowResult*>& rows,
                       std::optional<double> RowResult::*measured,
                       std::optional<double> RowResult::*predicted) {
  ErrorSummary s;
  s.name = name;
  std::vector<double> errors;
  for (const RowResult* row : rows) {
    if (!(row->*measured)) continue;
    ++s.rows;
    if (!(row->*predicted)) continue;
    const double relative = *(row->*predicted) / *(row->*measured) - 1;
    if (errors.empty() || std::abs(relative) > s.max) {
      s.max = std::abs(relative);
      s.worst = row->id;
    }
    s.bias += relative;
    s.mape += std::abs(relative);
    errors.push_back(std::abs(relative));
  }
  s.predicted = static_cast<int64_t>(errors.size());
  if (errors.empty()) return s;
  const auto n = static_cast<double>(errors.size());
  s.mape /= n;
  s.bias /= n;
  std::sort(errors.begin(), errors.end());
  const auto at = [&](double share) {
    return errors[static_cast<size_t>(std::lround(share * static_cast<double>(errors.size() - 1)))];
  };
  s.median = at(0.5);
  s.p90 = at(0.9);
  return s;
}

/// Ranks from 0; equal values share their mean rank.
std::vector<double> Ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t i = 0; i < order.size();) {
    size_t end = i + 1;
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    for (size_t k = i; k < end; ++k) ranks[order[k]] = static_cast<double>(i + end - 1) / 2;
    i = end;
  }
  return ranks;
}

/// Pearson's correlation; 0 where one side is constant.
double Correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto n = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n;
  const double mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0.0;
}

}  // namespace

bool IsHeldOut(const std::string& source, const std::string& model) {
  return (Hasher().Add(source).Add(model).value() >> 4 & 1U) != 0;
}

namespace {

/// Stages among which the row's peak is sought: that of the rank that it names, else all.
std::pair<size_t, size_t> StagesOf(const MeasuredRow& row, const stack::Split& split) {
  const std::string place = row.Text("source_table");
  const size_t at = place.find("rank");
  const size_t stages = static_cast<size_t>(split.pp);
  long rank = -1;
  if (at != std::string::npos) std::sscanf(place.c_str() + at, "rank%ld_", &rank);
  if (rank < 0 || rank >= split.ranks()) return {0, stages};
  const size_t stage = static_cast<size_t>(rank / (split.ranks() / split.pp));
  return {stage, stage + 1};
}

/// What the row's memory metric counts, on the stage that it names or the fullest.
double PeakBytes(const MeasuredRow& row, const RowCase& made,
                 const std::vector<stack::StageMemory>& stages) {
  const std::string metric = row.Text("mem_metric");
  const auto counts = [&](const char* word) { return metric.find(word) != std::string::npos; };
  // Allocated at the peak less allocated behind backward: what stays cancels, and gradients are
  // there behind backward but not yet at the peak of the first micro-batch.
  const auto beyond_states = [&](const stack::StageMemory& m) {
    return m.activations + m.transient - made.inputs.stack.allocator.workspace_bytes -
           (made.split.micro_batches == 1 ? m.gradients : 0.0);
  };
  const auto [first, end] = StagesOf(row, made.split);
  double peak = 0;
  for (size_t p = first; p < end; ++p) {
    const stack::StageMemory& m = stages[p];
    const double bytes = counts("activation")  ? beyond_states(m)
                         : counts("reserved")  ? m.reserved()
                         : counts("allocated") ? m.allocated()
                                               : m.total();
    peak = std::max(peak, bytes);
  }
  return peak;
}

}  // namespace

std::string ModelGroupOf(const MeasuredRow& row) {
  return fmt::format("{} L{} h{}", row.Text("model"), row.Text("layers"), row.Text("hidden"));
}

std::string GroupOf(const MeasuredRow& row) {
  return fmt::format("{} L{} h{} s{} b{} on {}", row.Text("model"), row.Text("layers"),
                     row.Text("hidden"), row.Text("seq"), row.Text("global_batch"),
                     row.Text("gpus"));
}

Result<RowResult> MeasuredPart(const MeasuredRow& row) {
  RowResult result;
  result.id = row.id;
  result.source = row.Source();
  result.group = GroupOf(row);
  result.held_out = IsHeldOut(result.source, ModelGroupOf(row));
  MW_ASSIGN_OR_RETURN(result.measured_step_s, row.Number("measured_step_s"));
  MW_ASSIGN_OR_RETURN(result.measured_peak_gib, row.Number("measured_peak_mem_gib"));
  for (const std::optional<double>* value : {&result.measured_step_s, &result.measured_peak_gib}) {
    if (*value && !(**value > 0)) {
      return InvalidInput(fmt::format("row {} (line {}): a measurement of {}; allowed: above 0",
                                      row.id, row.line, **value));
    }
  }
  return result;
}

Result<RowResult> PredictRow(CaseMaker& maker, const MeasuredRow& row) {
  MW_ASSIGN_OR_RETURN(RowResult result, MeasuredPart(row));
  const Result<RowCase> made = maker.Make(row);
  if (!made.ok()) {
    if (made.status().code() == StatusCode::kInvalidInput) return made.status();
    result.reason = made.status().message();
    return result;
  }
  result.stack = made->stack;
  result.split = ShortName(made->split);
  result.assumptions = made->assumptions;
  MW_ASSIGN_OR_RETURN(const std::unique_ptr<stack::StackStageCosts> costs,
                      stack::StackStageCosts::Make(made->inputs));
  if (!costs->Supports(made->split.format)) {
    result.reason = fmt::format("precision: the device profile {} has no rate for {}",
                                made->inputs.profile.name, ToString(made->split.format));
    return result;
  }
  const Result<std::vector<stack::StageContent>> stages =
      stack::EvenStages(costs->module(), made->split, made->mode);
  if (!stages.ok()) {
    result.reason = stages.status().message();
    return result;
  }
  const stack::StepPrediction step = stack::PredictStep(*costs, made->split, *stages);
  result.predicted_step_s = step.parts.total;
  result.low_s = step.low_s;
  result.high_s = step.high_s;
  result.predicted_peak_gib = PeakBytes(row, *made, step.memory) / kGiB;
  return result;
}

ErrorSummary SummarizeSteps(const std::string& name, const std::vector<const RowResult*>& rows) {
  return Summarize(name, rows, &RowResult::measured_step_s, &RowResult::predicted_step_s);
}

ErrorSummary SummarizeMemory(const std::string& name, const std::vector<const RowResult*>& rows) {
  return Summarize(name, rows, &RowResult::measured_peak_gib, &RowResult::predicted_peak_gib);
}

ChoiceSummary SummarizeChoice(const std::string& name, const std::vector<const RowResult*>& rows) {
  std::map<std::string, std::vector<const RowResult*>> groups;
  for (const RowResult* row : rows) {
    if (row->measured_step_s && row->predicted_step_s) groups[row->group].push_back(row);
  }
  ChoiceSummary s;
  s.name = name;
  for (const auto& [group, members] : groups) {
    if (members.size() < kLeastGroup) continue;
    std::vector<double> measured, predicted;
    for (const RowResult* row : members) {
      measured.push_back(*row->measured_step_s);
      predicted.push_back(*row->predicted_step_s);
    }
    const auto chosen = std::min_element(predicted.begin(), predicted.end()) - predicted.begin();
    const double best = *std::min_element(measured.begin(), measured.end());
    const double regret = measured[static_cast<size_t>(chosen)] / best - 1;
    ++s.groups;
    s.mean_regret += regret;
    s.max_regret = std::max(s.max_regret, regret);
    s.mean_spearman += Correlation(Ranks(measured), Ranks(predicted));
  }
  if (s.groups > 0) {
    s.mean_regret /= static_cast<double>(s.groups);
    s.mean_spearman /= static_cast<double>(s.groups);
  }
  return s;
}

}  // namespace meshwright::planner::validate
