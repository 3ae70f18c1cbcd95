// The search of the whole space finds what trying everything finds; bounds are bounds.
#include "tests/planner/space_brute_force.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "planner/space/bounds.h"
#include "planner/space/find_splits.h"
#include "planner/space/shapes.h"
#include "tests/planner/space_cases.h"

namespace meshwright::planner::space {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t Wanted(int64_t usual, int64_t thorough) {
  return std::getenv("MESHWRIGHT_LONG") != nullptr ? thorough : usual;
}

/// With less memory than the fastest split needs.
void Tighten(Dice& dice, const SpaceResult& free, SpaceCase& c) {
  const Solution& best = free.best.front();
  for (size_t g = 0; g < c.groups.size(); ++g) {
    double peak = 0.0;
    for (size_t p = 0; p < best.memory.size(); ++p) {
      if (best.groups[p] == static_cast<int32_t>(g)) peak = std::max(peak, best.memory[p].total());
    }
    c.groups[g].memory_bytes =
        peak * static_cast<double>(dice.Pick({25, 40, 60, 80, 95, 100})) / 100;
  }
}

/// Configurations by their definition: tuples, and modes of them where all layers share one.
int64_t ConfigurationsOf(const SpaceCase& c, const std::map<Tuple, double>& all) {
  const ModuleSpec& module = c.groups.front().costs->module();
  const bool one_kind = std::all_of(module.layers.begin(), module.layers.end(),
                                    [&](int k) { return k == module.layers.front(); });
  if (c.options.mode_rule != ModeRule::kUniform || !c.options.even_layers || !one_kind ||
      c.groups.size() > 1) {
    return static_cast<int64_t>(all.size());
  }
  int64_t count = 0;
  for (const auto& [tuple, seconds] : all) {
    for (size_t mode = 0; mode < 4; ++mode) {
      count += c.options.modes[mode] &&
               (mode != 3 || tuple.split.pp == 1 || c.options.offload_in_pipelines);
    }
  }
  return count;
}

void ExpectEqual(const SpaceResult& found, const std::map<Tuple, double>& all) {
  std::vector<std::pair<double, Tuple>> best;
  for (const auto& [tuple, seconds] : all) {
    if (seconds < kInfinity) best.emplace_back(seconds, tuple);
  }
  std::sort(best.begin(), best.end());
  for (size_t i = 0; i < found.best.size(); ++i) {
    const Solution& s = found.best[i];
    ASSERT_LT(i, best.size());
    ASSERT_NEAR(s.objective_s, best[i].first, 1e-9 * best[i].first)
        << "rank " << i << ": found " << ShortName(s.tuple.split) << ", brute force "
        << ShortName(best[i].second.split) << " with which the search could have had "
        << (all.contains(s.tuple) ? all.at(s.tuple) : -1.0);
    ASSERT_TRUE(all.contains(s.tuple));
    EXPECT_NEAR(s.objective_s, all.at(s.tuple), 1e-9 * s.objective_s);
  }
}

TEST(SpaceBruteForce, FindsWhatTryingEverythingFinds) {
  const int64_t wanted = Wanted(700, 2000);
  Dice dice(11);
  int64_t feasible = 0, infeasible = 0, illegal = 0, mixed = 0, experts = 0, tuples = 0;
  for (int64_t n = 0; feasible + infeasible < wanted; ++n) {
    ASSERT_LT(n, 10 * wanted);
    SCOPED_TRACE("case " + std::to_string(n));
    SpaceCase c = RandomSpaceCase(dice);
    const auto free = FindSplits(c.groups, c.options);
    if (free.ok() && dice.Between(0, 3) > 0) Tighten(dice, *free, c);
    const auto found = FindSplits(c.groups, c.options);
    const std::map<Tuple, double> all = BruteForce(c.groups, c.options).Run();
    tuples += static_cast<int64_t>(all.size());
    const auto fits = std::count_if(all.begin(), all.end(),
                                    [](const auto& entry) { return entry.second < kInfinity; });
    ASSERT_EQ(found.ok(), fits > 0) << found.status().message();
    if (!found.ok()) {
      EXPECT_EQ(found.status().code(), StatusCode::kInfeasible);
      ++(all.empty() ? illegal : infeasible);
      continue;
    }
    ++feasible;
    mixed += c.groups.size() > 1;
    experts += Divisibility(c.groups[0].costs->module(), 1).experts();
    ASSERT_EQ(found->best.size(), std::min(c.options.top, static_cast<size_t>(fits)));
    ExpectEqual(*found, all);
    if (testing::Test::HasFatalFailure()) return;
    const Certificate& k = found->certificate;
    EXPECT_EQ(k.configurations, ConfigurationsOf(c, all));
    EXPECT_EQ(k.configurations, k.bounded + k.evaluated);
    EXPECT_LE(k.lower_bound_s, found->best.front().objective_s);
    EXPECT_EQ(k.gap, 0.0);
    for (const Solution& s : found->best) {
      for (size_t p = 0; p < s.memory.size(); ++p) {
        EXPECT_LE(s.memory[p].total(), c.groups[static_cast<size_t>(s.groups[p])].memory_bytes);
      }
    }
  }
  EXPECT_GT(feasible, wanted / 3);
  EXPECT_GT(infeasible, wanted / 50);
  EXPECT_GT(mixed, wanted / 30);
  EXPECT_GT(experts, wanted / 10);
  RecordProperty("illegal", static_cast<int>(illegal));
  RecordProperty("tuples", static_cast<int>(tuples));
}

TEST(SpaceBounds, AreNeverAboveTheTrueValue) {
  Dice dice(12);
  int64_t checked = 0, unfit = 0, excluded = 0, passes = 0;
  for (int64_t n = 0; n < Wanted(300, 1000); ++n) {
    SpaceCase c = RandomSpaceCase(dice);
    const auto free = FindSplits(c.groups, c.options);
    if (free.ok()) Tighten(dice, *free, c);
    const Bounds bounds(c.groups, c.options);
    Inner inner(c.groups, c.options);
    for (const auto& [tuple, seconds] : BruteForce(c.groups, c.options).Run()) {
      const stack::Split& s = tuple.split;
      for (const double give_up : {seconds, 1.5 * seconds, kInfinity}) {
        const double bound = inner.TimeBound(tuple, give_up);
        if (seconds < kInfinity) {
          EXPECT_LE(bound, seconds * (1 + 1e-9)) << ShortName(s) << " " << give_up;
        } else {
          excluded += bound == kInfinity ? 1 : 0;
        }
      }
      const Shape shape{s.tp,    s.cp, s.ep, s.expert_tp, s.micro_batch, s.sequence_parallel,
                        s.format};
      for (const auto over : {stack::BoundOver::kShape, stack::BoundOver::kAnyExperts}) {
        std::vector<stack::LeastSeconds> least(c.groups.size());
        bool known = true;
        for (size_t g = 0; g < c.groups.size(); ++g) {
          known = c.groups[g].costs->LeastPasses(s, over, bounds.Modes(s), &least[g]) && known;
        }
        if (!known || seconds == kInfinity) continue;
        ++passes;
        EXPECT_LE(bounds.ShapeTime(shape, s.ranks(), least), seconds * (1 + 1e-12));
      }
      for (const bool exact : {true, false}) {
        std::vector<TableMinima> minima;
        for (const DeviceGroup& g : c.groups) {
          const stack::ItemTable* table = exact ? &g.costs->Items(s) : g.costs->LeastItems(s);
          if (table != nullptr) minima.push_back(bounds.MinimaOf(*table, bounds.Modes(s), exact));
        }
        if (minima.empty()) continue;
        ++checked;
        const bool fits = bounds.MayFit(s, minima);
        unfit += fits ? 0 : 1;
        if (seconds == kInfinity) continue;
        EXPECT_TRUE(fits) << ShortName(s);
        EXPECT_LE(bounds.Time(s, minima), seconds * (1 + 1e-12)) << ShortName(s);
        const std::vector<stack::LeastSeconds> of_table(minima.begin(), minima.end());
        EXPECT_LE(bounds.ShapeTime(shape, s.ranks(), of_table), seconds * (1 + 1e-12));
      }
    }
  }
  EXPECT_GT(checked, 1000);
  EXPECT_GT(passes, 1000);
  EXPECT_GT(unfit, 10);
  EXPECT_GT(excluded, 10);
}

TEST(Space, MoreMemoryIsNeverWorse) {
  Dice dice(13);
  int64_t compared = 0;
  for (int64_t n = 0; n < Wanted(100, 600); ++n) {
    SpaceCase c = RandomSpaceCase(dice);
    const auto free = FindSplits(c.groups, c.options);
    if (!free.ok()) continue;
    const double peak = free->best.front().peak_bytes();
    double before = kInfinity;
    for (const int64_t percent : {30, 45, 60, 75, 90, 100, 150}) {
      for (DeviceGroup& g : c.groups) g.memory_bytes = peak * static_cast<double>(percent) / 100;
      const auto found = FindSplits(c.groups, c.options);
      const double now = found.ok() ? found->best.front().objective_s : kInfinity;
      EXPECT_LE(now, before * (1 + 1e-12));
      compared += before < kInfinity ? 1 : 0;
      before = now;
    }
    EXPECT_NEAR(before, free->best.front().objective_s, 1e-9 * before);
  }
  EXPECT_GT(compared, 100);
}

TEST(Space, EnumeratesWhatTheRulesAllow) {
  Dice dice(14);
  for (int64_t n = 0; n < 200; ++n) {
    SpaceCase c = RandomSpaceCase(dice);
    std::vector<int64_t> counts = c.groups.size() == 1 ? c.options.gpus : std::vector<int64_t>{0};
    for (const int64_t gpus : counts) {
      std::vector<stack::Split> seen;
      Shapes counted(c.groups, c.options, gpus);
      for (const Shape& shape : ShapesOf(c.groups, c.options, gpus)) {
        const size_t before = seen.size();
        ForEachSplit(c.groups, c.options, gpus, shape, [&](const stack::Split& s) {
          EXPECT_TRUE(WhyIllegal(c.groups, c.options, gpus, s).empty()) << ShortName(s);
          seen.push_back(s);
        });
        EXPECT_GT(seen.size(), before);
        EXPECT_EQ(counted.SplitsOf(shape), static_cast<int64_t>(seen.size() - before));
      }
      std::sort(seen.begin(), seen.end());
      EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
    }
  }
}

}  // namespace
}  // namespace meshwright::planner::space
