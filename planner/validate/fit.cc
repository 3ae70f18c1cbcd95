#include "planner/validate/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "planner/stack/step.h"

namespace meshwright::planner::validate {
namespace {

using stack::StackCostFactors;
using Field = stack::NumberField<StackCostFactors>;
using Point = std::vector<double>;

struct FitRow {
  std::unique_ptr<stack::StackStageCosts> costs;
  stack::Split split;
  std::vector<stack::StageContent> stages;
  double measured_s = 0.0;
};

/// Nelder and Mead 1965 with the usual coefficients (1, 2, 0.5, 0.5).
Point Minimise(const std::function<double(const Point&)>& f, const Point& start, double step,
               int64_t evaluations) {
  const size_t n = start.size();
  std::vector<std::pair<double, Point>> simplex;
  simplex.emplace_back(f(start), start);
  for (size_t i = 0; i < n; ++i) {
    Point p = start;
    p[i] += step;
    simplex.emplace_back(f(p), p);
  }
  int64_t used = static_cast<int64_t>(n) + 1;
  const auto by_value = [](const auto& a, const auto& b) { return a.first < b.first; };
  while (used < evaluations) {
    std::stable_sort(simplex.begin(), simplex.end(), by_value);
    if (simplex.back().first - simplex.front().first < 1e-7) break;
    Point centre(n, 0.0);
    for (size_t v = 0; v < n; ++v) {
      for (size_t i = 0; i < n; ++i) centre[i] += simplex[v].second[i] / static_cast<double>(n);
    }
    const auto along = [&](double t) {
      Point p(n);
      for (size_t i = 0; i < n; ++i) p[i] = centre[i] + t * (simplex.back().second[i] - centre[i]);
      const double value = f(p);
      ++used;
      return std::pair(value, p);
    };
    const auto reflected = along(-1.0);
    if (reflected.first < simplex.front().first) {
      const auto expanded = along(-2.0);
      simplex.back() = expanded.first < reflected.first ? expanded : reflected;
    } else if (reflected.first < simplex[n - 1].first) {
      simplex.back() = reflected;
    } else {
      const auto contracted = along(reflected.first < simplex.back().first ? -0.5 : 0.5);
      if (contracted.first < std::min(reflected.first, simplex.back().first)) {
        simplex.back() = contracted;
      } else {
        for (size_t v = 1; v <= n; ++v) {
          for (size_t i = 0; i < n; ++i) {
            simplex[v].second[i] =
                simplex[0].second[i] + 0.5 * (simplex[v].second[i] - simplex[0].second[i]);
          }
          simplex[v].first = f(simplex[v].second);
          ++used;
        }
      }
    }
  }
  return std::min_element(simplex.begin(), simplex.end(), by_value)->second;
}

Result<std::vector<const Field*>> FieldsOf(const std::vector<std::string>& names) {
  std::vector<const Field*> fields;
  std::string known;
  for (const Field& field : stack::FactorFields()) {
    known += (known.empty() ? "" : ", ") + std::string(field.name);
  }
  for (const std::string& name : names) {
    const Field* found = nullptr;
    for (const Field& field : stack::FactorFields()) {
      if (name == field.name) found = &field;
    }
    if (found == nullptr) {
      return InvalidInput(fmt::format("--fit: found '{}'; allowed: {}", name, known));
    }
    fields.push_back(found);
  }
  if (fields.empty()) return InvalidInput("--fit: name at least one of " + known);
  return fields;
}

Result<std::vector<FitRow>> RowsFor(const stack::StackSpec& start, CaseMaker& maker,
                                    const std::vector<MeasuredRow>& rows) {
  std::vector<FitRow> out;
  for (const MeasuredRow& row : rows) {
    MW_ASSIGN_OR_RETURN(const std::optional<double> measured, row.Number("measured_step_s"));
    if (!measured) continue;
    const Result<RowCase> made = maker.Make(row);
    if (!made.ok() || made->stack != start.name) continue;
    FitRow fit;
    fit.split = made->split;
    fit.measured_s = *measured;
    stack::CostInputs inputs = made->inputs;
    inputs.stack = start;
    MW_ASSIGN_OR_RETURN(fit.costs, stack::StackStageCosts::Make(std::move(inputs)));
    const Result<std::vector<stack::StageContent>> stages =
        stack::EvenStages(fit.costs->module(), fit.split, made->mode);
    if (!fit.costs->Supports(fit.split.format) || !stages.ok()) continue;
    fit.stages = *stages;
    out.push_back(std::move(fit));
  }
  return out;
}

}  // namespace

Result<FitResult> FitStack(const stack::StackSpec& start, CaseMaker& maker,
                           const std::vector<MeasuredRow>& rows, const FitOptions& options) {
  MW_ASSIGN_OR_RETURN(const std::vector<const Field*> fields, FieldsOf(options.factors));
  MW_ASSIGN_OR_RETURN(const std::vector<FitRow> fit_rows, RowsFor(start, maker, rows));
  if (fit_rows.empty()) {
    return InvalidInput("--fit: no row is of stack '" + start.name + "' and complete");
  }
  const auto apply = [&](const Point& p) {
    StackCostFactors factors = start.factors;
    for (size_t i = 0; i < fields.size(); ++i) {
      const Field& field = *fields[i];
      factors.*field.member = std::clamp(std::exp(p[i]), field.low, field.high);
    }
    return factors;
  };
  const auto errors = [&](const StackCostFactors& factors) {
    std::vector<double> logs;
    for (const FitRow& row : fit_rows) {
      row.costs->SetFactors(factors);
      logs.push_back(
          std::log(PredictStep(*row.costs, row.split, row.stages).parts.total / row.measured_s));
    }
    return logs;
  };
  const auto mean_abs = [](const std::vector<double>& logs) {
    double sum = 0;
    for (const double log : logs) sum += std::abs(log);
    return sum / static_cast<double>(logs.size());
  };
  Point origin;
  for (const Field* field : fields) {
    origin.push_back(std::log(std::max(start.factors.*field->member, 1e-9)));
  }
  const auto objective = [&](const Point& p) {
    double pull = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      pull += options.pull * options.pull * (p[i] - origin[i]) * (p[i] - origin[i]);
      const double value = std::exp(p[i]);
      if (value < fields[i]->low || value > fields[i]->high) pull += 1;
    }
    return mean_abs(errors(apply(p))) + pull;
  };
  Point best = Minimise(objective, origin, 0.25, options.evaluations / 2);
  best = Minimise(objective, best, 0.1, options.evaluations / 2);

  FitResult result;
  result.stack = start;
  result.rows = static_cast<int64_t>(fit_rows.size());
  result.before = mean_abs(errors(start.factors));
  result.stack.factors = apply(best);
  const std::vector<double> logs = errors(result.stack.factors);
  result.after = mean_abs(logs);
  const auto n = static_cast<double>(logs.size());
  double mean = 0, square = 0;
  for (const double log : logs) {
    mean += log / n;
    square += log * log / n;
  }
  result.stack.residuals = {result.rows, mean, std::sqrt(std::max(square - mean * mean, 0.0))};
  return result;
}

}  // namespace meshwright::planner::validate
