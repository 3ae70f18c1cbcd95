// Units as types. Constructors are explicit and only sensible arithmetic compiles:
// Bytes / BytesPerSecond is Seconds, Seconds + Bytes does not compile.
#pragma once

#include <compare>
#include <cstdint>

namespace meshwright {

/// A number with a unit; `Tag` names the unit, `Rep` is how it is stored.
template <typename Tag, typename Rep>
class Quantity {
 public:
  constexpr Quantity() = default;
  explicit constexpr Quantity(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }

  friend constexpr auto operator<=>(Quantity, Quantity) = default;
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.value_ + b.value_); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.value_ - b.value_); }
  friend constexpr Quantity operator*(Quantity a, Rep k) { return Quantity(a.value_ * k); }
  friend constexpr Quantity operator*(Rep k, Quantity a) { return Quantity(a.value_ * k); }
  friend constexpr Quantity operator/(Quantity a, Rep k) { return Quantity(a.value_ / k); }
  friend constexpr double operator/(Quantity a, Quantity b) {
    return static_cast<double>(a.value_) / static_cast<double>(b.value_);
  }
  constexpr Quantity& operator+=(Quantity b) {
    value_ += b.value_;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity b) {
    value_ -= b.value_;
    return *this;
  }

 private:
  Rep value_ = 0;
};

using Seconds = Quantity<struct SecondsTag, double>;
using Nanoseconds = Quantity<struct NanosecondsTag, int64_t>;  ///< the simulator's integer clock
using Bytes = Quantity<struct BytesTag, int64_t>;
using Flops = Quantity<struct FlopsTag, double>;  ///< floating-point operations, a count
using BytesPerSecond = Quantity<struct BytesPerSecondTag, double>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag, double>;

constexpr Seconds operator/(Bytes bytes, BytesPerSecond rate) {
  return Seconds(static_cast<double>(bytes.value()) / rate.value());
}
constexpr Seconds operator/(Flops flops, FlopsPerSecond rate) {
  return Seconds(flops.value() / rate.value());
}
constexpr Bytes operator*(BytesPerSecond rate, Seconds time) {
  return Bytes(static_cast<int64_t>(rate.value() * time.value()));
}
/// Rounded up, so that work never takes no time.
constexpr Nanoseconds ToNanoseconds(Seconds s) {
  const double ns = s.value() * 1e9;
  const auto whole = static_cast<int64_t>(ns);
  return Nanoseconds(whole + (static_cast<double>(whole) < ns ? 1 : 0));
}
constexpr Seconds ToSeconds(Nanoseconds ns) { return Seconds(static_cast<double>(ns.value()) * 1e-9); }

}  // namespace meshwright
