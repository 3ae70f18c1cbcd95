#include "planner/search/find_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <random>
#include <span>

#include "planner/ir/parallel_for.h"
#include "planner/lower/lower.h"
#include "planner/search/memory.h"
#include "planner/search/records.h"

namespace meshwright::planner {
namespace {

using search::Configuration;
using search::Context;
using search::Evaluator;
using search::Outcome;
using search::Record;

/// Configurations looked at between two updates of the bound: fixed, so that counts do not depend
/// on threads.
constexpr size_t kWave = 16;

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class Search {
 public:
  explicit Search(Context& context, std::vector<Configuration> configurations)
      : context_(context), options_(context.options()) {
    if (options_.shuffle_seed != 0) {
      std::mt19937_64 engine(options_.shuffle_seed);
      std::shuffle(configurations.begin(), configurations.end(), engine);
    }
    for (Configuration& c : configurations) {
      records_.emplace_back();
      records_.back().configuration = c;
    }
  }

  Result<SearchResult> Run() {
    const auto begin = std::chrono::steady_clock::now();
    result_.counts.configurations = static_cast<int64_t>(records_.size());
    std::vector<Status> errors(records_.size());
    ParallelFor(records_.size(), options_.threads,
                [&](size_t i) { errors[i] = Bound(records_[i]); });
    EvaluateInWaves();
    Count();
    const size_t top = static_cast<size_t>(options_.top);
    const auto best = search::BestRecords(records_, options_.predict ? top + kMoreFinalists : top);
    if (best.empty()) {
      for (size_t i = 0; i < records_.size(); ++i) {
        if (records_[i].outcome != Outcome::kNotJoined)
          return search::NothingFits(context_, records_);
      }
      return errors.front();
    }
    const auto simulated = std::chrono::steady_clock::now();
    for (const Record* record : best) {
      if (kept_.size() == top) break;
      MW_RETURN_IF_ERROR(Keep(record));
    }
    MW_RETURN_IF_ERROR(SimulateKept());
    SortKept();
    // The objective is a little below what simulation says where chunks wait for one another:
    // whatever could still win by its objective is simulated too.
    for (size_t i = top; i < best.size() && MayWin(*best[i]);) {
      const size_t kept = kept_.size();
      for (const size_t wave = i + kSimulatedAtOnce; i < std::min(wave, best.size()); ++i) {
        if (!MayWin(*best[i]) || !WithinBudget(*best[i])) break;
        MW_RETURN_IF_ERROR(Keep(best[i]));
      }
      if (kept_.size() == kept) break;
      std::vector<Kept*> more;
      for (size_t k = kept; k < kept_.size(); ++k) more.push_back(&kept_[k]);
      MW_RETURN_IF_ERROR(SimulateAll(more));
      SortKept();
    }
    if (kept_.size() > top) kept_.resize(top);
    // The best plan is one that was simulated.
    while (!kept_.front().simulated) {
      MW_RETURN_IF_ERROR(Simulate(kept_.front()));
      SortKept();
    }
    MW_RETURN_IF_ERROR(Confirm(kept_.front()));
    result_.counts.simulation_seconds = SecondsSince(simulated);
    Tell();
    MakeFront();
    result_.counts.seconds = SecondsSince(begin);
    return std::move(result_);
  }

 private:
  struct Kept {
    FoundPlan found;
    const Record* record = nullptr;
    double time_s = 0.0;
    bool simulated = false;
  };

  Status Bound(Record& record) {
    const auto placed = context_.PlacedFor(record.configuration);
    if (!placed.ok()) {
      record.outcome = Outcome::kNotJoined;
      return placed.status();
    }
    Evaluator evaluator(context_, record.configuration, *placed);
    record.least_bytes = evaluator.ParameterBound();
    if (record.least_bytes <= context_.LargestLimit()) {
      record.least_bytes = evaluator.MemoryBound();
    }
    if (record.least_bytes > context_.LargestLimit()) {
      record.outcome = Outcome::kMemoryBound;
      return Status::Ok();
    }
    record.seconds = evaluator.TimeBound();
    return Status::Ok();
  }

  void Evaluate(Record& record, double worse_than) {
    const auto placed = context_.PlacedFor(record.configuration);
    MW_CHECK(placed.ok());
    Evaluator evaluator(context_, record.configuration, *placed);
    record.solution = evaluator.Fastest(worse_than);
    if (record.solution) {
      record.outcome = Outcome::kFeasible;
      record.seconds = record.solution->parts.total;
    } else {
      // A split that fits may have been given up as too slow.
      const bool slow = worse_than < kNoBound && evaluator.Fits();
      record.outcome = slow ? Outcome::kTimeBound : Outcome::kNoSplit;
      if (slow) record.seconds = std::max(record.seconds, worse_than);
    }
  }

  void EvaluateInWaves() {
    std::vector<Record*> open;
    for (Record& r : records_) {
      if (r.outcome == Outcome::kUnknown) open.push_back(&r);
    }
    std::sort(open.begin(), open.end(), [](const Record* a, const Record* b) {
      return a->seconds != b->seconds ? a->seconds < b->seconds
                                      : a->configuration < b->configuration;
    });
    for (size_t begin = 0; begin < open.size(); begin += kWave) {
      const double worst = WorstKept();
      const size_t count = std::min(kWave, open.size() - begin);
      ParallelFor(count, options_.threads, [&](size_t i) {
        Record& r = *open[begin + i];
        const double bound = options_.front ? std::max(worst, Dominating(r)) : worst;
        if (r.seconds > bound) {
          r.outcome = Outcome::kTimeBound;
        } else {
          ++evaluated_;
          Evaluate(r, bound);
        }
      });
      if (options_.front) Stand({open.begin() + static_cast<int64_t>(begin), count});
    }
  }

  /// Objective beyond which some plan so far is faster than the record and no larger than it can be
  /// at best.
  double Dominating(const Record& record) const {
    const auto smaller =
        std::find_if(least_bytes_.begin(), least_bytes_.end(),
                     [&](const auto& point) { return point.second <= record.least_bytes; });
    return smaller == least_bytes_.end() ? kNoBound : smaller->first;
  }

  /// Adds what a wave found to `least_bytes_`.
  void Stand(std::span<Record* const> wave) {
    for (const Record* r : wave) {
      if (!r->solution) continue;
      const int64_t bytes = r->solution->peak();
      auto at = least_bytes_.upper_bound(r->seconds);
      if (at != least_bytes_.begin() && std::prev(at)->second <= bytes) continue;
      while (at != least_bytes_.end() && at->second >= bytes) at = least_bytes_.erase(at);
      least_bytes_[r->seconds] = bytes;
    }
  }

  /// Objective beyond which nothing is kept: of the last of the best plans so far, and what
  /// simulation may turn round.
  double WorstKept() const {
    const auto best = search::BestRecords(records_, static_cast<size_t>(options_.top));
    if (best.size() < static_cast<size_t>(options_.top)) return kNoBound;
    return best.back()->seconds * (options_.predict ? kSimulationSlack : 1.0);
  }

  void Count() {
    SearchCounts& counts = result_.counts;
    counts.evaluated = evaluated_;
    for (const Record& r : records_) {
      if (r.outcome == Outcome::kMemoryBound) ++counts.bounded_by_memory;
      if (r.outcome == Outcome::kTimeBound) ++counts.bounded_by_time;
      if (r.outcome == Outcome::kFeasible) ++counts.feasible;
    }
  }

  void SortKept() {
    std::stable_sort(kept_.begin(), kept_.end(),
                     [](const Kept& a, const Kept& b) { return a.time_s < b.time_s; });
  }

  Status Keep(const Record* record) {
    FoundPlan found;
    MW_ASSIGN_OR_RETURN(found.plan, search::PlanOf(context_, *record));
    found.objective_s = record->solution->parts.total;
    found.memory = record->solution->memory;
    kept_.push_back({std::move(found), record});
    return Status::Ok();
  }

  /// Whether there is time to simulate it; takes that time. The first always has it.
  bool WithinBudget(const Record& record) {
    const int64_t ops = record.configuration.SimulatedOpsOf(context_.module().layer_count());
    if (simulated_ops_ > 0 && simulated_ops_ + ops > kMostSimulatedOps) return false;
    simulated_ops_ += ops;
    return true;
  }

  bool MayWin(const Record& record) const { return record.seconds < kept_.front().time_s; }

  Status SimulateAll(const std::vector<Kept*>& chosen) {
    std::vector<Status> errors(chosen.size());
    ParallelFor(chosen.size(), options_.threads,
                [&](size_t i) { errors[i] = Simulate(*chosen[i]); });
    for (const Status& status : errors) MW_RETURN_IF_ERROR(status);
    return Status::Ok();
  }

  /// For those without time the objective stands, as far off as it is for the first.
  Status SimulateKept() {
    std::vector<Kept*> chosen;
    for (Kept& k : kept_) {
      if (WithinBudget(*k.record)) chosen.push_back(&k);
    }
    MW_RETURN_IF_ERROR(SimulateAll(chosen));
    for (Kept& k : kept_) {
      if (!k.simulated) k.time_s = k.found.objective_s / (1 + kept_.front().found.gap);
    }
    return Status::Ok();
  }

  Status Simulate(Kept& k) {
    k.simulated = true;
    k.time_s = k.found.objective_s;  // without simulation its order stands
    if (!options_.predict) return Status::Ok();
    auto prediction = options_.predict(k.found.plan);
    if (!prediction.ok()) {
      return prediction.status().WithContext("simulating " + ShortName(k.found.plan));
    }
    k.found.plan.prediction = std::move(prediction).value();
    const double time = k.found.plan.prediction.step_time_s;
    if (time <= 0) return Status::Ok();
    k.time_s = time;
    k.found.gap = k.found.objective_s / time - 1;
    return Status::Ok();
  }

  Status Confirm(Kept& k) {
    if (!options_.confirm) return Status::Ok();
    MW_ASSIGN_OR_RETURN(k.found.plan.prediction, options_.confirm(k.found.plan));
    k.time_s = k.found.plan.prediction.step_time_s;
    k.found.gap = k.found.objective_s / k.time_s - 1;
    return Status::Ok();
  }

  void Tell() {
    Plan& winner = kept_.front().found.plan;
    const Record& record = *kept_.front().record;
    winner.reasons = search::ReasonsFor(context_, record, records_, winner);
    if (options_.predict) {
      winner.reasons.push_back(fmt::format(
          "objective {:.4g} s, simulated {:.4g} s: the search's estimate is {:+.1f} % off",
          kept_.front().found.objective_s, winner.prediction.step_time_s,
          100 * kept_.front().found.gap));
    }
    for (Kept& k : kept_) {
      k.found.plan.warnings = search::WarningsFor(context_, *k.record);
      const std::string rings = search::WarningOfRings(k.found.plan);
      if (!rings.empty()) k.found.plan.warnings.push_back(rings);
    }
    for (size_t i = 1; i < kept_.size(); ++i) {
      std::string why = search::WhyItLost(record, *kept_[i].record);
      if (options_.predict && !kept_[i].simulated) why += "; by the objective, not simulated";
      winner.runners_up.push_back(
          {search::NameOf(kept_[i].record->configuration), kept_[i].time_s, std::move(why)});
    }
    for (Kept& k : kept_) result_.plans.push_back(std::move(k.found));
  }

  void MakeFront() {
    std::vector<const Record*> feasible = search::BestRecords(records_, records_.size());
    int64_t least = INT64_MAX;
    for (const Record* r : feasible) {  // by time
      if (r->solution->peak() >= least) continue;
      least = r->solution->peak();
      result_.front.push_back(
          {search::NameOf(r->configuration), r->seconds, least, context_.gpus()});
    }
  }

  static constexpr double kNoBound = 1e300;
  static constexpr size_t kMoreFinalists = 20;
  static constexpr size_t kSimulatedAtOnce =
      4;  ///< fixed, so that results do not depend on threads
  /// Simulation of plans with many layers, micro-batches and chunks takes seconds: beyond a few of
  /// them the objective has to do.
  static constexpr int64_t kMostSimulatedOps = 12'000'000;
  static constexpr double kSimulationSlack = 1.05;
  Context& context_;
  const SearchOptions& options_;
  std::vector<Record> records_;
  std::vector<Kept> kept_;
  std::map<double, int64_t> least_bytes_;  ///< seconds -> fewest bytes of a plan as fast; falls
  std::atomic<int64_t> evaluated_{0};
  int64_t simulated_ops_ = 0;
  SearchResult result_;
};

/// Layers that the user names must be those of the model.
bool LayersFit(const ModuleSpec& module, const SearchOptions& options) {
  if (options.layers.empty()) return true;
  return std::all_of(options.layers.begin(), options.layers.end(),
                     [&](int64_t n) { return n >= 1 && n <= module.layer_count(); }) &&
         std::accumulate(options.layers.begin(), options.layers.end(), int64_t{0}) ==
             module.layer_count();
}

/// Largest tensor group whose traffic copy engines carry beside products: NCCL there gets half of
/// its rate, and chunks gained 0.4 % at most (2 x H200, cost_models/h200_runs.md).
int64_t MostOverlapped(const topologies::Cluster& cluster, const cost::DeviceProfile& profile) {
  const bool carried = profile.gpu && cost::PeersReach(*profile.gpu);
  return carried ? cluster.max_devices_per_host() : 1;
}

}  // namespace

Result<SearchResult> FindPlans(const ModelSpec& model, const topologies::Cluster& cluster,
                               const cost::CostModel& costs, const SearchOptions& options) {
  MW_RETURN_IF_ERROR(search::CheckOptions(model, options));
  const ModuleSpec& module = model.modules.front();
  Plan asked;  // what CheckSupported looks at
  asked.model = model;
  asked.modules.emplace_back();
  asked.modules.front().module = module.name;
  asked.modules.front().cp = options.cp.value_or(1);
  asked.modules.front().ep = options.ep.value_or(1);
  MW_RETURN_IF_ERROR(CheckSupported(asked));
  const int64_t gpus = options.gpus > 0 ? options.gpus : cluster.device_count();
  const int64_t sequence = options.sequence > 0 ? options.sequence : module.max_positions;
  topologies::Cluster used = cluster;
  if (gpus > cluster.device_count()) {
    MW_ASSIGN_OR_RETURN(used, cluster.WithDevices(gpus));
  }
  std::vector<Configuration> configurations =
      search::Enumerate(module, options, gpus, sequence, MostOverlapped(used, costs.profile()));
  if (configurations.empty() || !LayersFit(module, options) ||
      (module.max_positions > 0 && sequence > module.max_positions)) {
    return search::WhyNoneIsLegal(model, options, gpus, sequence);
  }
  Context context(model, used, costs, options, gpus, sequence);
  return Search(context, std::move(configurations)).Run();
}

}  // namespace meshwright::planner
