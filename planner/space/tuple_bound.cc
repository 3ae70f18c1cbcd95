#include "planner/space/tuple_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "planner/space/stage_place.h"

namespace meshwright::planner::space {
namespace {

using stack::ItemCost;
using stack::kLayerModes;
using stack::Schedule;
using stack::StageSums;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Sums in another order differ by less; bounds give way by this share.
constexpr double kRounding = 1e-9;
constexpr double kFine = 1e-4;  ///< of a stage's time, which the bisection leaves open

double D(int64_t value) {
  return static_cast<double>(value);
}
size_t S(int64_t value) {
  return static_cast<size_t>(value);
}
}  // namespace

TupleBound::TupleBound(const TupleStages& stages, const ModuleSpec& module, double give_up)
    : stages_(stages),
      module_(module),
      table_(*stages.place(0).table),
      give_up_(give_up * (1 + kRounding)),
      most_y_(give_up_ - stages.messages_s() - stages.LeastZ(0, 0)) {}

double TupleBound::Seconds() {
  most_ = stages_.MostByTime(most_y_);
  if (most_.empty()) return kInfinity;
  most_total_ = std::accumulate(most_.begin(), most_.end(), int64_t{0});
  const Hull hull = MakeHull();
  Sums();
  if (stages_.fixed() ? !FixedStagesFit() : !LowerMost(hull)) return kInfinity;
  const double more = LeastRecomputation(hull);
  if (more == kInfinity) return kInfinity;
  const stack::Split& split = stages_.split();
  const double P = D(split.pp), v = D(split.virtual_stages), m = D(split.micro_batches);
  const double work =
      more + fastest_before_.back() + PassesOf(table_.embedding) + PassesOf(table_.head);
  const double mean = work / P + v * table_.exposed_message_s;
  const double full = LeastFullStage() + v * table_.exposed_message_s;
  const double end = LeastEnd();
  const double steady = stages_.Steady();
  if (split.schedule == Schedule::kZeroBubbleH1) {
    // z <= t of the fullest stage leaves (m - 1) t + e beside the sum of z.
    const double sum = stages_.LeastZ(0, 0);
    return stages_.messages_s() +
           std::max(m * mean + end + (1 - 1 / P) * sum, sum + steady * full + end);
  }
  return stages_.messages_s() + P / v * mean + steady * std::max(mean, full) + end;
}

Hull TupleBound::MakeHull() {
  const auto& modes = stages_.place(0).modes;
  std::vector<std::pair<double, double>> points;  // saved bytes, seconds beyond the fastest
  fastest_.assign(module_.layer_kinds.size(), kInfinity);
  std::vector<bool> occurs(module_.layer_kinds.size());
  for (const int kind : module_.layers) occurs[S(kind)] = true;
  for (size_t kind = 0; kind < fastest_.size(); ++kind) {
    if (!occurs[kind]) continue;
    for (size_t mode = 0; mode < kLayerModes; ++mode) {
      if (modes[mode]) {
        fastest_[kind] = std::min(fastest_[kind], PassesOf(table_.layers[kind][mode]));
      }
    }
    for (size_t mode = 0; mode < kLayerModes; ++mode) {
      if (!modes[mode]) continue;
      const ItemCost& c = table_.layers[kind][mode];
      points.emplace_back(c.saved_bytes, PassesOf(c) - fastest_[kind]);
      sets_.emplace_back(c.transient_bytes, c.saved_bytes);
    }
  }
  std::sort(sets_.begin(), sets_.end());
  double saved = kInfinity;
  std::erase_if(sets_, [&](const auto& set) {
    const bool useless = set.second >= saved;
    saved = std::min(saved, set.second);
    return useless;
  });
  return Hull(std::move(points));
}

void TupleBound::Sums() {
  stack::StageContent content;
  content.kinds.resize(module_.layer_kinds.size());
  for (int64_t p = 0; p < stages_.P(); ++p) {
    content.embedding = stages_.place(p).embedding;
    content.head = stages_.place(p).head;
    ends_.push_back(stack::SumOf(content, table_));
  }
  fastest_before_ = {0.0};
  parameters_before_ = {{}};
  for (const int kind : module_.layers) {
    fastest_before_.push_back(fastest_before_.back() + fastest_[S(kind)]);
    stack::ItemParameters sum = parameters_before_.back();
    sum.dense += table_.layer_parameters[S(kind)].dense;
    sum.expert += table_.layer_parameters[S(kind)].expert;
    parameters_before_.push_back(sum);
  }
}

bool TupleBound::FixedStagesFit() const {
  std::vector<int64_t> kinds;
  std::vector<stack::ModeCounts> modes;
  for (int64_t p = 0; p < stages_.P(); ++p) {
    stages_.CountKinds(p, 0, stages_.CountRange(p).first, kinds);
    if (LeastMemoryOf(stages_.place(p), kinds, modes) > stages_.place(p).memory_bytes) return false;
  }
  return true;
}

bool TupleBound::Holds(const Hull& hull, int64_t stage, int64_t n,
                       std::pair<int64_t, int64_t> firsts) const {
  const StagePlace& place = stages_.place(stage);
  const StageSums& ends = ends_[S(stage)];
  const int64_t last = std::min(firsts.second, stages_.layers() - n);
  if (firsts.first > last) return false;
  double fastest = kInfinity;
  for (int64_t first = firsts.first; first <= last; ++first) {
    fastest = std::min(fastest, fastest_before_[S(first + n)] - fastest_before_[S(first)]);
  }
  StageSums sums = LeastSums(stage, n, firsts);
  const double least_t =
      ends.forward_s + ends.backward_s + fastest + D(stages_.v()) * table_.exposed_message_s;
  const double end = place.costs->EndOfStepBound(stages_.split(), sums.parameters);
  const auto in_time = [&](double more) {
    return stages_.Steady() * (least_t + more) * (1 - kRounding) + end <= most_y_;
  };
  if (!in_time(0.0)) return false;
  return std::any_of(sets_.begin(), sets_.end(), [&](const auto& set) {
    const double all = ends.saved_bytes + D(n) * std::max(hull.enough(), set.second);
    sums.transient_bytes = std::max(ends.transient_bytes, set.first);
    const double saved = MostSaved(place, sums, all) - ends.saved_bytes;
    if (saved < D(n) * set.second * (1 - kRounding)) return false;
    return in_time(D(n) * hull.At(saved / D(n) * (1 + kRounding)));
  });
}

bool TupleBound::LowerMost(const Hull& hull) {
  int64_t low = 0, high = 0;  // layers before the stage
  int64_t behind = most_total_;
  most_total_ = 0;
  for (int64_t p = 0; p < stages_.P(); ++p) {
    int64_t& most = most_[S(p)];
    const int64_t least = stages_.CountRange(p).first;
    behind -= most;
    if (!Holds(hull, p, most, {low, high})) {
      int64_t good = least - 1, bad = most;
      while (bad - good > 1) {
        const int64_t middle = good + (bad - good) / 2;
        (Holds(hull, p, middle, {low, high}) ? good : bad) = middle;
      }
      most = good;
    }
    if (most < least) return false;
    most_total_ += most;
    high = std::min(stages_.layers(), high + most);
    low = std::max(low + least, stages_.layers() - behind);
    if (low > high) return false;
  }
  return most_total_ >= stages_.layers();
}

int64_t TupleBound::SureLayers(int64_t stage) const {
  return std::max(stages_.CountRange(stage).first,
                  stages_.layers() - (most_total_ - most_[S(stage)]));
}

double TupleBound::LeastRecomputation(const Hull& hull) const {
  double budget = 0.0;
  for (int64_t p = 0; p < stages_.P(); ++p) {
    const StageSums& ends = ends_[S(p)];
    const int64_t n = SureLayers(p);
    StageSums sums = LeastSums(p, n, {0, stages_.layers()});
    double most = -1.0;
    for (const auto& [transient, least] : sets_) {
      sums.transient_bytes = std::max(ends.transient_bytes, transient);
      const double all = ends.saved_bytes + D(most_[S(p)]) * std::max(hull.enough(), least);
      const double saved = MostSaved(stages_.place(p), sums, all);
      if (saved >= (ends.saved_bytes + D(n) * least) * (1 - kRounding)) {
        most = std::max(most, saved);
      }
    }
    if (most < 0) return kInfinity;
    budget += most - ends.saved_bytes;
  }
  const double layers = D(stages_.layers());
  return layers * hull.At(budget / layers * (1 + kRounding));
}

StageSums TupleBound::LeastSums(int64_t stage, int64_t n,
                                std::pair<int64_t, int64_t> firsts) const {
  StageSums sums = ends_[S(stage)];
  stack::ItemParameters least{kInfinity, kInfinity};
  const int64_t last = std::min(firsts.second, stages_.layers() - n);
  for (int64_t first = firsts.first; first <= last; ++first) {
    const stack::ItemParameters& before = parameters_before_[S(first)];
    const stack::ItemParameters& after = parameters_before_[S(first + n)];
    least.dense = std::min(least.dense, after.dense - before.dense);
    least.expert = std::min(least.expert, after.expert - before.expert);
  }
  // Differences of sums: a little may be lost.
  const stack::ItemParameters& all = parameters_before_.back();
  sums.parameters.dense += std::max(0.0, least.dense - kRounding * all.dense);
  sums.parameters.expert += std::max(0.0, least.expert - kRounding * all.expert);
  return sums;
}

double TupleBound::LeastFullStage() const {
  const int64_t P = stages_.P();
  if (stages_.fixed()) {
    double fullest = 0.0;
    for (int64_t p = 0; p < P; ++p) {
      double seconds = ends_[S(p)].forward_s + ends_[S(p)].backward_s;
      stages_.ForLayers(p, 0, 0, [&](size_t kind) { seconds += fastest_[kind]; });
      fullest = std::max(fullest, seconds);
    }
    return fullest;
  }
  // Whether ranges with no stage above `seconds` hold all layers, each as long as can be.
  const auto possible = [&](double seconds) {
    int64_t used = 0;
    for (int64_t p = 0; p < P; ++p) {
      const double left = seconds - ends_[S(p)].forward_s - ends_[S(p)].backward_s;
      const double until = (fastest_before_[S(used)] + left) * (1 + kRounding);
      const auto at = std::upper_bound(fastest_before_.begin(), fastest_before_.end(), until);
      const int64_t end = (at - fastest_before_.begin()) - 1;
      used = std::max(used, std::min(end, used + stages_.CountRange(p).second));
    }
    return used >= stages_.layers();
  };
  double high = fastest_before_.back() + PassesOf(table_.embedding) + PassesOf(table_.head);
  double low = high / D(P);
  if (possible(low)) return low;
  while (high - low > kFine * high) {
    const double middle = low + (high - low) / 2;
    (possible(middle) ? high : low) = middle;
  }
  return low;
}

double TupleBound::LeastEnd() const {
  int64_t least = stages_.layers();
  for (int64_t p = 0; p < stages_.P(); ++p) least = std::min(least, SureLayers(p));
  StageSums sums;
  sums.parameters = {kInfinity, kInfinity};
  for (const int kind : module_.layers) {
    const stack::ItemParameters& p = table_.layer_parameters[S(kind)];
    sums.parameters.dense = std::min(sums.parameters.dense, p.dense);
    sums.parameters.expert = std::min(sums.parameters.expert, p.expert);
  }
  sums.parameters.dense *= D(least);
  sums.parameters.expert *= D(least);
  // Passes as long as can be hide the most: T >= z + y = m t + e.
  const double most_t = (give_up_ - stages_.messages_s()) / D(stages_.split().micro_batches);
  sums.forward_s = sums.backward_s = most_t;
  stack::StageCosts& costs = *stages_.place(0).costs;
  return std::isfinite(most_t) ? costs.EndOfStep(stages_.split(), sums)
                               : costs.EndOfStepBound(stages_.split(), sums.parameters);
}

}  // namespace meshwright::planner::space
