// A loop over independent items on several threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace meshwright::planner {

/// Calls f(i) once for every i < count, on up to `threads` threads (the caller's is one); in order
/// on one. f must not throw.
template <typename F>
void ParallelFor(size_t count, int threads, const F& f) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) f(i);
  };
  std::vector<std::thread> helpers;
  try {
    for (int t = 1; t < threads && static_cast<size_t>(t) < count; ++t) helpers.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads to be had: those that run do the work.
  }
  work();
  for (std::thread& t : helpers) t.join();
}

}  // namespace meshwright::planner
