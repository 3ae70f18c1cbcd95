#include "cost_models/profile_units.h"

#include <fmt/core.h>

#include <array>
#include <cmath>

namespace meshwright::cost::internal {
namespace {

constexpr double kKi = 1024;
constexpr std::array<Unit, 7> kBytes = {{{"GiB", kKi* kKi* kKi},
                                         {"GB", 1e9},
                                         {"MiB", kKi* kKi},
                                         {"MB", 1e6},
                                         {"KiB", kKi},
                                         {"kB", 1e3},
                                         {"B", 1}}};
constexpr std::array<Unit, 4> kBandwidth = {
    {{"TB/s", 1e12}, {"GB/s", 1e9}, {"MB/s", 1e6}, {"B/s", 1}}};
constexpr std::array<Unit, 5> kFlops = {
    {{"PFLOP/s", 1e15}, {"TFLOP/s", 1e12}, {"GFLOP/s", 1e9}, {"MFLOP/s", 1e6}, {"FLOP/s", 1}}};
constexpr std::array<Unit, 4> kTime = {{{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}}};
constexpr std::array<Unit, 1> kCount = {{{"count", 1}}};

}  // namespace

std::span<const Unit> UnitsOf(Bytes) {
  return kBytes;
}
std::span<const Unit> UnitsOf(BytesPerSecond) {
  return kBandwidth;
}
std::span<const Unit> UnitsOf(FlopsPerSecond) {
  return kFlops;
}
std::span<const Unit> UnitsOf(Seconds) {
  return kTime;
}
std::span<const Unit> UnitsOf(int64_t) {
  return kCount;
}

std::optional<double> FactorOf(std::span<const Unit> units, std::string_view name) {
  for (const Unit& unit : units) {
    if (unit.name == name) return unit.factor;
  }
  return std::nullopt;
}

std::string Names(std::span<const Unit> units) {
  std::string names;
  for (const Unit& unit : units) {
    if (!names.empty()) names += ", ";
    names += unit.name;
  }
  return names;
}

std::string Format(double si, std::span<const Unit> units) {
  // The text nearest to the number in a unit may not lead back to it: the next unit may.
  for (const Unit& unit : units) {
    const double value = si / unit.factor;
    if (value >= 1 && value * unit.factor == si && fmt::format("{}", value).size() <= 12) {
      return fmt::format("value: {}, unit: {}", value, unit.name);
    }
  }
  for (const Unit& unit : units) {
    if (unit.factor == 1) return fmt::format("value: {}, unit: {}", si, unit.name);
  }
  return fmt::format("value: {}, unit: {}", si, units.front().name);
}

}  // namespace meshwright::cost::internal
