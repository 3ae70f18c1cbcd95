#include "planner/validate/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>

#include "planner/stack/step.h"

namespace meshwright::planner::validate {
namespace {

using stack::StackCostFactors;
using Field = stack::NumberField<StackCostFactors>;
using Point = std::vector<double>;

constexpr double kHuber = 0.03;  // residuals below count squared, beyond by their size
constexpr double kDelta = 0.01;  // of the difference quotients, in logarithms
constexpr double kLeast = 1e-9;  // stands for 0 where logarithms are taken

struct FitRow {
  std::unique_ptr<stack::StackStageCosts> costs;
  stack::Split split;
  std::vector<stack::StageContent> stages;
  double measured_s = 0.0;
  std::string source;
  double weight = 1.0;
};

/// Solves A x = b for a positive definite A by Cholesky; nullopt when it is not.
std::optional<Point> SolveDefinite(std::vector<Point> a, Point b) {
  const size_t n = b.size();
  for (size_t j = 0; j < n; ++j) {
    for (size_t k = 0; k < j; ++k) a[j][j] -= a[j][k] * a[j][k];
    if (!(a[j][j] > 0)) return std::nullopt;
    a[j][j] = std::sqrt(a[j][j]);
    for (size_t i = j + 1; i < n; ++i) {
      for (size_t k = 0; k < j; ++k) a[i][j] -= a[i][k] * a[j][k];
      a[i][j] /= a[j][j];
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < i; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) b[i] -= a[k][i] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

/// What is minimised: residuals at a point, the weight of each, and the pull towards `origin`.
struct Problem {
  std::function<Point(const Point&)> residuals;
  Point weights, origin, low, high;
  double pull = 0.0;

  /// Huber's loss of the residuals, and the pull.
  double Loss(const Point& r, const Point& p) const {
    double sum = 0;
    for (size_t i = 0; i < r.size(); ++i) {
      const double size = std::abs(r[i]);
      sum += weights[i] * (size < kHuber ? r[i] * r[i] / (2 * kHuber) + kHuber / 2 : size);
    }
    for (size_t j = 0; j < p.size(); ++j) sum += pull * (p[j] - origin[j]) * (p[j] - origin[j]);
    return sum;
  }
};

/// Levenberg and Marquardt with weights renewed in every step (Huber 1964), inside the bounds.
std::pair<double, Point> Minimise(const Problem& problem, Point p, int64_t evaluations) {
  const size_t n = p.size();
  Point r = problem.residuals(p);
  double loss = problem.Loss(r, p);
  double damping = 1e-2;
  for (int64_t used = 1; used + static_cast<int64_t>(n) < evaluations && damping < 1e8;) {
    std::vector<Point> columns(n);
    for (size_t j = 0; j < n; ++j) {
      Point moved = p;
      moved[j] += moved[j] + kDelta <= problem.high[j] ? kDelta : -kDelta;
      columns[j] = problem.residuals(moved);
      for (size_t i = 0; i < r.size(); ++i)
        columns[j][i] = (columns[j][i] - r[i]) / (moved[j] - p[j]);
    }
    used += static_cast<int64_t>(n);
    std::vector<Point> normal(n, Point(n, 0.0));
    Point gradient(n, 0.0);
    for (size_t i = 0; i < r.size(); ++i) {
      const double w = problem.weights[i] / std::max(std::abs(r[i]), kHuber);
      for (size_t j = 0; j < n; ++j) {
        gradient[j] -= w * columns[j][i] * r[i];
        for (size_t k = 0; k <= j; ++k) normal[j][k] += w * columns[j][i] * columns[k][i];
      }
    }
    for (size_t j = 0; j < n; ++j) {
      normal[j][j] += 2 * problem.pull;
      gradient[j] -= 2 * problem.pull * (p[j] - problem.origin[j]);
    }
    bool better = false;
    for (; !better && damping < 1e8 && used < evaluations; ++used) {
      std::vector<Point> damped = normal;
      for (size_t j = 0; j < n; ++j) damped[j][j] *= 1 + damping;
      const std::optional<Point> step = SolveDefinite(damped, gradient);
      damping *= 4;
      if (!step) continue;
      Point next = p;
      for (size_t j = 0; j < n; ++j) {
        next[j] =
            std::clamp(p[j] + std::clamp((*step)[j], -1.0, 1.0), problem.low[j], problem.high[j]);
      }
      Point next_r = problem.residuals(next);
      const double next_loss = problem.Loss(next_r, next);
      if (next_loss >= loss) continue;
      const bool done = loss - next_loss < 1e-7;
      better = true;
      p = next;
      r = std::move(next_r);
      loss = next_loss;
      damping = done ? 1e9 : damping / 16;
    }
  }
  return {loss, p};
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
    fit.source = row.Source();
    stack::CostInputs inputs = made->inputs;
    inputs.stack = start;
    MW_ASSIGN_OR_RETURN(fit.costs, stack::StackStageCosts::Make(std::move(inputs)));
    const Result<std::vector<stack::StageContent>> stages =
        stack::EvenStages(fit.costs->module(), fit.split, made->mode);
    if (!fit.costs->Supports(fit.split.format) || !stages.ok()) continue;
    fit.stages = *stages;
    out.push_back(std::move(fit));
  }
  // A source of a thousand rows counts about ten times as much as one of ten.
  std::map<std::string, int64_t> counts;
  for (const FitRow& row : out) ++counts[row.source];
  double sum = 0;
  for (FitRow& row : out) {
    row.weight = 1 / std::sqrt(static_cast<double>(counts[row.source]));
    sum += row.weight;
  }
  for (FitRow& row : out) row.weight /= sum;
  return out;
}

/// Best point from several starts: where host time or a hidden collective binds, the loss has
/// corners.
Point FromManyStarts(const Problem& problem, int64_t evaluations) {
  std::pair<double, Point> best = {problem.Loss(problem.residuals(problem.origin), problem.origin),
                                   problem.origin};
  const auto starts = static_cast<int64_t>(2 * problem.origin.size() + 1);
  for (int64_t s = 0; s < starts; ++s) {
    Point from = s == 0 ? problem.origin : best.second;
    if (s > 0) {
      const auto j = static_cast<size_t>((s - 1) / 2);
      from[j] = std::clamp(from[j] + (s % 2 == 0 ? 1.0 : -1.0), problem.low[j], problem.high[j]);
    }
    const auto found = Minimise(problem, from, evaluations / starts);
    if (found.first < best.first) best = found;
  }
  return best.second;
}

stack::StackResiduals ResidualsOf(const std::vector<double>& logs) {
  const auto n = static_cast<double>(logs.size());
  double mean = 0, square = 0;
  for (const double log : logs) {
    mean += log / n;
    square += log * log / n;
  }
  return {static_cast<int64_t>(logs.size()), mean, std::sqrt(std::max(square - mean * mean, 0.0))};
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
  const auto mean_abs = [&](const std::vector<double>& logs) {
    double sum = 0;
    for (size_t i = 0; i < logs.size(); ++i) sum += fit_rows[i].weight * std::abs(logs[i]);
    return sum;
  };
  Problem problem;
  problem.pull = options.pull * options.pull;
  problem.residuals = [&](const Point& p) { return errors(apply(p)); };
  for (const FitRow& row : fit_rows) problem.weights.push_back(row.weight);
  for (const Field* field : fields) {
    problem.origin.push_back(std::log(std::max(start.factors.*field->member, kLeast)));
    const double low = options.below_alone ? field->low : field->least_fitted;
    problem.low.push_back(std::log(std::max(low, kLeast)));
    problem.high.push_back(std::log(field->high));
  }
  FitResult result;
  result.stack = start;
  result.rows = static_cast<int64_t>(fit_rows.size());
  result.before = mean_abs(errors(start.factors));
  result.stack.factors = apply(FromManyStarts(problem, options.evaluations));
  const std::vector<double> logs = errors(result.stack.factors);
  result.after = mean_abs(logs);
  result.stack.residuals = ResidualsOf(logs);
  return result;
}

}  // namespace meshwright::planner::validate
