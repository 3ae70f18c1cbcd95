#include "planner/space/inner.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "planner/space/stage_options.h"
#include "planner/space/tuple_bound.h"
#include "planner/space/tuple_stages.h"

namespace meshwright::planner::space {
namespace {

using stack::kLayerModes;
using stack::LayerMode;
using stack::StageContent;

/// Sums in another order differ by less; bounds give way by this share.
constexpr double kRounding = 1e-9;

size_t S(int64_t value) {
  return static_cast<size_t>(value);
}

/// What layers keep by rule, where the search has no choice.
struct Rule {
  LayerMode rest = LayerMode::kKeep;
  int64_t full = 0;  ///< first layers of a stage that keep their input only
};

std::vector<Rule> RulesOf(ModeRule mode_rule, const TupleStages& stages) {
  std::vector<Rule> rules;
  const auto& modes = stages.place(0).modes;
  for (size_t mode = 0; mode < kLayerModes; ++mode) {
    if (modes[mode]) rules.push_back({static_cast<LayerMode>(mode), 0});
  }
  if (mode_rule == ModeRule::kUniform) return rules;
  if (modes[static_cast<size_t>(LayerMode::kKeep)] &&
      modes[static_cast<size_t>(LayerMode::kFull)]) {
    // With as many as a stage may hold every layer is kFull, which is a rule already.
    const int64_t most = stages.layers() - (stages.P() - 1) * stages.v();
    for (int64_t full = 1; full < most; ++full) rules.push_back({LayerMode::kKeep, full});
  }
  return rules;
}

/// Dynamic programming for one rule, or free modes.
class Program {
 public:
  Program(const std::vector<DeviceGroup>& groups, const TupleStages& stages, const Rule* rule,
          double give_up)
      : groups_(groups),
        stages_(stages),
        rule_(rule),
        limit_(give_up * (1 + kRounding) - stages.messages_s()),
        most_y_(limit_ - stages.LeastZ(0, 0)),  // every other stage's z is part of the sum
        options_(S(stages.P())) {}

  double slack_s() const { return slack_s_; }

  std::optional<Solution> Solve() {
    const int64_t P = stages_.P();
    if (most_y_ < 0 || !Windows()) return std::nullopt;
    fronts_.resize(S(P + 1));
    for (int64_t p = 0; p <= P; ++p) {
      if (high_[S(p)] < low_[S(p)]) return std::nullopt;
      fronts_[S(p)].resize(S(high_[S(p)] - low_[S(p)] + 1));
    }
    At(0, 0).push_back({});
    for (int64_t p = 0; p < P; ++p) {
      for (int64_t used = low_[S(p)]; used <= high_[S(p)]; ++used) {
        if (!At(p, used).empty()) Extend(p, used);
      }
    }
    return Best();
  }

 private:
  struct State {
    double sum = 0.0, most = 0.0;
    int64_t layers = 0;  ///< of the stage that led here
    const StageOption* option = nullptr;
    int32_t previous = 0;
  };
  using Front = std::vector<State>;

  Front& At(int64_t stages, int64_t used) { return fronts_[S(stages)][S(used - low_[S(stages)])]; }

  StageOption ByRule(int64_t stage, int64_t first, int64_t count, size_t kinds) const {
    StageOption option;
    option.kinds.resize(kinds);
    int64_t full = rule_->full;
    stages_.ForLayers(stage, first, count, [&](size_t kind) {
      const LayerMode mode = full-- > 0 ? LayerMode::kFull : rule_->rest;
      ++option.kinds[kind].layers[static_cast<size_t>(mode)];
    });
    return option;
  }

  /// Kept by what the answer depends on: the layers by kind, by position under a rule.
  const StageOptionList& Options(int64_t stage, int64_t first, int64_t count) {
    constexpr size_t kPackedKinds = 4;
    constexpr int kPackedBits = 16;
    stages_.CountKinds(stage, first, count, kinds_);
    uint64_t key = (static_cast<uint64_t>(first) << 32) | static_cast<uint64_t>(count);
    if (stages_.one_kind()) {
      key = static_cast<uint64_t>(count);
    } else if (rule_ == nullptr && kinds_.size() <= kPackedKinds) {
      key = 0;
      for (const int64_t n : kinds_) key = (key << kPackedBits) | static_cast<uint64_t>(n);
    }
    const auto [at, fresh] = options_[S(stage)].try_emplace(key);
    if (!fresh) return at->second;
    const StagePlace& place = stages_.place(stage);
    if (rule_ == nullptr) {
      at->second = OptionsOf(place, kinds_, most_y_);
      slack_s_ = std::max(slack_s_, at->second.slack_s);
    } else {
      StageOption option = ByRule(stage, first, count, kinds_.size());
      if (PriceOption(place, option) && option.y <= most_y_) {
        at->second.options.push_back(std::move(option));
      }
    }
    return at->second;
  }

  /// Layers that may lie before each stage; false: there is no way.
  bool Windows() {
    const int64_t P = stages_.P(), layers = stages_.layers();
    most_ = stages_.MostByTime(most_y_);
    if (most_.empty()) return false;
    int64_t total = 0, least = 0;
    for (int64_t p = 0; p < P; ++p) {
      const int64_t low = stages_.CountRange(p).first;
      int64_t& most = most_[S(p)];
      if (stages_.one_kind()) {
        while (most >= low && Options(p, 0, most).options.empty()) --most;
      }
      if (most < low) return false;
      total += most;
      least += low;
    }
    if (total < layers || least > layers) return false;
    low_.assign(S(P + 1), 0);
    high_.assign(S(P + 1), layers);
    int64_t behind = total, before = 0, least_before = 0, least_behind = least;
    for (int64_t p = 0; p <= P; ++p) {
      low_[S(p)] = std::max(layers - behind, least_before);
      high_[S(p)] = std::min(before, layers - least_behind);
      if (p == P) break;
      const int64_t low = stages_.CountRange(p).first;
      before += most_[S(p)];
      behind -= most_[S(p)];
      least_before += low;
      least_behind -= low;
    }
    return true;
  }

  static bool Useless(const State& s, const State& by) {
    return by.sum <= s.sum && by.sum + by.most <= s.sum + s.most;
  }

  void Extend(int64_t stage, int64_t used) {
    const Front& from = At(stage, used);
    auto [low, high] = stages_.CountRange(stage);
    low = std::max(low, low_[S(stage + 1)] - used);
    high = std::min({high, most_[S(stage)], high_[S(stage + 1)] - used});
    for (int64_t n = low; n <= high; ++n) {
      const StageOptionList& list = Options(stage, used, n);
      const double rest = stage + 1 == stages_.P() ? 0.0 : stages_.LeastZ(stage + 1, used + n);
      Front& to = At(stage + 1, used + n);
      for (const StageOption& option : list.options) {
        for (size_t i = 0; i < from.size(); ++i) {
          const State next{from[i].sum + option.z, std::max(from[i].most, option.y), n, &option,
                           static_cast<int32_t>(i)};
          if (next.sum + rest + next.most > limit_) continue;
          if (std::any_of(to.begin(), to.end(), [&](const State& s) { return Useless(next, s); })) {
            continue;
          }
          std::erase_if(to, [&](const State& s) { return Useless(s, next); });
          to.push_back(next);
        }
      }
    }
  }

  std::optional<Solution> Best() {
    const int64_t P = stages_.P();
    const Front& last = At(P, stages_.layers());
    if (last.empty()) return std::nullopt;
    size_t at = 0;
    for (size_t i = 1; i < last.size(); ++i) {
      if (last[i].sum + last[i].most < last[at].sum + last[at].most) at = i;
    }
    std::vector<int64_t> layers(S(P));
    std::vector<StageContent> stages(S(P));
    int64_t used = stages_.layers();
    for (int64_t p = P - 1; p >= 0; --p) {
      const State& s = At(p + 1, used)[at];
      layers[S(p)] = s.layers;
      stages[S(p)] = {s.option->kinds, p == 0, p == P - 1};
      used -= s.layers;
      at = S(s.previous);
    }
    return PriceSolution(groups_, stages_.tuple(), std::move(layers), std::move(stages));
  }

  const std::vector<DeviceGroup>& groups_;
  const TupleStages& stages_;
  const Rule* rule_;
  double limit_ = 0.0;   ///< of sum and maximum together
  double most_y_ = 0.0;  ///< of a stage
  std::vector<std::unordered_map<uint64_t, StageOptionList>> options_;  ///< by stage
  std::vector<int64_t> most_, low_, high_;
  std::vector<std::vector<Front>> fronts_;  ///< by stages done and layers used, from low_ on
  std::vector<int64_t> kinds_;
  double slack_s_ = 0.0;
};

}  // namespace

Inner::Outcome Inner::Fastest(const Tuple& tuple, double give_up) const {
  const TupleStages stages(groups_, options_, tuple);
  Outcome outcome;
  const auto solve = [&](const Rule* rule) {
    Program program(groups_, stages, rule, give_up);
    std::optional<Solution> found = program.Solve();
    outcome.slack_s = std::max(outcome.slack_s, program.slack_s());
    if (!found) return;
    if (!outcome.solution || found->objective_s < outcome.solution->objective_s) {
      give_up = std::min(give_up, found->objective_s);
      outcome.solution = std::move(found);
    }
  };
  if (options_.mode_rule == ModeRule::kFree) {
    solve(nullptr);
  } else {
    for (const Rule& rule : RulesOf(options_.mode_rule, stages)) solve(&rule);
  }
  return outcome;
}

double Inner::TimeBound(const Tuple& tuple, double give_up) const {
  if (groups_.size() > 1) return 0.0;
  const TupleStages stages(groups_, options_, tuple);
  return TupleBound(stages, groups_.front().costs->module(), give_up).Seconds();
}

}  // namespace meshwright::planner::space
