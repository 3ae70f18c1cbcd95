// A point in time after which a call gives up.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace meshwright::runtime {

/// Longest time that anything may be told to wait. Seconds.
inline constexpr double kMaxDeadlineS = 1e6;

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// `seconds` from now, at least 0 and at most kMaxDeadlineS.
  explicit Deadline(double seconds)
      : end_(Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                 seconds > 0 ? std::min(seconds, kMaxDeadlineS) : 0.0))) {}

  bool passed() const { return Clock::now() >= end_; }
  double left_s() const {
    return std::max(0.0, std::chrono::duration<double>(end_ - Clock::now()).count());
  }
  /// For poll(2): milliseconds left, rounded up, at most a second.
  int poll_ms() const { return static_cast<int>(std::min(1000.0, left_s() * 1e3 + 0.999)); }
  Clock::time_point end() const { return end_; }

  /// Sleeps `seconds`, but not past the deadline.
  void Sleep(double seconds) const {
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(seconds, left_s())));
  }

 private:
  Clock::time_point end_;
};

}  // namespace meshwright::runtime
