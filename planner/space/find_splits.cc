#include "planner/space/find_splits.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <tuple>

#include "planner/space/best_of.h"
#include "planner/space/bounds.h"
#include "planner/space/legal.h"
#include "planner/space/reduced.h"
#include "planner/space/shapes.h"

namespace meshwright::planner::space {
namespace {

using stack::ItemTable;
using stack::Split;
using Clock = std::chrono::steady_clock;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;
/// Candidates kept before those that became too slow are dropped.
constexpr size_t kMostCandidates = size_t{1} << 18;
/// Tuples of a shape that are looked at closely before the next shape.
constexpr int kTries = 16;

class Search {
 public:
  Search(const std::vector<DeviceGroup>& groups, const SpaceOptions& options)
      : groups_(groups),
        options_(options),
        bounds_(groups, options),
        inner_(groups, options),
        equal_stages_(groups, options),
        best_(options.top),
        least_(groups.size()) {}

  Result<SpaceResult> Run() {
    begin_ = Clock::now();
    BoundFamilies();
    VisitShapes();
    EvaluateCandidates();
    return Finish();
  }

 private:
  struct BoundShape {
    double seconds = 0.0;
    int64_t gpus = 0;
    Shape shape;
    Shapes* space = nullptr;
    bool family = false;  ///< all shapes that differ from it in ep and expert_tp
  };
  struct Candidate {
    double seconds = 0.0;
    Tuple tuple;
    bool tight = false;  ///< bounded by its own table and by Inner::TimeBound
    bool operator<(const Candidate& other) const {
      return seconds != other.seconds ? seconds < other.seconds : tuple < other.tuple;
    }
  };

  bool TooSlow(double seconds) const { return seconds > best_.worst() * (1 + kRounding); }
  bool OutOfTime() {
    if (options_.time_limit_s <= 0) return false;
    const double spent = std::chrono::duration<double>(Clock::now() - begin_).count();
    late_ = late_ || spent > options_.time_limit_s;
    return late_;
  }

  /// Tables of each group by `least` (LeastItems) or of the split itself; empty when there is none.
  void MinimaOf(const Split& split, bool least, std::vector<TableMinima>& minima) {
    minima.clear();
    for (const DeviceGroup& g : groups_) {
      const ItemTable* table = least ? g.costs->LeastItems(split) : &g.costs->Items(split);
      if (table == nullptr) {
        minima.clear();
        return;
      }
      minima.push_back(bounds_.MinimaOf(*table, bounds_.Modes(split), !least));
    }
  }

  static Split SplitOf(const Shape& shape) {
    Split split;
    split.tp = shape.tp;
    split.cp = shape.cp;
    split.ep = shape.ep;
    split.expert_tp = shape.expert_tp;
    split.micro_batch = shape.micro_batch;
    split.sequence_parallel = shape.sequence_parallel;
    split.format = shape.format;
    return split;
  }

  BoundShape Bound(Shapes* space, int64_t gpus, const Shape& shape, bool family) {
    const bool known = options_.cut_subtrees && LeastPasses(SplitOf(shape), family);
    return {known ? bounds_.ShapeTime(shape, gpus, least_) : 0.0, gpus, shape, space, family};
  }
  /// Of each group; false: not known.
  bool LeastPasses(const Split& split, bool family) {
    const auto over = family ? stack::BoundOver::kAnyExperts : stack::BoundOver::kShape;
    const auto modes = bounds_.Modes(split);
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (!groups_[g].costs->LeastPasses(split, over, modes, &least_[g])) return false;
    }
    return true;
  }

  void BoundFamilies() {
    const auto weight = [&](const Split& split) {
      return equal_stages_.Apply() ? equal_stages_.ModesOf(split) : 1;
    };
    const std::vector<int64_t> counts =
        groups_.size() == 1 ? options_.gpus : std::vector<int64_t>{0};
    for (const int64_t gpus : counts) {
      spaces_.push_back(std::make_unique<Shapes>(groups_, options_, gpus, weight));
      Shapes* space = spaces_.back().get();
      space->ForEachFamily([&](const Shape& family, const Shapes::Count& count) {
        certificate_.shapes += count.shapes;
        shapes_.push_back(Bound(space, gpus, family, true));
      });
    }
  }

  /// Least bound first; a family gives way to its shapes. Few get their turn, so a heap puts no
  /// others in order.
  void VisitShapes() {
    const auto later = [](const BoundShape& a, const BoundShape& b) {
      return std::tie(b.seconds, b.gpus, b.shape) < std::tie(a.seconds, a.gpus, a.shape);
    };
    std::make_heap(shapes_.begin(), shapes_.end(), later);
    while (!shapes_.empty() && !TooSlow(shapes_.front().seconds) && !OutOfTime()) {
      std::pop_heap(shapes_.begin(), shapes_.end(), later);
      const BoundShape s = shapes_.back();
      shapes_.pop_back();
      if (s.family) {
        s.space->ForEachShape(s.shape, [&](const Shape& shape) {
          shapes_.push_back(Bound(s.space, s.gpus, shape, false));
          std::push_heap(shapes_.begin(), shapes_.end(), later);
        });
      } else {
        equal_stages_.Apply() ? VisitEqualStages(s) : VisitTuples(s);
      }
    }
    if (shapes_.empty()) return;
    if (!TooSlow(shapes_.front().seconds)) unproven_ = std::min(unproven_, shapes_.front().seconds);
    for (const BoundShape& s : shapes_) Cut(s);
  }

  /// Counts the tuples of what is cut.
  void Cut(const BoundShape& s) {
    const Shapes::Count count =
        s.family ? s.space->CountOf(s.shape) : Shapes::Count{1, s.space->SplitsOf(s.shape)};
    certificate_.shapes_cut += count.shapes;
    certificate_.configurations += count.splits * GroupOrders(groups_);
    certificate_.bounded += count.splits * GroupOrders(groups_);
  }

  void VisitEqualStages(const BoundShape& s) {
    ForEachSplit(groups_, options_, s.gpus, s.shape, [&](const Split& split) {
      EqualStages::Counts counts;
      std::optional<Solution> found = equal_stages_.Best(split, best_.worst(), counts);
      certificate_.configurations += counts.bounded + counts.evaluated;
      certificate_.bounded += counts.bounded;
      certificate_.bounded_alone += counts.bounded;
      certificate_.evaluated += counts.evaluated;
      certificate_.feasible += counts.feasible;
      if (found) best_.Add(std::move(*found));
    });
  }

  void VisitTuples(const BoundShape& s) {
    std::vector<TableMinima> least;
    MinimaOf(SplitOf(s.shape), true, least);
    const int32_t orders = GroupOrders(groups_);
    const size_t begin = candidates_.size();
    ForEachSplit(groups_, options_, s.gpus, s.shape, [&](const Split& split) {
      certificate_.configurations += orders;
      double seconds = 0.0;
      bool cut = false;
      if (!least.empty()) {
        seconds = bounds_.Time(split, least);
        cut = TooSlow(seconds) || !bounds_.MayFit(split, least);
      }
      if (cut) {
        certificate_.bounded += orders;
        certificate_.bounded_alone += orders;
        return;
      }
      for (int32_t order = 0; order < orders; ++order) {
        candidates_.push_back({seconds, {split, order}, false});
      }
    });
    // A first solution early makes later bounds cut.
    for (int tries = 0; tries < kTries && candidates_.size() > begin && !OutOfTime(); ++tries) {
      const auto first =
          std::min_element(candidates_.begin() + static_cast<ptrdiff_t>(begin), candidates_.end());
      if (first->seconds >= best_.worst()) break;
      Candidate candidate = *first;
      *first = candidates_.back();
      candidates_.pop_back();
      if (!Tighten(candidate)) continue;
      Evaluate(candidate);
      break;
    }
    if (candidates_.size() > most_candidates_) {
      DropSlowCandidates();
      most_candidates_ = std::max(kMostCandidates, 2 * candidates_.size());
    }
  }

  void DropSlowCandidates() {
    const size_t before = candidates_.size();
    std::erase_if(candidates_, [&](const Candidate& c) { return TooSlow(c.seconds); });
    Bounded(before - candidates_.size());
  }
  void Bounded(size_t count) {
    certificate_.bounded += static_cast<int64_t>(count);
    certificate_.bounded_alone += static_cast<int64_t>(count);
  }

  /// Least bound first; a candidate's bound is tightened when its turn comes, and it waits again.
  void EvaluateCandidates() {
    DropSlowCandidates();
    const auto later = [](const Candidate& a, const Candidate& b) { return b < a; };
    std::make_heap(candidates_.begin(), candidates_.end(), later);
    while (!candidates_.empty()) {
      if (TooSlow(candidates_.front().seconds)) break;
      if (OutOfTime()) {
        unproven_ = std::min(unproven_, candidates_.front().seconds);
        break;
      }
      std::pop_heap(candidates_.begin(), candidates_.end(), later);
      Candidate candidate = candidates_.back();
      candidates_.pop_back();
      if (candidate.tight) {
        Evaluate(candidate);
        continue;
      }
      if (!Tighten(candidate)) continue;
      candidates_.push_back(candidate);
      std::push_heap(candidates_.begin(), candidates_.end(), later);
    }
    Bounded(candidates_.size());
  }

  /// False: no solution of the candidate can be among the best.
  bool Tighten(Candidate& candidate) {
    candidate.tight = true;
    const Split& split = candidate.tuple.split;
    MinimaOf(split, false, exact_);
    candidate.seconds = std::max(candidate.seconds, bounds_.Time(split, exact_));
    if (!TooSlow(candidate.seconds) && bounds_.MayFit(split, exact_)) {
      candidate.seconds =
          std::max(candidate.seconds, inner_.TimeBound(candidate.tuple, best_.worst()));
      if (candidate.seconds < kInfinity && !TooSlow(candidate.seconds)) return true;
    }
    Bounded(1);
    return false;
  }

  void Evaluate(const Candidate& candidate) {
    ++certificate_.evaluated;
    const double give_up = best_.worst();
    Inner::Outcome outcome = inner_.Fastest(candidate.tuple, give_up);
    if (outcome.slack_s > 0) {
      const double found = outcome.solution ? outcome.solution->objective_s : give_up;
      unproven_ = std::min(unproven_, std::max(candidate.seconds, found - outcome.slack_s));
    }
    if (!outcome.solution) return;
    ++certificate_.feasible;
    best_.Add(std::move(*outcome.solution));
  }

  Result<SpaceResult> Finish() {
    SpaceResult result;
    result.best = best_.Take();
    // With its own objective as the limit the layers do not depend on what was known before.
    for (Solution& s : result.best) {
      Inner::Outcome again = inner_.Fastest(s.tuple, s.objective_s);
      if (again.solution && again.solution->objective_s <= s.objective_s) {
        s = std::move(*again.solution);
      }
    }
    certificate_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    if (certificate_.configurations == 0) return NothingLegal(groups_, options_);
    if (result.best.empty()) return NothingFound();
    const double best = result.best.front().objective_s;
    certificate_.lower_bound_s = std::min(best, unproven_);
    certificate_.gap =
        certificate_.lower_bound_s > 0 ? best / certificate_.lower_bound_s - 1 : kInfinity;
    result.certificate = certificate_;
    return result;
  }

  Status NothingFound() const {
    if (late_) {
      return Infeasible(fmt::format(
          "search: no split found within the limit of {} s, and none excluded; allow more time",
          options_.time_limit_s));
    }
    return Infeasible(fmt::format(
        "search: none of {} legal splits fits the memory of the devices; WhatWouldFit names the "
        "stage that binds and changes that help",
        certificate_.configurations));
  }

  const std::vector<DeviceGroup>& groups_;
  const SpaceOptions& options_;
  Bounds bounds_;
  Inner inner_;
  EqualStages equal_stages_;
  BestOf best_;
  Certificate certificate_;
  Clock::time_point begin_;
  bool late_ = false;
  double unproven_ = kInfinity;                  ///< least bound of what was neither solved nor cut
  std::vector<std::unique_ptr<Shapes>> spaces_;  ///< by number of devices
  std::vector<BoundShape> shapes_;
  std::vector<stack::LeastSeconds> least_;
  std::vector<TableMinima> exact_;
  std::vector<Candidate> candidates_;
  size_t most_candidates_ = kMostCandidates;
};

}  // namespace

Result<SpaceResult> FindSplits(const std::vector<DeviceGroup>& groups,
                               const SpaceOptions& options) {
  MW_RETURN_IF_ERROR(CheckSpace(groups, options));
  return Search(groups, options).Run();
}

}  // namespace meshwright::planner::space
