#include "planner/space/mode_cover.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

namespace meshwright::planner::space {
namespace {

using stack::ItemCost;
using stack::kLayerModes;
using stack::ModeCounts;
using stack::StageSums;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Rounding of sums of a few hundred doubles stays far below this share.
constexpr double kRounding = 1e-9;

double D(int64_t value) {
  return static_cast<double>(value);
}
class Cover {
 public:
  Cover(const StagePlace& place, const std::vector<ModeCounts>& fixed,
        const std::vector<int64_t>& rest, const ModeSets& allowed, double below_t)
      : place_(place), fixed_(fixed), rest_(rest), allowed_(allowed), best_t_(below_t) {
    content_.embedding = place.embedding;
    content_.head = place.head;
  }

  std::optional<std::vector<ModeCounts>> Run() {
    std::vector<int64_t> layers = rest_;
    for (size_t kind = 0; kind < layers.size(); ++kind) layers[kind] += fixed_[kind].total();
    for (const double cap : WorkingSets(place_, layers)) UnderCap(cap);
    if (best_.empty()) return std::nullopt;
    return std::move(best_);
  }

 private:
  /// A layer that leaves the base mode of its kind.
  struct Change {
    size_t kind = 0, mode = 0;
    double time = 0.0;   ///< seconds more
    double bytes = 0.0;  ///< saved less
  };

  const ItemCost& Cost(size_t kind, size_t mode) const { return place_.table->layers[kind][mode]; }
  bool Allowed(size_t kind, size_t mode, double cap) const {
    return allowed_[kind][mode] && Cost(kind, mode).transient_bytes <= cap;
  }
  bool Fits(const StageSums& sums) const {
    return place_.costs->Memory(*place_.split, sums, place_.in_flight).total() <=
           place_.memory_bytes;
  }

  size_t FastestMode(size_t kind, double cap) const {
    return space::FastestMode(place_.table->layers[kind],
                              [&](size_t mode) { return Allowed(kind, mode, cap); });
  }

  void UnderCap(double cap) {
    content_.kinds = fixed_;
    base_.assign(rest_.size(), kLayerModes);
    for (size_t kind = 0; kind < rest_.size(); ++kind) {
      for (size_t mode = 0; mode < kLayerModes; ++mode) {
        if (fixed_[kind].layers[mode] > 0 && Cost(kind, mode).transient_bytes > cap) return;
      }
      if (rest_[kind] == 0) continue;
      base_[kind] = FastestMode(kind, cap);
      if (base_[kind] == kLayerModes) return;
      content_.kinds[kind].layers[base_[kind]] += rest_[kind];
    }
    StageSums sums = stack::SumOf(content_, *place_.table);
    base_t_ = stack::TimesOf(*place_.split, *place_.table, sums).t;
    if (base_t_ >= best_t_) return;
    sums.transient_bytes = cap;
    const double budget = MostSaved(place_, sums, sums.saved_bytes);
    if (budget < 0) return;
    MakeChanges(cap);
    left_ = rest_;
    Branch(0, sums.saved_bytes - budget, 0.0);
  }

  void MakeChanges(double cap) {
    changes_.clear();
    for (size_t kind = 0; kind < rest_.size(); ++kind) {
      if (rest_[kind] == 0) continue;
      for (size_t mode = 0; mode < kLayerModes; ++mode) {
        if (mode == base_[kind] || !Allowed(kind, mode, cap)) continue;
        const ItemCost& from = Cost(kind, base_[kind]);
        const ItemCost& to = Cost(kind, mode);
        if (to.saved_bytes >= from.saved_bytes) continue;
        changes_.push_back(
            {kind, mode, PassesOf(to) - PassesOf(from), from.saved_bytes - to.saved_bytes});
      }
    }
    std::sort(changes_.begin(), changes_.end(), [](const Change& a, const Change& b) {
      const double x = a.time * b.bytes, y = b.time * a.bytes;
      return x != y ? x < y : std::pair(a.kind, a.mode) < std::pair(b.kind, b.mode);
    });
  }

  void Branch(size_t next, double missing, double time) {
    if (base_t_ + time >= best_t_) return;
    if (missing <= 0 && TryThis()) return;
    if (next == changes_.size()) return;
    const Change& c = changes_[next];
    // They are in the order of price, so what is missing costs at least the price of this one.
    const double least = std::max(0.0, missing) * c.time / c.bytes * (1 - kRounding);
    if (base_t_ + time + least >= best_t_) return;
    const auto enough = static_cast<int64_t>(
        std::min(D(left_[c.kind]), std::ceil(std::max(0.0, missing) / c.bytes) + 1));
    ModeCounts& counts = content_.kinds[c.kind];
    const ModeCounts before = counts;
    for (int64_t k = enough; k >= 0; --k) {
      counts.layers[c.mode] = before.layers[c.mode] + k;
      counts.layers[base_[c.kind]] = before.layers[base_[c.kind]] - k;
      left_[c.kind] -= k;
      Branch(next + 1, missing - D(k) * c.bytes, time + D(k) * c.time);
      left_[c.kind] += k;
    }
    counts = before;
  }

  /// Whether the content really fits; the budget is rounded up.
  bool TryThis() {
    const StageSums sums = stack::SumOf(content_, *place_.table);
    if (!Fits(sums)) return false;
    const double t = stack::TimesOf(*place_.split, *place_.table, sums).t;
    if (t < best_t_) {
      best_t_ = t;
      best_ = content_.kinds;
    }
    return true;
  }

  const StagePlace& place_;
  const std::vector<ModeCounts>& fixed_;
  const std::vector<int64_t>& rest_;
  const ModeSets& allowed_;
  stack::StageContent content_;
  std::vector<size_t> base_;
  double base_t_ = 0.0;
  std::vector<Change> changes_;
  std::vector<int64_t> left_;
  double best_t_ = kInfinity;
  std::vector<ModeCounts> best_;
};

}  // namespace

std::vector<double> WorkingSets(const StagePlace& place, const std::vector<int64_t>& layers) {
  double floor = 0.0;
  if (place.embedding) floor = std::max(floor, place.table->embedding.transient_bytes);
  if (place.head) floor = std::max(floor, place.table->head.transient_bytes);
  std::vector<double> caps = {floor};
  for (size_t kind = 0; kind < layers.size(); ++kind) {
    if (layers[kind] == 0) continue;
    for (size_t mode = 0; mode < kLayerModes; ++mode) {
      if (place.modes[mode]) {
        caps.push_back(std::max(floor, place.table->layers[kind][mode].transient_bytes));
      }
    }
  }
  std::sort(caps.begin(), caps.end(), std::greater<>());
  caps.erase(std::unique(caps.begin(), caps.end()), caps.end());
  return caps;
}

std::optional<std::vector<ModeCounts>> FastestModes(const StagePlace& place,
                                                    const std::vector<ModeCounts>& fixed,
                                                    const std::vector<int64_t>& rest,
                                                    const ModeSets& allowed, double below_t) {
  return Cover(place, fixed, rest, allowed, below_t).Run();
}

}  // namespace meshwright::planner::space
