#include "planner/space/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace meshwright::planner::space {
namespace {

using stack::Split;

SpaceOptions OneBest(SpaceOptions options) {
  options.top = 1;
  return options;
}

/// Whether no other point is as good in all and better in something.
std::vector<FrontPoint> WithoutBeaten(std::vector<FrontPoint> points) {
  const auto beats = [](const FrontPoint& a, const FrontPoint& b) {
    return a.solution.objective_s <= b.solution.objective_s && a.peak_bytes <= b.peak_bytes &&
           a.gpus <= b.gpus &&
           (a.solution.objective_s < b.solution.objective_s || a.peak_bytes < b.peak_bytes ||
            a.gpus < b.gpus);
  };
  std::vector<FrontPoint> front;
  for (const FrontPoint& p : points) {
    if (std::none_of(points.begin(), points.end(),
                     [&](const FrontPoint& by) { return beats(by, p); })) {
      front.push_back(p);
    }
  }
  std::sort(front.begin(), front.end(), [](const FrontPoint& a, const FrontPoint& b) {
    return a.gpus != b.gpus ? a.gpus < b.gpus : a.solution.objective_s < b.solution.objective_s;
  });
  return front;
}

/// One axis: its name, and how to read, hold and exclude the value of a split.
struct Axis {
  const char* name;
  std::function<std::string(const Split&)> text;
  std::function<bool(const Axes&)> set;
  std::function<void(const Split&, Axes&)> take;
  std::function<void(Axes&)> clear;
};

template <typename T, typename ToText>
Axis AxisOf(const char* name, T Split::*member, std::optional<T> Axes::*slot, ToText text) {
  return {name, [=](const Split& s) { return std::string(text(s.*member)); },
          [=](const Axes& axes) { return (axes.*slot).has_value(); },
          [=](const Split& s, Axes& axes) { axes.*slot = s.*member; },
          [=](Axes& axes) { (axes.*slot).reset(); }};
}

const std::vector<Axis>& AllAxes() {
  const auto number = [](int64_t value) { return std::to_string(value); };
  const auto name = [](auto value) { return stack::ToString(value); };
  static const std::vector<Axis> axes = {
      AxisOf("tp", &Split::tp, &Axes::tp, number),
      AxisOf("cp", &Split::cp, &Axes::cp, number),
      AxisOf("ep", &Split::ep, &Axes::ep, number),
      AxisOf("expert tp", &Split::expert_tp, &Axes::expert_tp, number),
      AxisOf("pp", &Split::pp, &Axes::pp, number),
      AxisOf("virtual stages", &Split::virtual_stages, &Axes::virtual_stages, number),
      AxisOf("dp", &Split::dp, &Axes::dp, number),
      AxisOf("micro-batch", &Split::micro_batch, &Axes::micro_batch, number),
      AxisOf("sequence parallelism", &Split::sequence_parallel, &Axes::sequence_parallel,
             [](bool on) { return on ? "on" : "off"; }),
      AxisOf("sharding", &Split::sharding, &Axes::sharding, name),
      AxisOf("schedule", &Split::schedule, &Axes::schedule, name),
      AxisOf("format", &Split::format, &Axes::format, name),
      AxisOf("rank order", &Split::order, &Axes::order, name)};
  return axes;
}

std::vector<DeviceGroup> Scaled(std::vector<DeviceGroup> groups, double share) {
  for (DeviceGroup& g : groups) g.memory_bytes *= share;
  return groups;
}

std::string Gib(double bytes) {
  return fmt::format("{:.1f} GiB", bytes / (1024.0 * 1024.0 * 1024.0));
}

/// The least share of memory, to a hundredth, with which something fits, and the best split there.
std::optional<std::pair<double, Solution>> LeastMemory(const std::vector<DeviceGroup>& groups,
                                                       const SpaceOptions& options) {
  constexpr double kMost = 64.0;  // beyond, another device is no answer
  std::optional<Solution> best;
  const auto fits = [&](double share) {
    auto found = FindSplits(Scaled(groups, share), options);
    if (found.ok()) best = std::move(found->best.front());
    return found.ok();
  };
  double low = 1.0, high = 2.0;
  while (!fits(high)) {
    low = high;
    high *= 2;
    if (high > kMost) return std::nullopt;
  }
  while (high - low > 0.01 * low) {
    const double middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return std::pair{high, std::move(*best)};
}

}  // namespace

double TrainingCost(int64_t gpus, double price_per_gpu_hour, double tokens, double step_s,
                    int64_t global_batch, int64_t sequence) {
  constexpr double kSecondsPerHour = 3600.0;
  const double steps = tokens / (static_cast<double>(global_batch) * static_cast<double>(sequence));
  return static_cast<double>(gpus) * price_per_gpu_hour * steps * step_s / kSecondsPerHour;
}

Result<std::vector<FrontPoint>> ParetoFront(const std::vector<DeviceGroup>& groups,
                                            const SpaceOptions& options,
                                            const FrontOptions& front) {
  if (!(front.memory_share > 0 && front.memory_share < 1)) {
    return InvalidInput(fmt::format(
        "front: memory share {}; give a number between 0 and 1, e.g. 0.97", front.memory_share));
  }
  for (const double value : {front.price_per_gpu_hour, front.tokens}) {
    if (!(value >= 0) || !std::isfinite(value)) {
      return InvalidInput(fmt::format("front: price or tokens {}; 0 or more", value));
    }
  }
  MW_RETURN_IF_ERROR(CheckSpace(groups, options));
  SpaceOptions one = OneBest(options);
  std::vector<FrontPoint> points;
  Status first;
  const std::vector<int64_t> counts = groups.size() == 1 ? options.gpus : std::vector<int64_t>{0};
  for (const int64_t gpus : counts) {
    if (groups.size() == 1) one.gpus = {gpus};
    std::vector<DeviceGroup> within = groups;
    while (true) {
      auto found = FindSplits(within, one);
      if (!found.ok()) {
        if (first.ok() && points.empty()) first = found.status();
        break;
      }
      FrontPoint point{std::move(found->best.front()), 0, 0.0, 0.0};
      point.gpus = point.solution.tuple.split.ranks();
      point.peak_bytes = point.solution.peak_bytes();
      point.cost = TrainingCost(point.gpus, front.price_per_gpu_hour, front.tokens,
                                point.solution.objective_s, options.global_batch,
                                groups.front().costs->sequence());
      for (DeviceGroup& g : within) {
        g.memory_bytes = std::min(g.memory_bytes, point.peak_bytes * front.memory_share);
      }
      points.push_back(std::move(point));
    }
  }
  if (points.empty()) return first;
  return WithoutBeaten(std::move(points));
}

std::vector<RunnerUp> RunnersUp(const std::vector<DeviceGroup>& groups, const SpaceOptions& options,
                                const Solution& winner) {
  std::vector<RunnerUp> all;
  for (const Axis& axis : AllAxes()) {
    if (axis.set(options.held) || axis.set(options.excluded)) continue;
    SpaceOptions other = OneBest(options);
    if (groups.size() == 1) other.gpus = {winner.tuple.split.ranks()};
    axis.take(winner.tuple.split, other.excluded);
    RunnerUp r{axis.name, axis.text(winner.tuple.split), std::nullopt, 0.0, ""};
    auto found = FindSplits(groups, other);
    if (found.ok()) {
      r.other = std::move(found->best.front());
      r.loss = r.other->objective_s / winner.objective_s - 1;
    } else {
      r.reason = found.status().message();
    }
    all.push_back(std::move(r));
  }
  return all;
}

Result<NothingFitsAnswer> WhatWouldFit(const std::vector<DeviceGroup>& groups,
                                       const SpaceOptions& options) {
  MW_RETURN_IF_ERROR(CheckSpace(groups, options));
  SpaceOptions one = OneBest(options);
  auto least = LeastMemory(groups, one);
  if (!least) {
    const auto found = FindSplits(groups, one);
    if (!found.ok()) return found.status().WithContext("even with 64 times the memory");
    return InvalidInput("search: splits fit as it is; nothing has to change");
  }
  NothingFitsAnswer answer;
  answer.needed_share = least->first;
  answer.least = std::move(least->second);
  double worst = -1.0;
  for (size_t p = 0; p < answer.least.memory.size(); ++p) {
    const double limit = groups[static_cast<size_t>(answer.least.groups[p])].memory_bytes;
    const double share = answer.least.memory[p].total() / limit;
    if (share <= worst) continue;
    worst = share;
    answer.stage = static_cast<int64_t>(p);
    answer.limit_bytes = limit;
  }
  const auto attempt = [&](const SpaceOptions& changed, const std::string& text) {
    auto found = FindSplits(groups, changed);
    if (found.ok()) answer.changes.push_back({text, std::move(found->best.front())});
    return found.ok();
  };
  for (const Axis& axis : AllAxes()) {
    if (!axis.set(options.held)) continue;
    SpaceOptions freed = one;
    axis.clear(freed.held);
    auto found = FindSplits(groups, freed);
    if (!found.ok()) continue;
    Solution& s = found->best.front();
    answer.changes.push_back(
        {fmt::format("free {} (then {})", axis.name, axis.text(s.tuple.split)), std::move(s)});
  }
  SpaceOptions modes = one;
  modes.modes.fill(true);
  modes.mode_rule = ModeRule::kFree;
  if (modes.modes != one.modes || modes.mode_rule != one.mode_rule) {
    attempt(modes, "allow every layer to recompute or to offload its activations");
  }
  std::sort(answer.changes.begin(), answer.changes.end(), [](const Change& a, const Change& b) {
    return a.solution.objective_s < b.solution.objective_s;
  });
  if (groups.size() == 1) {
    SpaceOptions more = one;
    const int64_t most = *std::max_element(one.gpus.begin(), one.gpus.end());
    for (const int64_t factor : {2, 4, 8, 16}) {
      more.gpus = {most * factor};
      if (CheckSpace(groups, more).ok() && attempt(more, fmt::format("{} GPUs", most * factor))) {
        break;
      }
    }
  }
  answer.changes.push_back(
      {fmt::format("devices with {}",
                   Gib(answer.least.memory[static_cast<size_t>(answer.stage)].total())),
       answer.least});
  return answer;
}

std::string NothingFitsAnswer::Text() const {
  const stack::StageMemory& m = least.memory[static_cast<size_t>(stage)];
  std::string text = fmt::format(
      "nothing fits: the least that a split needs is {} on stage {} of {} ({}), which has {}: "
      "parameters {}, gradients {}, optimizer {}, activations {}, working set {}, allocator {}, "
      "outside {}",
      Gib(m.total()), stage, ShortName(least.tuple.split), fmt::format("{:.2f} x", needed_share),
      Gib(limit_bytes), Gib(m.parameters), Gib(m.gradients), Gib(m.optimizer), Gib(m.activations),
      Gib(m.transient), Gib(m.reserve), Gib(m.outside));
  for (const Change& c : changes) {
    text += fmt::format("; {} would fit: {}, {:.4g} s a step", c.text,
                        ShortName(c.solution.tuple.split), c.solution.objective_s);
  }
  return text;
}

}  // namespace meshwright::planner::space
