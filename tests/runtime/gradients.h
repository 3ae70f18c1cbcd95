// Gradients of a run in global coordinates, whatever the split, and their comparison.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "planner/ir/program.h"
#include "runtime/executor.h"

namespace meshwright::testing {

struct GlobalGradient {
  std::vector<double> values;
  std::vector<bool> known;
};
using GlobalGradients = std::map<std::string, GlobalGradient>;

/// Collects the gradient buffers of all ranks of one step. Copies held by several ranks must agree
/// to 1e-9 relative (fp64) or 1e-3 (fp32); disagreements are listed.
class GradientCollector {
 public:
  explicit GradientCollector(const planner::Programs& programs, int64_t step = 0)
      : programs_(programs), step_(step) {}

  void Add(const runtime::ArenaView& view) {
    if (view.step != step_) return;
    const std::lock_guard lock(mutex_);
    for (const planner::ParameterEntry& e : view.program.parameters) AddEntry(view, e);
  }

  GlobalGradients Take() { return std::move(gradients_); }
  const std::vector<std::string>& disagreements() const { return disagreements_; }

 private:
  double Load(const runtime::ArenaView& view, int64_t element) const {
    const std::byte* base = view.arena + view.program.arena.gradients;
    if (programs_.facts.dtypes.gradient == planner::DType::kF64) {
      return reinterpret_cast<const double*>(base)[element];
    }
    return static_cast<double>(reinterpret_cast<const float*>(base)[element]);
  }

  void AddEntry(const runtime::ArenaView& view, const planner::ParameterEntry& e) {
    const planner::ModulePlan& grid = programs_.modules[static_cast<size_t>(view.program.module)];
    int64_t total = 1;
    for (int64_t d : e.global_shape) total *= d;
    int64_t inner = 1;  // elements per index of the cut axis
    const size_t axis = e.axis < 0 ? 0 : static_cast<size_t>(e.axis);
    for (size_t d = axis + 1; d < e.local_shape.size(); ++d) inner *= e.local_shape[d];
    // The padded vocabulary depends on the split: compare true rows only.
    const int64_t limit = e.valid_rows > 0 ? e.valid_rows * inner : total;
    GlobalGradient& g = gradients_[e.name];
    if (g.values.empty()) {
      g.values.assign(static_cast<size_t>(limit), 0.0);
      g.known.assign(static_cast<size_t>(limit), false);
    }
    const planner::Bucket& bucket = view.program.buckets[static_cast<size_t>(e.bucket)];
    const bool sharded = grid.sharding == planner::Sharding::kZero1 && grid.dp > 1;
    const int64_t shard = sharded ? bucket.elements / grid.dp : bucket.elements;
    const int64_t local_extent = e.local_shape[axis];
    const int64_t global_extent = e.global_shape[axis];
    const int64_t outer = e.elements() / (local_extent * inner);
    for (const planner::ShardSegment& s : planner::SegmentsOf(e, view.binding.tp_index, grid.tp)) {
      for (int64_t o = 0; o < outer; ++o) {
        for (int64_t i = 0; i < s.length * inner; ++i) {
          const int64_t local = (o * local_extent + s.local_begin) * inner + i;
          const int64_t global = (o * global_extent + s.global_begin) * inner + i;
          if (global >= limit) continue;
          const int64_t in_bucket = e.offset + local - bucket.offset;
          if (sharded && in_bucket / shard != view.binding.dp_index) continue;
          Store(e.name, g, static_cast<size_t>(global), Load(view, e.offset + local));
        }
      }
    }
  }

  void Store(const std::string& name, GlobalGradient& g, size_t index, double value) {
    if (g.known[index]) {
      const double tolerance =
          programs_.facts.dtypes.gradient == planner::DType::kF64 ? 1e-9 : 1e-3;
      if (!(std::abs(g.values[index] - value) <=
            tolerance * std::max(1e-3, std::abs(g.values[index])))) {
        disagreements_.push_back(name + "[" + std::to_string(index) + "]: " +
                                 std::to_string(g.values[index]) + " and " + std::to_string(value));
      }
    }
    g.known[index] = true;
    g.values[index] = value;
  }

  const planner::Programs& programs_;
  const int64_t step_;
  std::mutex mutex_;
  GlobalGradients gradients_;
  std::vector<std::string> disagreements_;
};

inline double Norm(const std::vector<double>& v) {
  double sum = 0.0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}

/// max over tensors of |g - r| / max(|r|, 1e-3 x median tensor norm of r); infinite when a tensor
/// or element is missing.
inline double RelativeError(const GlobalGradients& g, const GlobalGradients& reference,
                            std::string* worst = nullptr) {
  std::vector<double> norms;
  for (const auto& [name, r] : reference) norms.push_back(Norm(r.values));
  std::sort(norms.begin(), norms.end());
  const double floor = norms.empty() ? 0.0 : 1e-3 * norms[norms.size() / 2];
  double error = 0.0;
  for (const auto& [name, r] : reference) {
    const auto it = g.find(name);
    double e = INFINITY;
    if (it != g.end() && it->second.values.size() == r.values.size() &&
        std::all_of(it->second.known.begin(), it->second.known.end(), [](bool k) { return k; })) {
      double sum = 0.0;
      for (size_t i = 0; i < r.values.size(); ++i) {
        const double d = it->second.values[i] - r.values[i];
        sum += d * d;
      }
      e = std::sqrt(sum) / std::max(Norm(r.values), floor);
      if (std::isnan(e)) e = INFINITY;
    }
    if (e >= error) {
      error = e;
      if (worst != nullptr) *worst = name;
    }
  }
  return error;
}

}  // namespace meshwright::testing
