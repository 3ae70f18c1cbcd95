// The tables of measurements beside the checkout, and residuals against them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "cost_models/device_profile.h"

namespace meshwright::cost {

using Row = std::map<std::string, std::string>;

inline std::vector<std::string> SplitCsv(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  return cells;
}

/// Empty when the shared folder is not there.
inline std::vector<Row> ReadCsv(const std::string& name) {
  std::ifstream file(std::string(MESHWRIGHT_SHARED_DIR) + "/data/" + name);
  std::vector<Row> rows;
  std::string line;
  if (!std::getline(file, line)) return rows;
  const std::vector<std::string> header = SplitCsv(line);
  while (std::getline(file, line)) {
    const std::vector<std::string> cells = SplitCsv(line);
    Row row;
    for (size_t i = 0; i < std::min(header.size(), cells.size()); ++i) row[header[i]] = cells[i];
    rows.push_back(std::move(row));
  }
  return rows;
}

inline DeviceProfile Load(const std::string& name) {
  Result<DeviceProfile> profile = LoadDeviceProfile(name);
  MW_CHECK(profile.ok());
  return *profile;
}

inline bool StartsWithAny(const std::string& id, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return id.starts_with(prefix); });
}

/// |predicted / measured - 1| of many rows.
class Residuals {
 public:
  void Add(double predicted, double measured) {
    errors_.push_back(std::abs(predicted / measured - 1));
  }
  size_t size() const { return errors_.size(); }
  double Median() { return At(errors_.size() / 2); }
  double P90() { return At(errors_.size() * 9 / 10); }

  /// Fails when there are other rows than before, or the median or the 90th percentile is worse
  /// than what it was by more than a tenth. Figures are the ones of the commit that set them.
  void ExpectNoWorse(const std::string& what, size_t rows, double median, double p90) {
    ASSERT_EQ(size(), rows) << what;
    EXPECT_LE(Median(), 1.1 * median) << what;
    EXPECT_LE(P90(), 1.1 * p90) << what;
  }

 private:
  double At(size_t place) {
    std::sort(errors_.begin(), errors_.end());
    return errors_.empty() ? 0 : errors_[std::min(place, errors_.size() - 1)];
  }
  std::vector<double> errors_;
};

}  // namespace meshwright::cost
