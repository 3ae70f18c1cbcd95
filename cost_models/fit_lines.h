// How well fits meet their measurements. For the fits of this folder.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace meshwright::cost {

/// Of at least one value.
inline double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// How well a group of measurements is met: |predicted / measured - 1|.
struct FitLine {
  std::string what;  ///< "products", "attention d 128 backward", "kernel norm.rms_norm"
  int64_t rows = 0;
  double median = 0.0, p90 = 0.0;
};

/// (predicted, measured) pairs of a fit.
class Residuals {
 public:
  void Add(double predicted, double measured) {
    errors_.push_back(std::fabs(predicted / measured - 1));
  }
  FitLine Line(std::string what) const {
    std::vector<double> sorted = errors_;
    std::sort(sorted.begin(), sorted.end());
    if (sorted.empty()) return {std::move(what), 0, 0.0, 0.0};
    return {std::move(what), static_cast<int64_t>(sorted.size()), sorted[sorted.size() / 2],
            sorted[sorted.size() * 9 / 10]};
  }

 private:
  std::vector<double> errors_;
};

/// Round to `digits` significant digits: more would claim what no fit knows.
inline double Significant(double value, int digits = 4) {
  if (value == 0) return 0;
  const double scale = std::pow(10.0, digits - 1 - std::floor(std::log10(std::fabs(value))));
  return std::round(value * scale) / scale;
}

}  // namespace meshwright::cost
