// A small minimiser for fits of a few constants: same input, same output.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace meshwright::cost {

struct Coordinate {
  double start = 0.0;
  double low = 0.0, high = 0.0;  ///< the ends are allowed
  double step = 0.0;             ///< first step; later ones are halves of it
};

/// A local minimum of `loss` (a function of a std::vector<double>) by steps along one coordinate at
/// a time, halved `halvings` times when none of them helps.
template <typename Loss>
std::vector<double> CoordinateDescent(const std::vector<Coordinate>& coordinates, const Loss& loss,
                                      int halvings = 14) {
  constexpr double kLeastGain = 1e-10;  // below, rounding decides
  constexpr int kMostRounds = 1000;     // of one step size; valleys may be long
  std::vector<double> at, step;
  for (const Coordinate& c : coordinates) {
    at.push_back(c.start);
    step.push_back(c.step);
  }
  double best = loss(at);
  for (int halving = 0; halving <= halvings; ++halving) {
    bool moved = true;
    for (int round = 0; moved && round < kMostRounds; ++round) {
      moved = false;
      for (size_t i = 0; i < at.size(); ++i) {
        for (const double sign : {1.0, -1.0}) {
          std::vector<double> next = at;
          next[i] = std::clamp(at[i] + sign * step[i], coordinates[i].low, coordinates[i].high);
          const double value = loss(next);
          if (!(value < best - kLeastGain)) continue;
          at = std::move(next);
          best = value;
          moved = true;
        }
      }
    }
    for (double& s : step) s /= 2;
  }
  return at;
}

}  // namespace meshwright::cost
