#include "planner/space/stage_options.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "planner/space/mode_cover.h"

namespace meshwright::planner::space {
namespace {

using stack::ItemCost;
using stack::kLayerModes;
using stack::ModeCounts;
using stack::Schedule;
using stack::StageContent;
using stack::StageSums;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Rounding of sums of a few hundred doubles stays far below this share.
constexpr double kRounding = 1e-9;
constexpr double kSameSum = 1e-12;
/// Most alternatives looked at for one stage; what is left out is reported as slack.
constexpr int64_t kMostNodes = 20000;

double D(int64_t value) {
  return static_cast<double>(value);
}

class OptionFinder {
 public:
  OptionFinder(const StagePlace& place, const std::vector<int64_t>& layers, double most_y)
      : place_(place), layers_(layers), most_y_(most_y), m_(D(place.split->micro_batches)) {
    content_.embedding = place.embedding;
    content_.head = place.head;
    content_.kinds.resize(layers.size());
    base_.resize(layers.size());
    for (size_t kind = 0; kind < layers.size(); ++kind) base_[kind] = FastestMode(kind, kInfinity);
  }

  StageOptionList Find() {
    SetAll(base_);
    sums_ = stack::SumOf(content_, *place_.table);
    LimitTime();
    const double least_t = TimesOfSums().t;
    if (least_t > most_t_) return std::move(list_);
    if (!Fits()) {
      const std::vector<ModeCounts> none(layers_.size());
      auto modes = FastestModes(place_, none, layers_, ModeSets(layers_.size(), place_.modes),
                                most_t_ * (1 + kRounding));
      if (!modes) return std::move(list_);
      content_.kinds = std::move(*modes);
      sums_ = stack::SumOf(content_, *place_.table);
    }
    fastest_t_ = TimesOfSums().t;
    Keep();
    Alternatives();
    std::erase_if(list_.options, [&](const StageOption& o) { return o.y > most_y_; });
    std::sort(list_.options.begin(), list_.options.end(),
              [](const StageOption& a, const StageOption& b) { return a.z < b.z; });
    return std::move(list_);
  }

  double LeastMemory(std::vector<ModeCounts>& kinds) {
    double least = kInfinity;
    for (const double cap : WorkingSets(place_, layers_)) {
      std::vector<size_t> modes(layers_.size(), kLayerModes);
      bool possible = true;
      for (size_t kind = 0; kind < layers_.size(); ++kind) {
        if (layers_[kind] == 0) continue;
        for (size_t mode = 0; mode < kLayerModes; ++mode) {
          if (!Allowed(kind, mode, cap)) continue;
          if (modes[kind] == kLayerModes ||
              Cost(kind, mode).saved_bytes < Cost(kind, modes[kind]).saved_bytes) {
            modes[kind] = mode;
          }
        }
        possible = possible && modes[kind] < kLayerModes;
      }
      if (!possible) continue;
      SetAll(modes);
      sums_ = stack::SumOf(content_, *place_.table);
      const double bytes = place_.costs->Memory(*place_.split, sums_, place_.in_flight).total();
      if (bytes < least) {
        least = bytes;
        kinds = content_.kinds;
      }
    }
    return least;
  }

 private:
  /// What is chosen; of layers that are not, the least.
  struct Partial {
    double forward = 0.0, backward = 0.0;
    double late = 0.0;  ///< passes less twice the weight part
    double saved = 0.0;
    void Add(const Partial& other, double count) {
      forward += count * other.forward;
      backward += count * other.backward;
      late += count * other.late;
      saved += count * other.saved;
    }
  };
  static Partial PartialOf(const ItemCost& c) {
    return {c.forward_s, c.backward_s, PassesOf(c) - 2 * c.weight_s, c.saved_bytes};
  }
  static Partial PartialOf(const StageSums& s) {
    return {s.forward_s, s.backward_s, s.forward_s + s.backward_s - 2 * s.weight_s, s.saved_bytes};
  }

  const ItemCost& Cost(size_t kind, size_t mode) const { return place_.table->layers[kind][mode]; }
  bool Allowed(size_t kind, size_t mode, double cap) const {
    return place_.modes[mode] && Cost(kind, mode).transient_bytes <= cap;
  }

  /// kLayerModes when no mode stays within the cap.
  size_t FastestMode(size_t kind, double cap) const {
    return space::FastestMode(place_.table->layers[kind],
                              [&](size_t mode) { return Allowed(kind, mode, cap); });
  }

  void SetAll(const std::vector<size_t>& modes) {
    for (size_t kind = 0; kind < layers_.size(); ++kind) {
      content_.kinds[kind] = {};
      if (layers_[kind] > 0) content_.kinds[kind].layers[modes[kind]] = layers_[kind];
    }
  }

  stack::StageTimes TimesOfSums() const {
    return stack::TimesOf(*place_.split, *place_.table, sums_);
  }
  bool Fits() {
    return place_.costs->Memory(*place_.split, sums_, place_.in_flight).total() <=
           place_.memory_bytes;
  }

  /// y <= most_y_ leaves this much for t: y >= (m - 1/v) t + e, ZB-H1 (m - 1) t + e.
  void LimitTime() {
    const bool zero_bubble = place_.split->schedule == Schedule::kZeroBubbleH1;
    const double steady = m_ - (zero_bubble ? 1.0 : 1.0 / D(place_.split->virtual_stages));
    const double end = place_.costs->EndOfStepBound(*place_.split, sums_.parameters);
    const double left = most_y_ - end;
    if (left < 0) {
      most_t_ = -1.0;
    } else if (steady > 0) {
      most_t_ = left / steady * (1 + kRounding);
    }
  }

  /// Keeps the content of sums_ (which fits) unless it is useless.
  void Keep() {
    const stack::StageTimes times = TimesOfSums();
    const double y = m_ * times.t - times.z + place_.costs->EndOfStep(*place_.split, sums_);
    if (Useless(times.z, times.z + y)) return;
    std::erase_if(list_.options,
                  [&](const StageOption& o) { return times.z <= o.z && times.z + y <= o.z + o.y; });
    list_.options.push_back({times.z, y, content_.kinds});
  }
  bool Useless(double z, double z_and_y) const {
    return std::any_of(list_.options.begin(), list_.options.end(),
                       [&](const StageOption& o) { return o.z <= z && o.z + o.y <= z_and_y; });
  }

  /// Longer passes that hide more of the end of the step, or (ZB-H1) leave less to the fill.
  void Alternatives() {
    bool weights_differ = false;
    found_ = {PartialOf(sums_)};
    for (ModeCounts& counts : content_.kinds) counts = {};
    StageSums slow = stack::SumOf(content_, *place_.table);
    Partial ends = PartialOf(slow);
    slow.parameters = sums_.parameters;
    for (size_t kind = 0; kind < layers_.size(); ++kind) {
      if (layers_[kind] == 0) continue;
      ItemCost most;
      double least_weight = kInfinity;
      for (size_t mode = 0; mode < kLayerModes; ++mode) {
        if (!place_.modes[mode]) continue;
        const ItemCost& cost = Cost(kind, mode);
        most.forward_s = std::max(most.forward_s, cost.forward_s);
        most.backward_s = std::max(most.backward_s, cost.backward_s);
        most.weight_s = std::max(most.weight_s, cost.weight_s);
        least_weight = std::min(least_weight, cost.weight_s);
      }
      weights_differ = weights_differ || least_weight < most.weight_s;
      slow.forward_s += D(layers_[kind]) * most.forward_s;
      slow.backward_s += D(layers_[kind]) * most.backward_s;
      slow.weight_s += D(layers_[kind]) * most.weight_s;
    }
    slow.saved_bytes = slow.transient_bytes = 0.0;
    least_end_ = place_.costs->EndOfStep(*place_.split, slow);
    const StageOption first = list_.options.front();
    const double first_end = first.z + first.y - m_ * fastest_t_;
    const double window = first_end - least_end_;
    fill_ = weights_differ && place_.split->schedule == Schedule::kZeroBubbleH1;
    if (!fill_ && window <= kRounding * first_end) return;
    // y - e rises with t.
    if (!fill_ && first.y - window > most_y_ * (1 + kRounding)) return;
    nodes_ = 0;
    if (fill_) {
      EnumerateAll(ends);
    } else {
      ByForward();
    }
    if (nodes_ > kMostNodes) list_.slack_s = fill_ ? kInfinity : window;
  }

  /// With equal forward passes the least backward is best, so only modes with a longer forward pass
  /// than the least of their kind are enumerated, the rest is covered.
  void ByForward() {
    flat_ = ModeSets(layers_.size(), place_.modes);
    for (size_t kind = 0; kind < layers_.size(); ++kind) {
      double least = kInfinity;
      for (size_t mode = 0; mode < kLayerModes; ++mode) {
        if (place_.modes[mode]) least = std::min(least, Cost(kind, mode).forward_s);
      }
      for (size_t mode = 0; mode < kLayerModes; ++mode) {
        flat_[kind][mode] = place_.modes[mode] && Cost(kind, mode).forward_s <= least;
      }
    }
    fixed_.assign(layers_.size(), {});
    rest_ = layers_;
    FixLong(0, 0);
  }

  void FixLong(size_t kind, size_t mode) {
    if (++nodes_ > kMostNodes) return;
    if (kind == layers_.size()) return CoverRest();
    if (mode == kLayerModes) return FixLong(kind + 1, 0);
    const bool longer = place_.modes[mode] && !flat_[kind][mode];
    const int64_t most = longer ? rest_[kind] : 0;
    for (int64_t k = 0; k <= most; ++k) {
      fixed_[kind].layers[mode] = k;
      rest_[kind] -= k;
      FixLong(kind, mode + 1);
      rest_[kind] += k;
    }
    fixed_[kind].layers[mode] = 0;
  }

  void CoverRest() {
    // A useful choice has m t + e below that of the fastest, whose z is the least.
    const StageOption& first = list_.options.front();
    double both = first.z + first.y;
    for (const StageOption& o : list_.options) both = std::min(both, o.z + o.y);
    const double below_t = (both - least_end_) / m_;
    auto modes = FastestModes(place_, fixed_, rest_, flat_, below_t);
    if (!modes) return;
    content_.kinds = std::move(*modes);
    sums_ = stack::SumOf(content_, *place_.table);
    Keep();
  }

  void EnumerateAll(Partial ends) {
    LeastRests(ends);
    // The most that may be saved at all, whatever the working set.
    sums_.transient_bytes = 0.0;
    double all = ends.saved;
    for (size_t kind = 0; kind < layers_.size(); ++kind) {
      double most = 0.0;
      for (const ItemCost& c : place_.table->layers[kind]) most = std::max(most, c.saved_bytes);
      all += D(layers_[kind]) * most;
    }
    most_saved_ = MostSaved(place_, sums_, all);
    if (most_saved_ >= all) most_saved_ = kInfinity;
    Enumerate(0, 0, Left(0), ends);
  }

  int64_t Left(size_t kind) const { return kind < layers_.size() ? layers_[kind] : 0; }

  /// Least numbers of a layer over a mode and those behind it; adds whole kinds to `ends`.
  void LeastRests(Partial& ends) {
    const Partial none{kInfinity, kInfinity, kInfinity, kInfinity};
    least_.assign(layers_.size(), {});
    for (size_t kind = 0; kind < layers_.size(); ++kind) {
      if (layers_[kind] == 0) continue;
      Partial least = none;
      for (size_t mode = kLayerModes; mode-- > 0;) {
        if (place_.modes[mode]) {
          const Partial c = PartialOf(Cost(kind, mode));
          least = {std::min(least.forward, c.forward), std::min(least.backward, c.backward),
                   std::min(least.late, c.late), std::min(least.saved, c.saved)};
        }
        least_[kind][mode] = least;
      }
      ends.Add(least_[kind][0], D(layers_[kind]));
    }
  }

  bool Beaten(const Partial& p) const {
    // Equal sums in another order differ by less.
    const double round = kSameSum * (p.forward + p.backward);
    return std::any_of(found_.begin(), found_.end(), [&](const Partial& by) {
      return by.forward <= p.forward + round && by.backward <= p.backward + round &&
             (!fill_ || by.late <= p.late + round);
    });
  }

  void Enumerate(size_t kind, size_t mode, int64_t left, const Partial& p) {
    if (++nodes_ > kMostNodes) return;
    if (p.saved * (1 - kRounding) > most_saved_ || Beaten(p)) return;
    const double exposed = D(place_.split->virtual_stages) * place_.table->exposed_message_s;
    const double t = p.forward + p.backward + exposed;
    const double z = place_.split->schedule == Schedule::kZeroBubbleH1
                         ? std::max(0.0, p.late + exposed - kRounding * t)
                         : t * (1 - kRounding) / D(place_.split->virtual_stages);
    if (Useless(z, (m_ * t + least_end_) * (1 - kRounding))) return;
    if (kind == layers_.size()) {
      sums_ = stack::SumOf(content_, *place_.table);
      if (!Fits()) return;
      found_.push_back(PartialOf(sums_));
      Keep();
      return;
    }
    if (left == 0) return Enumerate(kind + 1, 0, Left(kind + 1), p);
    int64_t most = place_.modes[mode] ? left : 0;
    const bool last = mode + 1 == kLayerModes;
    if (last && most == 0) return;
    const Partial& before = least_[kind][mode];
    for (int64_t k = most; k >= (last ? left : 0); --k) {
      Partial next = p;
      next.Add(before, -D(left));
      if (k > 0) next.Add(PartialOf(Cost(kind, mode)), D(k));
      if (k < left) {
        if (least_[kind][mode + 1].saved == kInfinity) break;  // no mode behind this one
        next.Add(least_[kind][mode + 1], D(left - k));
      }
      content_.kinds[kind].layers[mode] = k;
      Enumerate(kind, mode + 1, left - k, next);
    }
    content_.kinds[kind].layers[mode] = 0;
  }

  const StagePlace& place_;
  const std::vector<int64_t>& layers_;
  double most_y_ = 0.0;
  double m_ = 0.0;
  StageContent content_;
  StageSums sums_;
  std::vector<size_t> base_;
  double most_t_ = kInfinity;
  double fastest_t_ = kInfinity;
  double least_end_ = 0.0;
  std::vector<std::array<Partial, kLayerModes>> least_;
  std::vector<Partial> found_;
  double most_saved_ = 0.0;
  ModeSets flat_;
  std::vector<ModeCounts> fixed_;
  std::vector<int64_t> rest_;
  bool fill_ = false;  ///< z depends on the modes beyond t
  int64_t nodes_ = 0;
  StageOptionList list_;
};

}  // namespace

bool PriceOption(const StagePlace& place, StageOption& option) {
  const StageContent content{option.kinds, place.embedding, place.head};
  const StageSums sums = stack::SumOf(content, *place.table);
  if (place.costs->Memory(*place.split, sums, place.in_flight).total() > place.memory_bytes) {
    return false;
  }
  const stack::StageTimes times = stack::TimesOf(*place.split, *place.table, sums);
  option.z = times.z;
  option.y = D(place.split->micro_batches) * times.t - times.z +
             place.costs->EndOfStep(*place.split, sums);
  return true;
}

StageOptionList OptionsOf(const StagePlace& place, const std::vector<int64_t>& layers,
                          double most_y) {
  return OptionFinder(place, layers, most_y).Find();
}

double LeastMemoryOf(const StagePlace& place, const std::vector<int64_t>& layers,
                     std::vector<ModeCounts>& kinds) {
  return OptionFinder(place, layers, kInfinity).LeastMemory(kinds);
}

}  // namespace meshwright::planner::space
