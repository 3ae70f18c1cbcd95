// Unit names of profile files and their factors to SI.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "topologies/units.h"

namespace meshwright::cost::internal {

struct Unit {
  std::string_view name;
  double factor = 1;  ///< SI = value * factor
};

/// Units of a quantity, largest first.
std::span<const Unit> UnitsOf(Bytes);
std::span<const Unit> UnitsOf(BytesPerSecond);
std::span<const Unit> UnitsOf(FlopsPerSecond);
std::span<const Unit> UnitsOf(Seconds);
std::span<const Unit> UnitsOf(int64_t);

/// Factor of a unit, if it is one of these.
std::optional<double> FactorOf(std::span<const Unit> units, std::string_view name);

/// "B, KiB, ..." for messages.
std::string Names(std::span<const Unit> units);

/// "value: 80, unit: GiB": the largest unit in which the number is exact and at least 1.
std::string Format(double si, std::span<const Unit> units);

}  // namespace meshwright::cost::internal
