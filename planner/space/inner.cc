#include "planner/space/inner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "planner/lower/make_plan.h"
#include "planner/space/hull.h"

namespace meshwright::planner::space {
namespace {

using stack::kLayerModes;
using stack::LayerMode;
using stack::Schedule;
using stack::StageContent;
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

double Solution::peak_bytes() const {
  double peak = 0.0;
  for (const stack::StageMemory& m : memory) peak = std::max(peak, m.total());
  return peak;
}

Solution PriceSolution(const std::vector<DeviceGroup>& groups, const Tuple& tuple,
                       std::vector<int64_t> layers, std::vector<StageContent> stages) {
  Solution s;
  s.tuple = tuple;
  s.groups = GroupOfStages(groups, tuple);
  s.layers = std::move(layers);
  s.stages = std::move(stages);
  double sum = 0.0, most = -kInfinity, message = 0.0;
  for (int64_t p = 0; p < tuple.split.pp; ++p) {
    stack::StageCosts& costs = *groups[S(s.groups[S(p)])].costs;
    const stack::ItemTable& table = costs.Items(tuple.split);
    const StageSums sums = stack::SumOf(s.stages[S(p)], table);
    const stack::StageTimes times = stack::TimesOf(tuple.split, table, sums);
    sum += times.z;
    most = std::max(most, D(tuple.split.micro_batches) * times.t - times.z +
                              costs.EndOfStep(tuple.split, sums));
    message = std::max(message, table.message_s);
    s.memory.push_back(costs.Memory(tuple.split, sums, stack::InFlight(tuple.split, p)));
  }
  s.objective_s = sum + 2 * D(tuple.split.pp - 1) * message + most;
  return s;
}

/// What one tuple needs again and again.
struct Inner::Setup {
  Tuple tuple;
  std::vector<StagePlace> places;
  double messages_s = 0.0;      ///< 2 (P-1) c
  std::vector<double> least_z;  ///< of layers from n on, without head and messages
  double head_z = 0.0;          ///< the head's and one stage's messages' least share of z
  double stage_z = 0.0;
  double least_layer_s = 0.0;
  std::vector<int64_t> even;       ///< layers of chunks, where they are fixed
  std::vector<int64_t> low, high;  ///< layers before each stage
  std::vector<int64_t> most;       ///< layers a stage can take
  int64_t most_total = 0;
  std::vector<stack::ItemParameters> parameters_before;  ///< of the layers before each
  std::vector<StageSums> ends;                           ///< of each stage's embedding and head
  stack::ItemParameters least_parameters;                ///< of a layer
  std::vector<double> fastest;         ///< seconds of a layer by kind, first device
  std::vector<double> fastest_before;  ///< seconds of the layers before each, first device
  double work_s = 0.0;  ///< all layers in their fastest modes, on the first stage's device
  std::vector<std::unordered_map<uint64_t, StageOptionList>> options;  ///< by stage
  double slack_s = 0.0;
  std::vector<std::vector<Front>> fronts;  ///< by stages done and layers used, from low on

  Front& At(int64_t stages, int64_t used) { return fronts[S(stages)][S(used - low[S(stages)])]; }
  int64_t P() const { return tuple.split.pp; }
  int64_t v() const { return tuple.split.virtual_stages; }
  double LeastZ(int64_t stage, int64_t used) const {
    const double z = least_z[S(used)] + head_z + D(P() - stage) * stage_z;
    return std::max(0.0, z);
  }
};

Inner::Inner(const std::vector<DeviceGroup>& groups, const SpaceOptions& options)
    : groups_(groups),
      options_(options),
      module_(groups.front().costs->module()),
      layers_(module_.layer_count()),
      kind_occurs_(module_.layer_kinds.size()) {
  for (const int kind : module_.layers) kind_occurs_[S(kind)] = true;
  one_kind_ = std::all_of(module_.layers.begin(), module_.layers.end(),
                          [&](int kind) { return kind == module_.layers.front(); });
}

void Inner::Prepare(const Tuple& tuple, Setup& setup) const {
  setup.tuple = tuple;
  const stack::Split& split = setup.tuple.split;
  const std::vector<int32_t> of = GroupOfStages(groups_, tuple);
  std::array<bool, kLayerModes> modes = options_.modes;
  if (split.pp > 1 && !options_.offload_in_pipelines) {
    modes[S(static_cast<int64_t>(LayerMode::kOffload))] = false;
  }
  const bool late = split.schedule == Schedule::kZeroBubbleH1;
  const auto least = [&](const stack::ItemCost& c) {
    return c.forward_s + c.backward_s - (late ? 2 * c.weight_s : 0.0);
  };
  std::vector<double> layer(module_.layer_kinds.size(), kInfinity);
  setup.fastest.resize(layer.size());
  double head = kInfinity, exposed = kInfinity, message = 0.0;
  setup.least_layer_s = kInfinity;
  for (int64_t p = 0; p < split.pp; ++p) {
    const DeviceGroup& group = groups_[S(of[S(p)])];
    StagePlace place;
    place.costs = group.costs;
    place.table =
        p > 0 && of[S(p)] == of[S(p - 1)] ? setup.places.back().table : &group.costs->Items(split);
    place.split = &split;
    place.memory_bytes = group.memory_bytes;
    place.in_flight = stack::InFlight(split, p);
    place.embedding = p == 0;
    place.head = p == split.pp - 1;
    place.modes = modes;
    setup.places.push_back(place);
    if (p > 0 && place.table == setup.places[S(p - 1)].table) continue;
    for (size_t kind = 0; kind < layer.size(); ++kind) {
      for (size_t mode = 0; mode < kLayerModes; ++mode) {
        if (!modes[mode]) continue;
        const stack::ItemCost& c = place.table->layers[kind][mode];
        layer[kind] = std::min(layer[kind], least(c));
        setup.least_layer_s = std::min(setup.least_layer_s, c.forward_s + c.backward_s);
      }
    }
    head = std::min(head, least(place.table->head));
    exposed = std::min(exposed, place.table->exposed_message_s);
    message = std::max(message, place.table->message_s);
  }
  const double v = D(split.virtual_stages);
  setup.messages_s = 2 * D(split.pp - 1) * message;
  setup.head_z = head / v;
  const auto& first = setup.places.front();
  for (size_t kind = 0; kind < layer.size(); ++kind) {
    double fastest = kInfinity;
    for (size_t mode = 0; mode < kLayerModes; ++mode) {
      const stack::ItemCost& c = first.table->layers[kind][mode];
      if (modes[mode]) fastest = std::min(fastest, c.forward_s + c.backward_s);
    }
    setup.fastest[kind] = fastest;
  }
  setup.least_parameters = {kInfinity, kInfinity};
  setup.fastest_before.reserve(module_.layers.size() + 1);
  setup.fastest_before.push_back(0.0);
  for (const int kind : module_.layers) {
    setup.work_s += setup.fastest[S(kind)];
    setup.fastest_before.push_back(setup.work_s);
    const stack::ItemParameters& p = first.table->layer_parameters[S(kind)];
    setup.least_parameters.dense = std::min(setup.least_parameters.dense, p.dense);
    setup.least_parameters.expert = std::min(setup.least_parameters.expert, p.expert);
  }
  setup.stage_z = exposed;
  setup.least_z.assign(S(layers_ + 1), 0.0);
  for (int64_t i = layers_ - 1; i >= 0; --i) {
    setup.least_z[S(i)] = setup.least_z[S(i + 1)] + layer[S(module_.layers[S(i)])] / v;
  }
  if (split.virtual_stages > 1 && !one_kind_) {
    setup.even = EvenLayers(layers_, split.pp * split.virtual_stages);
  }
  setup.options.resize(S(split.pp));
}

std::vector<Inner::Rule> Inner::Rules(const Setup& setup) const {
  std::vector<Rule> rules;
  const auto& modes = setup.places.front().modes;
  for (size_t mode = 0; mode < kLayerModes; ++mode) {
    if (modes[mode]) rules.push_back({static_cast<LayerMode>(mode), 0});
  }
  if (options_.mode_rule == ModeRule::kUniform) return rules;
  if (modes[static_cast<size_t>(LayerMode::kKeep)] &&
      modes[static_cast<size_t>(LayerMode::kFull)]) {
    // With as many as a stage may hold every layer is kFull, which is a rule already.
    const int64_t most = layers_ - (setup.P() - 1) * setup.v();
    for (int64_t full = 1; full < most; ++full) rules.push_back({LayerMode::kKeep, full});
  }
  return rules;
}

Inner::Outcome Inner::Fastest(const Tuple& tuple, double give_up) {
  Outcome outcome;
  Setup setup;
  Prepare(tuple, setup);
  if (options_.mode_rule == ModeRule::kFree) {
    Solve(setup, nullptr, give_up, outcome);
  } else {
    for (const Rule& rule : Rules(setup)) {
      for (auto& cache : setup.options) cache.clear();
      Solve(setup, &rule, give_up, outcome);
      if (outcome.solution) give_up = std::min(give_up, outcome.solution->objective_s);
    }
  }
  outcome.slack_s = setup.slack_s;
  return outcome;
}

std::pair<int64_t, int64_t> Inner::CountRange(const Setup& setup, int64_t stage) const {
  const int64_t P = setup.P(), v = setup.v();
  if (!setup.even.empty()) {
    int64_t n = 0;
    for (int64_t c = 0; c < v; ++c) n += setup.even[S(c * P + stage)];
    return {n, n};
  }
  if (options_.even_layers) return {layers_ / P, layers_ / P};
  return {v, layers_ - (P - 1) * v};
}

template <typename F>
void Inner::ForLayers(const Setup& setup, int64_t stage, int64_t first, int64_t count,
                      const F& f) const {
  if (setup.even.empty()) {
    for (int64_t i = first; i < first + count; ++i) f(S(module_.layers[S(i)]));
    return;
  }
  int64_t begin = 0;
  for (int64_t chunk = 0; chunk < static_cast<int64_t>(setup.even.size()); ++chunk) {
    const int64_t n = setup.even[S(chunk)];
    if (chunk % setup.P() == stage) {
      for (int64_t i = begin; i < begin + n; ++i) f(S(module_.layers[S(i)]));
    }
    begin += n;
  }
}

void Inner::CountKinds(const Setup& setup, int64_t stage, int64_t first, int64_t count,
                       std::vector<int64_t>& kinds) const {
  kinds.assign(module_.layer_kinds.size(), 0);
  if (one_kind_) {
    kinds[S(module_.layers.front())] = count;
    return;
  }
  ForLayers(setup, stage, first, count, [&](size_t kind) { ++kinds[kind]; });
}

StageOption Inner::ByRule(const Setup& setup, const Rule& rule, int64_t stage, int64_t first,
                          int64_t count) const {
  StageOption option;
  option.kinds.resize(module_.layer_kinds.size());
  int64_t full = rule.full;
  ForLayers(setup, stage, first, count, [&](size_t kind) {
    const LayerMode mode = full-- > 0 ? LayerMode::kFull : rule.rest;
    ++option.kinds[kind].layers[static_cast<size_t>(mode)];
  });
  return option;
}

const StageOptionList& Inner::Options(Setup& setup, const Rule* rule, int64_t stage, int64_t first,
                                      int64_t count, double most_y) {
  constexpr size_t kPackedKinds = 4;
  constexpr int kPackedBits = 16;
  std::vector<int64_t> kinds;
  CountKinds(setup, stage, first, count, kinds);
  uint64_t key = (static_cast<uint64_t>(first) << 32) | static_cast<uint64_t>(count);
  if (one_kind_) {
    key = static_cast<uint64_t>(count);
  } else if (rule == nullptr && kinds.size() <= kPackedKinds) {
    key = 0;
    for (const int64_t n : kinds) key = (key << kPackedBits) | static_cast<uint64_t>(n);
  }
  const auto [at, fresh] = setup.options[S(stage)].try_emplace(key);
  if (!fresh) return at->second;
  const StagePlace& place = setup.places[S(stage)];
  if (rule == nullptr) {
    at->second = OptionsOf(place, kinds, most_y);
    setup.slack_s = std::max(setup.slack_s, at->second.slack_s);
  } else {
    StageOption option = ByRule(setup, *rule, stage, first, count);
    if (PriceOption(place, option) && option.y <= most_y) {
      at->second.options.push_back(std::move(option));
    }
  }
  return at->second;
}

double Inner::LeastRecomputation(Setup& setup, double most_y) const {
  const StagePlace& any = setup.places.front();
  std::vector<std::pair<double, double>> points;  // saved bytes, seconds beyond the fastest
  std::vector<std::pair<double, double>> sets;    // working set, saved bytes
  for (size_t kind = 0; kind < module_.layer_kinds.size(); ++kind) {
    if (!kind_occurs_[kind]) continue;
    double fastest = kInfinity;
    for (size_t mode = 0; mode < kLayerModes; ++mode) {
      const stack::ItemCost& c = any.table->layers[kind][mode];
      if (any.modes[mode]) fastest = std::min(fastest, c.forward_s + c.backward_s);
    }
    for (size_t mode = 0; mode < kLayerModes; ++mode) {
      const stack::ItemCost& c = any.table->layers[kind][mode];
      if (!any.modes[mode]) continue;
      points.emplace_back(c.saved_bytes, c.forward_s + c.backward_s - fastest);
      sets.emplace_back(c.transient_bytes, c.saved_bytes);
    }
  }
  std::sort(sets.begin(), sets.end());
  double saved = kInfinity;
  std::erase_if(sets, [&](const auto& set) {
    const bool useless = set.second >= saved;
    saved = std::min(saved, set.second);
    return useless;
  });
  const Hull hull(std::move(points));
  PrepareEnds(setup);
  if (!MostByBoth(setup, sets, hull, most_y)) return kInfinity;
  double budget = 0.0;
  for (int64_t p = 0; p < setup.P(); ++p) {
    const StagePlace& place = setup.places[S(p)];
    const int64_t layers = SureLayers(setup, p);
    double most = -1.0;
    StageSums sums = SumsOf(setup, p, layers, {0, layers_}, 0.0);
    for (const auto& [transient, least] : sets) {
      sums.transient_bytes = std::max(setup.ends[S(p)].transient_bytes, transient);
      sums.saved_bytes = setup.ends[S(p)].saved_bytes;
      const double all = D(setup.most[S(p)]) * std::max(hull.enough(), least) + sums.saved_bytes;
      const double fits = MostSaved(place, sums, all);
      if (fits >= (D(layers) * least + sums.saved_bytes) * (1 - kRounding)) {
        most = std::max(most, fits);
      }
    }
    if (most < 0) return kInfinity;
    budget += most - setup.ends[S(p)].saved_bytes;
  }
  return D(layers_) * hull.At(budget / D(layers_) * (1 + kRounding));
}

void Inner::PrepareEnds(Setup& setup) const {
  StageContent content;
  content.kinds.resize(module_.layer_kinds.size());
  for (const StagePlace& place : setup.places) {
    content.embedding = place.embedding;
    content.head = place.head;
    setup.ends.push_back(stack::SumOf(content, *place.table));
  }
  setup.parameters_before.push_back({});
  for (const int kind : module_.layers) {
    stack::ItemParameters sum = setup.parameters_before.back();
    sum.dense += setup.places.front().table->layer_parameters[S(kind)].dense;
    sum.expert += setup.places.front().table->layer_parameters[S(kind)].expert;
    setup.parameters_before.push_back(sum);
  }
}

bool Inner::FixedStagesFit(const Setup& setup) const {
  std::vector<int64_t> kinds;
  std::vector<stack::ModeCounts> modes;
  for (int64_t p = 0; p < setup.P(); ++p) {
    const StagePlace& place = setup.places[S(p)];
    CountKinds(setup, p, 0, CountRange(setup, p).first, kinds);
    if (LeastMemoryOf(place, kinds, modes) > place.memory_bytes) return false;
  }
  return true;
}

bool Inner::MostByBoth(Setup& setup, const std::vector<std::pair<double, double>>& sets,
                       const Hull& hull, double most_y) const {
  const stack::Split& split = setup.tuple.split;
  if (!setup.even.empty()) return FixedStagesFit(setup);  // no contiguous ranges
  const int64_t P = setup.P();
  const double m = D(split.micro_batches), v = D(setup.v());
  const double steady = split.schedule == Schedule::kZeroBubbleH1 ? m - 1 : m - 1 / v;
  int64_t low = 0, high = 0;  // layers before the stage
  int64_t behind = setup.most_total;
  int64_t total = 0;
  for (int64_t p = 0; p < P; ++p) {
    const StagePlace& place = setup.places[S(p)];
    const StageSums& ends = setup.ends[S(p)];
    const double fixed = ends.forward_s + ends.backward_s + v * place.table->exposed_message_s;
    const auto holds = [&](int64_t n) {
      if (low > layers_ - n) return false;
      double fastest = kInfinity;
      for (int64_t first = low; first <= std::min(high, layers_ - n); ++first) {
        fastest =
            std::min(fastest, setup.fastest_before[S(first + n)] - setup.fastest_before[S(first)]);
      }
      StageSums sums = SumsOf(setup, p, n, {low, high}, 0.0);
      const double end = place.costs->EndOfStepBound(split, sums.parameters);
      if (steady * (fixed + fastest) * (1 - kRounding) + end > most_y) return false;
      return std::any_of(sets.begin(), sets.end(), [&](const auto& set) {
        const double all = ends.saved_bytes + D(n) * std::max(hull.enough(), set.second);
        sums.transient_bytes = std::max(ends.transient_bytes, set.first);
        const double fits = MostSaved(place, sums, all);
        const double saved = fits - ends.saved_bytes;
        if (saved < D(n) * set.second * (1 - kRounding)) return false;
        const double more = D(n) * hull.At(saved / D(n) * (1 + kRounding));
        return steady * (fixed + fastest + more) * (1 - kRounding) + end <= most_y;
      });
    };
    int64_t& most = setup.most[S(p)];
    const int64_t least = CountRange(setup, p).first;
    behind -= most;
    if (most >= least && !holds(most)) {
      int64_t good = least - 1, bad = most;
      while (bad - good > 1) {
        const int64_t middle = good + (bad - good) / 2;
        (holds(middle) ? good : bad) = middle;
      }
      most = good;
    }
    if (most < least) return false;
    total += most;
    high = std::min(layers_, high + most);
    low = std::max(low + least, layers_ - behind);
    if (low > high) return false;
  }
  setup.most_total = total;
  return total >= layers_;
}

int64_t Inner::SureLayers(const Setup& setup, int64_t stage) const {
  return std::max(CountRange(setup, stage).first,
                  layers_ - (setup.most_total - setup.most[S(stage)]));
}

StageSums Inner::SumsOf(const Setup& setup, int64_t stage, int64_t layers,
                        const std::pair<int64_t, int64_t>& firsts, double transient) const {
  StageSums sums = setup.ends[S(stage)];
  stack::ItemParameters least{kInfinity, kInfinity};
  const int64_t last = std::min(firsts.second, layers_ - layers);
  for (int64_t first = firsts.first; first <= last; ++first) {
    const stack::ItemParameters& before = setup.parameters_before[S(first)];
    const stack::ItemParameters& after = setup.parameters_before[S(first + layers)];
    least.dense = std::min(least.dense, after.dense - before.dense);
    least.expert = std::min(least.expert, after.expert - before.expert);
  }
  // Differences of sums: a little may be lost.
  sums.parameters.dense +=
      std::max(0.0, least.dense - kRounding * setup.parameters_before.back().dense);
  sums.parameters.expert +=
      std::max(0.0, least.expert - kRounding * setup.parameters_before.back().expert);
  sums.transient_bytes = std::max(sums.transient_bytes, transient);
  return sums;
}

double Inner::LeastFullStage(const Setup& setup) const {
  const int64_t P = setup.P();
  const stack::ItemTable& table = *setup.places.front().table;
  const auto passes = [](const stack::ItemCost& c) { return c.forward_s + c.backward_s; };
  if (!setup.even.empty()) {
    double fullest = 0.0;
    for (int64_t p = 0; p < P; ++p) {
      double seconds = 0.0;
      ForLayers(setup, p, 0, 0, [&](size_t kind) { seconds += setup.fastest[kind]; });
      if (p == 0) seconds += passes(table.embedding);
      if (p == P - 1) seconds += passes(table.head);
      fullest = std::max(fullest, seconds);
    }
    return fullest;
  }
  // Whether ranges with no stage above `seconds` hold all layers, each as long as can be.
  const auto possible = [&](double seconds) {
    int64_t used = 0;
    for (int64_t p = 0; p < P; ++p) {
      double left = seconds;
      if (p == 0) left -= passes(table.embedding);
      if (p == P - 1) left -= passes(table.head);
      const double until = setup.fastest_before[S(used)] + left;
      const auto at = std::upper_bound(setup.fastest_before.begin(), setup.fastest_before.end(),
                                       until * (1 + kRounding));
      const int64_t end = (at - setup.fastest_before.begin()) - 1;
      used = std::max(used, std::min(end, used + CountRange(setup, p).second));
    }
    return used >= layers_;
  };
  double low = (setup.work_s + passes(table.embedding) + passes(table.head)) / D(P);
  double high = setup.work_s + passes(table.embedding) + passes(table.head);
  if (possible(low)) return low;
  while (high - low > kFine * high) {
    const double middle = low + (high - low) / 2;
    (possible(middle) ? high : low) = middle;
  }
  return low;
}

double Inner::TimeBound(const Tuple& tuple, double give_up) {
  if (groups_.size() > 1) return 0.0;  // bounds.h stands
  Setup setup;
  Prepare(tuple, setup);
  const stack::Split& split = setup.tuple.split;
  const double most_y = give_up * (1 + kRounding) - setup.messages_s - setup.LeastZ(0, 0);
  if (!MostByTime(setup, most_y)) return kInfinity;
  const double more = LeastRecomputation(setup, most_y);
  if (more == kInfinity) return kInfinity;
  const stack::ItemTable& table = *setup.places.front().table;
  const double P = D(split.pp), v = D(split.virtual_stages), m = D(split.micro_batches);
  const double work = more + setup.work_s + table.embedding.forward_s + table.embedding.backward_s +
                      table.head.forward_s + table.head.backward_s;
  const double mean = work / P + v * table.exposed_message_s;
  const bool late = split.schedule == Schedule::kZeroBubbleH1;
  const double steady = late ? m - 1 : m - 1 / v;
  // Ends of the step with passes as long as can be (T >= z + y = m t + e) and the layers that a
  // stage surely has.
  StageSums sums;
  sums.forward_s = sums.backward_s = (give_up * (1 + kRounding) - setup.messages_s) / m;
  int64_t least = layers_;
  for (int64_t p = 0; p < split.pp; ++p) {
    least = std::min(least, SureLayers(setup, p));
  }
  sums.parameters = setup.least_parameters;
  sums.parameters.dense *= D(least);
  sums.parameters.expert *= D(least);
  StagePlace& place = setup.places.front();
  const double end = std::isfinite(sums.forward_s)
                         ? place.costs->EndOfStep(split, sums)
                         : place.costs->EndOfStepBound(split, sums.parameters);
  const double full = LeastFullStage(setup) + v * table.exposed_message_s;
  if (late) {
    // z <= t of the fullest stage leaves (m - 1) t + e beside the sum of z.
    const double sum = setup.LeastZ(0, 0);
    return setup.messages_s +
           std::max(m * mean + end + (1 - 1 / P) * sum, sum + (m - 1) * full + end);
  }
  return setup.messages_s + P / v * mean + steady * std::max(mean, full) + end;
}

bool Inner::MostByTime(Setup& setup, double most_y) const {
  const int64_t P = setup.P();
  const double m = D(setup.tuple.split.micro_batches);
  const bool late = setup.tuple.split.schedule == Schedule::kZeroBubbleH1;
  const double steady = late ? m - 1 : m - 1 / D(setup.v());
  setup.most.assign(S(P), 0);
  setup.most_total = 0;
  for (int64_t p = 0; p < P; ++p) {
    const auto [low, high] = CountRange(setup, p);
    int64_t most = high;
    // y >= steady x t, and t rises with the layers.
    if (steady > 0 && setup.least_layer_s > 0) {
      const double by_time = most_y / (steady * setup.least_layer_s) * (1 + kRounding);
      if (by_time < D(most)) most = static_cast<int64_t>(std::floor(by_time));
    }
    if (most < low) return false;
    setup.most[S(p)] = most;
    setup.most_total += most;
  }
  return setup.most_total >= layers_;
}

bool Inner::Windows(Setup& setup, const Rule* rule, double most_y) {
  const int64_t P = setup.P();
  if (most_y < 0 || !MostByTime(setup, most_y)) return false;
  int64_t total = 0, least = 0;
  for (int64_t p = 0; p < P; ++p) {
    const int64_t low = CountRange(setup, p).first;
    int64_t& most = setup.most[S(p)];
    if (one_kind_) {
      while (most >= low && Options(setup, rule, p, 0, most, most_y).options.empty()) --most;
    }
    if (most < low) return false;
    total += most;
    least += low;
  }
  if (total < layers_ || least > layers_) return false;
  setup.low.assign(S(P + 1), 0);
  setup.high.assign(S(P + 1), layers_);
  int64_t behind = total, before = 0, least_before = 0, least_behind = least;
  for (int64_t p = 0; p <= P; ++p) {
    setup.low[S(p)] = std::max(layers_ - behind, least_before);
    setup.high[S(p)] = std::min(before, layers_ - least_behind);
    if (p == P) break;
    const int64_t low = CountRange(setup, p).first;
    before += setup.most[S(p)];
    behind -= setup.most[S(p)];
    least_before += low;
    least_behind -= low;
  }
  return true;
}

void Inner::Extend(Setup& setup, const Rule* rule, int64_t stage, int64_t used, double most_y,
                   double give_up) {
  const Front& from = setup.At(stage, used);
  auto [low, high] = CountRange(setup, stage);
  low = std::max(low, setup.low[S(stage + 1)] - used);
  high = std::min({high, setup.most[S(stage)], setup.high[S(stage + 1)] - used});
  for (int64_t n = low; n <= high; ++n) {
    const StageOptionList& list = Options(setup, rule, stage, used, n, most_y);
    const double rest = setup.LeastZ(stage + 1, used + n);
    Front& to = setup.At(stage + 1, used + n);
    for (const StageOption& option : list.options) {
      for (size_t i = 0; i < from.size(); ++i) {
        const State next{from[i].sum + option.z, std::max(from[i].most, option.y), n, &option,
                         static_cast<int32_t>(i)};
        const double last = stage + 1 == setup.P() ? 0.0 : rest;
        if (next.sum + last + next.most > give_up) continue;
        const auto useless = [](const State& by, const State& s) {
          return by.sum <= s.sum && by.sum + by.most <= s.sum + s.most;
        };
        if (std::any_of(to.begin(), to.end(), [&](const State& s) { return useless(s, next); })) {
          continue;
        }
        std::erase_if(to, [&](const State& s) { return useless(next, s); });
        to.push_back(next);
      }
    }
  }
}

void Inner::Solve(Setup& setup, const Rule* rule, double give_up, Outcome& outcome) {
  const int64_t P = setup.P();
  const double limit = give_up * (1 + kRounding) - setup.messages_s;
  // Every other stage's z is part of the sum.
  const double most_y = limit - setup.LeastZ(0, 0);
  if (!Windows(setup, rule, most_y)) return;
  setup.fronts.assign(S(P + 1), {});
  for (int64_t p = 0; p <= P; ++p) {
    if (setup.high[S(p)] < setup.low[S(p)]) return;
    setup.fronts[S(p)].resize(S(setup.high[S(p)] - setup.low[S(p)] + 1));
  }
  setup.At(0, 0).push_back({});
  for (int64_t p = 0; p < P; ++p) {
    for (int64_t used = setup.low[S(p)]; used <= setup.high[S(p)]; ++used) {
      if (!setup.At(p, used).empty()) Extend(setup, rule, p, used, most_y, limit);
    }
  }
  const Front& last = setup.At(P, layers_);
  if (last.empty()) return;
  size_t at = 0;
  for (size_t i = 1; i < last.size(); ++i) {
    if (last[i].sum + last[i].most < last[at].sum + last[at].most) at = i;
  }
  std::vector<int64_t> layers(S(P));
  std::vector<StageContent> stages(S(P));
  int64_t used = layers_;
  for (int64_t p = P - 1; p >= 0; --p) {
    const State& s = setup.At(p + 1, used)[at];
    layers[S(p)] = s.layers;
    stages[S(p)] = {s.option->kinds, p == 0, p == P - 1};
    used -= s.layers;
    at = S(s.previous);
  }
  Solution found = PriceSolution(groups_, setup.tuple, std::move(layers), std::move(stages));
  if (!outcome.solution || found.objective_s < outcome.solution->objective_s) {
    outcome.solution = std::move(found);
  }
}

std::optional<Solution> Inner::LeastMemory(const Tuple& tuple) {
  Setup setup;
  Prepare(tuple, setup);
  struct Cell {
    double excess = kInfinity;
    int64_t layers = 0;
    std::vector<stack::ModeCounts> kinds;
  };
  const int64_t P = setup.P();
  std::vector<Rule> rules(1);
  const bool free = options_.mode_rule == ModeRule::kFree;
  if (!free) rules = Rules(setup);
  std::optional<Solution> best;
  double best_excess = kInfinity;
  for (const Rule& rule : rules) {
    std::vector<std::vector<Cell>> cells(S(P + 1), std::vector<Cell>(S(layers_ + 1)));
    cells[0][0].excess = -kInfinity;
    for (int64_t p = 0; p < P; ++p) {
      const StagePlace& place = setup.places[S(p)];
      const auto [low, high] = CountRange(setup, p);
      std::unordered_map<int64_t, Cell> by_count;  // of one kind, a count says all
      for (int64_t used = 0; used <= layers_; ++used) {
        const Cell& from = cells[S(p)][S(used)];
        if (from.excess == kInfinity) continue;
        for (int64_t n = low; n <= std::min(high, layers_ - used); ++n) {
          const int64_t key = one_kind_ ? n : n * (layers_ + 1) + used;
          const auto [at, fresh] = by_count.try_emplace(key);
          if (fresh) {
            std::vector<int64_t> kinds;
            CountKinds(setup, p, used, n, kinds);
            double bytes = 0.0;
            if (free) {
              bytes = LeastMemoryOf(place, kinds, at->second.kinds);
            } else {
              at->second.kinds = ByRule(setup, rule, p, used, n).kinds;
              const StageSums sums =
                  stack::SumOf({at->second.kinds, place.embedding, place.head}, *place.table);
              bytes = place.costs->Memory(*place.split, sums, place.in_flight).total();
            }
            at->second.excess = bytes - place.memory_bytes;
          }
          const double excess = std::max(from.excess, at->second.excess);
          Cell& to = cells[S(p + 1)][S(used + n)];
          if (excess < to.excess) to = {excess, n, at->second.kinds};
        }
      }
    }
    if (cells[S(P)][S(layers_)].excess >= best_excess) continue;
    best_excess = cells[S(P)][S(layers_)].excess;
    std::vector<int64_t> layers(S(P));
    std::vector<StageContent> stages(S(P));
    int64_t used = layers_;
    for (int64_t p = P - 1; p >= 0; --p) {
      const Cell& cell = cells[S(p + 1)][S(used)];
      layers[S(p)] = cell.layers;
      stages[S(p)] = {cell.kinds, p == 0, p == P - 1};
      used -= cell.layers;
    }
    best = PriceSolution(groups_, tuple, std::move(layers), std::move(stages));
  }
  return best;
}

}  // namespace meshwright::planner::space
