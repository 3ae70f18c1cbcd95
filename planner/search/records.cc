#include "planner/search/records.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "planner/lower/make_plan.h"
#include "planner/search/memory.h"
#include "topologies/cluster_io.h"

namespace meshwright::planner::search {
namespace {

std::string Percent(double part, double whole) {
  const double tenths = whole > 0 ? std::round(1000 * part / whole) : 0.0;
  return fmt::format("{:.1f} %", tenths == 0 ? 0.0 : tenths / 10);  // no minus before a zero
}

/// One axis of a configuration as text.
struct Axis {
  const char* name;
  std::string (*value)(const Configuration&);
};

const std::vector<Axis>& AllAxes() {
  static const std::vector<Axis> axes = {
      {"tp", [](const Configuration& c) { return std::to_string(c.tp); }},
      {"pp", [](const Configuration& c) { return std::to_string(c.pp); }},
      {"dp", [](const Configuration& c) { return std::to_string(c.dp); }},
      {"vpp", [](const Configuration& c) { return std::to_string(c.virtual_stages); }},
      {"micro-batch", [](const Configuration& c) { return std::to_string(c.micro_batch); }},
      {"sequence parallelism",
       [](const Configuration& c) { return std::string(c.sequence_parallel() ? "on" : "off"); }},
      {"tensor chunks", [](const Configuration& c) { return std::to_string(c.tensor_chunks); }},
      {"zero", [](const Configuration& c) { return ToString(c.sharding); }},
  };
  return axes;
}

/// The best plan with another value of an axis; `exact`: else only a lower bound of its time.
struct Alternative {
  bool legal = false;
  bool fits = false;
  bool exact = true;
  double seconds = 0.0;
  Configuration configuration;
};

/// Configurations that were bounded are evaluated here, most promising first; after kMostTried of
/// them the bound has to do.
Alternative BestOther(Context& context, const Axis& axis, const std::string& mine,
                      const std::vector<Record>& records) {
  constexpr int kMostTried = 100;
  std::vector<const Record*> others;
  Alternative best;
  for (const Record& r : records) {
    if (axis.value(r.configuration) == mine) continue;
    best.legal = true;
    if (r.outcome == Outcome::kFeasible || r.outcome == Outcome::kTimeBound) others.push_back(&r);
  }
  std::sort(others.begin(), others.end(), [](const Record* a, const Record* b) {
    return a->seconds != b->seconds ? a->seconds < b->seconds : a->configuration < b->configuration;
  });
  int tried = 0;
  for (const Record* r : others) {
    if (best.fits && r->seconds >= best.seconds) break;
    double seconds = r->seconds;
    if (r->outcome == Outcome::kTimeBound) {
      if (++tried > kMostTried) {
        return {true, true, false, r->seconds, r->configuration};
      }
      Evaluator evaluator(context, r->configuration, *context.PlacedFor(r->configuration));
      const auto solution = evaluator.Fastest(best.fits ? best.seconds : 1e300);
      if (!solution) continue;
      seconds = solution->parts.total;
    }
    if (!best.fits || seconds < best.seconds) {
      best = {true, true, true, seconds, r->configuration};
    }
  }
  return best;
}

/// "tp 8: the best with another value is tp4 pp8 dp2 ..., +3.1 %".
std::string WhyThisValue(Context& context, const Axis& axis, const Record& winner,
                         const std::vector<Record>& records) {
  const std::string mine = axis.value(winner.configuration);
  const Alternative other = BestOther(context, axis, mine, records);
  if (!other.legal)
    return fmt::format("{} {}: no other value is legal or left free", axis.name, mine);
  if (!other.fits) return fmt::format("{} {}: with any other value nothing fits", axis.name, mine);
  return fmt::format("{} {}: the best with another value is {}, {}{:+.1f} %", axis.name, mine,
                     NameOf(other.configuration), other.exact ? "" : "at least ",
                     100 * (other.seconds / winner.seconds - 1));
}

std::string WhyRecompute(Context& context, const Record& winner, const Plan& plan) {
  const Solution& s = *winner.solution;
  std::string all;
  for (const StageChoice& stage : s.stages) {
    all += (all.empty() ? "" : ", ") + ToString(stage.recompute);
  }
  const bool same = std::all_of(s.stages.begin(), s.stages.end(), [&](const StageChoice& c) {
    return c.recompute == s.stages.front().recompute;
  });
  std::string text = "recompute " + (same ? ToString(s.stages.front().recompute) : all) + ": ";
  if (context.options().recompute) return text + "held";
  Plan without = plan;
  for (size_t p = 0; p < s.stages.size(); ++p) {
    if (s.stages[p].recompute == Recompute::kNone) continue;
    without.modules.front().recompute[p] = Recompute::kNone;
    const int64_t need =
        PlannedMemory(without, 0, static_cast<int64_t>(p)).total() + s.memory[p].outside;
    return text +
           fmt::format("without it stage {} would need {} of {}", p, GiB(need), GiB(s.limits[p]));
  }
  return text + "everything fits without it";
}

std::string WhatBinds(Context& context, const Record& winner) {
  const Solution& s = *winner.solution;
  size_t fullest = 0;
  for (size_t p = 1; p < s.memory.size(); ++p) {
    if (s.memory[p].total() - s.limits[p] > s.memory[fullest].total() - s.limits[fullest])
      fullest = p;
  }
  const ObjectiveParts& t = s.parts;
  const auto placed = context.PlacedFor(winner.configuration);
  const auto crosses = [](const Paths& paths) {
    return std::any_of(paths.begin(), paths.end(), [](const auto& p) { return p.hosts > 1; });
  };
  const bool network = placed.ok() && crosses((*placed)->data);
  return fmt::format(
      "what binds: memory of stage {} at {} of {} ({}); of the step {} is bubble, {} uneven "
      "stages, {} messages between stages, {} end of step (gradients{}, norm, optimizer)",
      fullest, GiB(s.memory[fullest].total()), GiB(s.limits[fullest]),
      Percent(static_cast<double>(s.memory[fullest].total()),
              static_cast<double>(s.limits[fullest])),
      Percent(t.bubble, t.total), Percent(t.imbalance, t.total), Percent(t.messages, t.total),
      Percent(t.end, t.total), network ? " over the network" : "");
}

}  // namespace

std::string GiB(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes < (int64_t{1} << 20)) return fmt::format("{:.1f} KiB", value / 1024.0);
  if (bytes < (int64_t{1} << 30)) return fmt::format("{:.1f} MiB", value / 1048576.0);
  return fmt::format("{:.2f} GiB", value / 1073741824.0);
}

std::vector<const Record*> BestRecords(const std::vector<Record>& records, size_t count) {
  std::vector<const Record*> best;
  for (const Record& r : records) {
    if (r.outcome == Outcome::kFeasible) best.push_back(&r);
  }
  std::sort(best.begin(), best.end(), [](const Record* a, const Record* b) {
    return a->seconds != b->seconds ? a->seconds < b->seconds : a->configuration < b->configuration;
  });
  const auto split_of = [](Configuration c) {
    c.tensor_chunks = 1;
    return NameOf(c);
  };
  const std::string fastest = best.empty() ? "" : split_of(best.front()->configuration);
  std::vector<const Record*> kept;
  std::set<std::string> seen;
  for (const Record* r : best) {
    if (kept.size() == count) break;
    // Of the best split every number of chunks, of others the best.
    const std::string split = split_of(r->configuration);
    if (seen.insert(split == fastest ? NameOf(r->configuration) : split).second) kept.push_back(r);
  }
  return kept;
}

Result<Plan> PlanOf(Context& context, const Record& record) {
  const Configuration& c = record.configuration;
  const SearchOptions& o = context.options();
  SplitRequest r;
  r.tp = c.tp;
  r.pp = c.pp;
  r.dp = c.dp;
  r.virtual_stages = c.virtual_stages;
  r.micro_batch = c.micro_batch;
  r.global_batch = o.global_batch;
  r.sequence = context.sequence();
  r.sequence_parallel = c.sequence_parallel();
  r.tensor_chunks = c.tensor_chunks;
  r.sharding = c.sharding;
  r.dtype = o.dtype;
  r.device = context.cluster().Device(0).kind;
  r.optimizer = o.optimizer;
  r.deterministic = o.deterministic;
  r.vocab_quantum = o.vocab_quantum;
  r.logits_chunk_bytes = o.logits_chunk_bytes;
  r.bucket_elements = o.bucket_elements;
  for (int64_t chunk = 0; chunk < c.virtual_stages; ++chunk) {
    for (const StageChoice& stage : record.solution->stages) {
      r.layers.push_back(stage.chunk_layers[static_cast<size_t>(chunk)]);
    }
  }
  for (const StageChoice& stage : record.solution->stages) r.recompute.push_back(stage.recompute);
  MW_ASSIGN_OR_RETURN(Plan plan, MakePlan(context.model(), r));
  MW_ASSIGN_OR_RETURN(const auto placed, context.PlacedFor(c));
  plan.placement = placed->placement;
  plan.cluster_name = context.cluster().name();
  plan.cluster_text = topologies::ToYaml(context.cluster().spec());
  plan.cluster_fingerprint = context.cluster().Fingerprint();
  MW_RETURN_IF_ERROR(CheckPlan(plan));
  return plan;
}

std::vector<std::string> ReasonsFor(Context& context, const Record& winner,
                                    const std::vector<Record>& records, const Plan& plan) {
  std::vector<std::string> reasons;
  for (const Axis& axis : AllAxes()) {
    reasons.push_back(WhyThisValue(context, axis, winner, records));
  }
  reasons.push_back(WhyRecompute(context, winner, plan));
  const ModulePlan& m = plan.modules.front();
  if (m.kv_copies > 1) {
    reasons.push_back(
        fmt::format("key-value heads: fewer than tp {}, so each is stored on {} ranks and its "
                    "gradients are summed",
                    m.tp, m.kv_copies));
  }
  reasons.push_back(WhatBinds(context, winner));
  if (const auto placed = context.PlacedFor(winner.configuration); placed.ok()) {
    for (const std::string& r : (*placed)->reasons) reasons.push_back("placement: " + r);
  }
  return reasons;
}

std::vector<std::string> WarningsFor(Context& context, const Record& winner) {
  std::vector<std::string> warnings;
  const Configuration& c = winner.configuration;
  if (c.micro_batches < c.pp) {
    warnings.push_back(fmt::format(
        "{} micro-batches are fewer than {} stages: the pipeline idles {:.1f} % of the time; raise "
        "the global batch or lower the micro-batch",
        c.micro_batches, c.pp,
        100.0 * static_cast<double>(c.pp - 1) / static_cast<double>(c.micro_batches + c.pp - 1)));
  }
  const auto placed = context.PlacedFor(c);
  if (!placed.ok()) return warnings;
  for (const cost::PathFacts& path : (*placed)->tensor) {
    if (path.hosts <= 1) continue;
    warnings.push_back(
        fmt::format("tp {}: tensor groups cross {} hosts, so every layer waits for the network",
                    c.tp, path.hosts));
    break;
  }
  return warnings;
}

std::string WarningOfRings(const Plan& plan) {
  const ModulePlan& m = plan.modules.front();
  const bool shifts = m.tp > 2 && m.sequence_parallel && m.tensor_chunks > 1;
  if (!shifts || plan.device != topologies::DeviceKind::kGpu) return "";
  return fmt::format(
      "tensor traffic of {} GPUs beside products is priced as measured between two; runs on more "
      "have not been timed yet; compare with --tensor-chunks 1",
      m.tp);
}

std::string WhyItLost(const Record& winner, const Record& loser) {
  const ObjectiveParts& a = winner.solution->parts;
  const ObjectiveParts& b = loser.solution->parts;
  if (b.total <= a.total)
    return "simulated slower: it meets contention and stalls that the objective leaves out";
  const std::pair<const char*, double> parts[] = {
      {"stage work (recomputation, smaller products, tensor traffic)", b.work - a.work},
      {"uneven stages", b.imbalance - a.imbalance},
      {"bubble", b.bubble - a.bubble},
      {"messages between stages", b.messages - a.messages},
      {"end of step (gradient reduction, optimizer)", b.end - a.end}};
  const auto* most = &parts[0];
  for (const auto& part : parts) {
    if (part.second > most->second) most = &part;
  }
  return fmt::format("{}: {} of the step more", most->first, Percent(most->second, a.total));
}

}  // namespace meshwright::planner::search
