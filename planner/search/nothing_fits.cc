// When nothing fits: the split that comes nearest, and changes that were found to fit.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "planner/search/records.h"

namespace meshwright::planner::search {
namespace {

int64_t ExcessOf(const Solution& s) {
  int64_t excess = INT64_MIN;
  for (size_t p = 0; p < s.memory.size(); ++p) {
    excess = std::max(excess, s.memory[p].total() - s.limits[p]);
  }
  return excess;
}

struct Nearest {
  const Record* record = nullptr;
  Solution solution;
  int64_t excess = INT64_MAX;
};

/// The split whose fullest stage exceeds its memory by least. Bounds keep it short.
Nearest FindNearest(Context& context, const std::vector<Record>& records) {
  struct Candidate {
    const Record* record;
    int64_t bound;
  };
  std::vector<Candidate> candidates;
  for (const Record& r : records) {
    if (r.outcome == Outcome::kNotJoined) continue;
    const Evaluator evaluator(context, r.configuration, *context.PlacedFor(r.configuration));
    candidates.push_back({&r, evaluator.ParameterBound()});
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.bound != b.bound ? a.bound < b.bound
                              : a.record->configuration < b.record->configuration;
  });
  Nearest nearest;
  for (const Candidate& c : candidates) {
    const auto hopeless = [&](int64_t bound) {
      return nearest.record != nullptr && bound - context.LargestLimit() >= nearest.excess;
    };
    if (hopeless(c.bound)) break;
    const Configuration& configuration = c.record->configuration;
    Evaluator evaluator(context, configuration, *context.PlacedFor(configuration));
    if (hopeless(evaluator.MemoryBound())) continue;
    auto solution = evaluator.LeastMemory();
    if (!solution) continue;
    const int64_t excess = ExcessOf(*solution);
    if (excess < nearest.excess) nearest = {c.record, std::move(*solution), excess};
  }
  return nearest;
}

/// Tries changes of the options and keeps what was found to fit.
class Changes {
 public:
  explicit Changes(Context& context) : context_(context), asked_(context.options()) {
    asked_.suggest = false;
    asked_.predict = nullptr;
    asked_.top = 1;
    asked_.front = false;
    asked_.gpus = context.gpus();
  }

  std::vector<std::string> Find(int64_t enough_memory) {
    Recomputation();
    SmallerMicroBatch();
    if (asked_.sharding == Sharding::kNone) {
      Try("zero zero1", [](SearchOptions& o) { o.sharding = Sharding::kZero1; });
    }
    ReleaseGrid();
    MoreGpus();
    if (found_.empty()) {
      Try(fmt::format("devices of {}", GiB(enough_memory)),
          [&](SearchOptions& o) { o.memory_limit = Bytes(enough_memory); });
    }
    return found_;
  }

 private:
  template <typename Edit>
  bool Fits(const Edit& edit, std::string* plan) const {
    SearchOptions options = asked_;
    edit(options);
    const auto result = FindPlans(context_.model(), context_.cluster(), context_.costs(), options);
    if (!result.ok()) return false;
    *plan = ShortName(result->plans.front().plan);
    return true;
  }

  template <typename Edit>
  bool Try(const std::string& change, const Edit& edit) {
    std::string plan;
    if (!Fits(edit, &plan)) return false;
    found_.push_back(fmt::format("{} (then {})", change, plan));
    return true;
  }

  void Recomputation() {
    if (!asked_.recompute || *asked_.recompute == Recompute::kFull) return;
    for (const Recompute mode : {Recompute::kSelective, Recompute::kFull}) {
      if (mode <= *asked_.recompute) continue;
      if (Try("recompute " + ToString(mode), [&](SearchOptions& o) { o.recompute = mode; })) return;
    }
  }

  void SmallerMicroBatch() {
    if (!asked_.micro_batch) return;
    for (int64_t size = *asked_.micro_batch - 1; size >= 1; --size) {
      if (*asked_.micro_batch % size != 0) continue;
      if (Try(fmt::format("micro-batch {}", size),
              [&](SearchOptions& o) { o.micro_batch = size; })) {
        return;
      }
    }
  }

  void ReleaseGrid() {
    const auto release = [](SearchOptions& o) {
      o.tp.reset();
      o.pp.reset();
      o.dp.reset();
      o.virtual_stages.reset();
      o.sequence_parallel.reset();
      o.layers.clear();
    };
    if (asked_.tp && Try("another tp", [](SearchOptions& o) {
          o.tp.reset();
          o.dp.reset();
        })) {
      return;
    }
    if ((asked_.pp || !asked_.layers.empty()) && Try("another pp", [](SearchOptions& o) {
          o.pp.reset();
          o.dp.reset();
          o.virtual_stages.reset();
          o.layers.clear();
        })) {
      return;
    }
    if (asked_.tp || asked_.pp || asked_.dp || asked_.virtual_stages || !asked_.layers.empty()) {
      Try("another split into tp, pp and dp", release);
    }
  }

  /// The smallest count of GPUs that fits: whole hosts once there is more than one.
  void MoreGpus() {
    const int64_t host = context_.cluster().max_devices_per_host();
    const int64_t begin = context_.gpus();
    const int64_t step = begin < host ? begin : host;
    // Without a network nothing crosses hosts.
    const bool network = !context_.cluster().spec().fabric.name.empty();
    const int64_t most = network ? kMostGpus : host;
    std::string plan;
    const auto fits = [&](int64_t steps) {
      return Fits(
          [&](SearchOptions& o) {
            o.gpus = begin + steps * step;
            o.dp.reset();
          },
          &plan);
    };
    int64_t low = 0;  // does not fit
    int64_t high = 1;
    while (begin + high * step <= most && !fits(high)) {
      low = high;
      high *= 2;
    }
    if (begin + high * step > most) return;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (fits(middle) ? high : low) = middle;
    }
    if (fits(high)) {
      found_.push_back(fmt::format("{} GPUs (then {})", begin + high * step, plan));
    }
  }

  static constexpr int64_t kMostGpus = 4096;
  Context& context_;
  SearchOptions asked_;
  std::vector<std::string> found_;
};

}  // namespace

Status NothingFits(Context& context, const std::vector<Record>& records) {
  const std::string head =
      fmt::format("model {} on {} GPUs of cluster {}: nothing fits", context.model().name,
                  context.gpus(), context.cluster().name());
  if (!context.options().suggest) return Infeasible(head);
  const Nearest nearest = FindNearest(context, records);
  if (nearest.record == nullptr) return Infeasible(head);
  size_t stage = 0;
  const Solution& s = nearest.solution;
  for (size_t p = 1; p < s.memory.size(); ++p) {
    if (s.memory[p].total() - s.limits[p] > s.memory[stage].total() - s.limits[stage]) stage = p;
  }
  const MemoryBreakdown& m = s.memory[stage];
  const auto changes = Changes(context).Find(s.peak());
  return Infeasible(fmt::format(
      "{}: the nearest split is {} with recompute {}; there stage {} needs {} and its devices have "
      "{}: parameters {}, gradients {}, optimizer {}, saved activations {} ({} in flight), scratch "
      "{}, messages {}, labels {}, context and libraries {}. {}",
      head, NameOf(nearest.record->configuration), ToString(s.stages[stage].recompute), stage,
      GiB(m.total()), GiB(s.limits[stage]), GiB(m.parameters), GiB(m.gradients), GiB(m.optimizer),
      GiB(m.saved), m.slots, GiB(m.scratch), GiB(m.communication), GiB(m.io), GiB(m.outside),
      changes.empty()
          ? std::string("No single change was found that fits: use fewer tokens a sample, "
                        "larger devices or a smaller model")
          : fmt::format("Changes that fit, smallest first: {}", fmt::join(changes, "; "))));
}

}  // namespace meshwright::planner::search
