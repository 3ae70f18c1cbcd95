// Lower convex hull of points: the least time that an average number of saved bytes allows.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace meshwright::planner::space {

/// Of points (saved bytes, seconds), as a function of bytes that does not rise.
class Hull {
 public:
  explicit Hull(std::vector<std::pair<double, double>> points) {
    std::sort(points.begin(), points.end());
    for (const auto& p : points) {
      if (!hull_.empty() && p.second >= hull_.back().second) continue;
      while (hull_.size() > 1 && Above(hull_[hull_.size() - 2], hull_.back(), p)) hull_.pop_back();
      hull_.push_back(p);
    }
  }
  /// Infinite below the least bytes.
  double At(double bytes) const {
    if (bytes < hull_.front().first * (1 - kRounding))
      return std::numeric_limits<double>::infinity();
    for (size_t i = 1; i < hull_.size(); ++i) {
      if (bytes > hull_[i].first) continue;
      const auto& [x0, y0] = hull_[i - 1];
      const auto& [x1, y1] = hull_[i];
      return y0 + (y1 - y0) * std::max(0.0, bytes - x0) / (x1 - x0);
    }
    return hull_.back().second;
  }
  double enough() const { return hull_.back().first; }

 private:
  static constexpr double kRounding = 1e-9;  ///< share by which sums may differ
  using Point = std::pair<double, double>;
  static bool Above(const Point& a, const Point& b, const Point& c) {
    return (b.second - a.second) * (c.first - a.first) >=
           (c.second - a.second) * (b.first - a.first);
  }
  std::vector<Point> hull_;
};

}  // namespace meshwright::planner::space
