// Brute force for the search of the whole space: all integers for every member of Split, all layer
// ranges, all modes, the objective by its definition. It shares the rules (legal.h) and the prices
// with the search, and no enumeration, bound, dominance or cache.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "planner/lower/make_plan.h"
#include "planner/space/legal.h"
#include "planner/space/space.h"

namespace meshwright::planner::space {

class BruteForce {
 public:
  BruteForce(const std::vector<DeviceGroup>& groups, const SpaceOptions& options)
      : groups_(groups), options_(options), module_(groups.front().costs->module()) {
    one_kind_ = std::all_of(module_.layers.begin(), module_.layers.end(),
                            [&](int k) { return k == module_.layers.front(); });
  }

  /// Legal tuples and the least objective of each (infinite: nothing fits), seconds.
  std::map<Tuple, double> Run() {
    std::vector<int64_t> counts = options_.gpus;
    int64_t total = 0;
    for (const DeviceGroup& g : groups_) total += g.gpus;
    if (groups_.size() > 1) counts = {total};
    for (const int64_t gpus : counts) Splits(gpus);
    return std::move(best_);
  }

 private:
  struct Choice {
    double z = 0.0, y = 0.0;
  };

  void Splits(int64_t gpus) {
    stack::Split s;
    for (s.tp = 1; s.tp <= gpus; ++s.tp) {
      for (s.cp = 1; s.cp * s.tp <= gpus; ++s.cp) {
        for (s.pp = 1; s.pp * s.cp * s.tp <= gpus; ++s.pp) {
          if (gpus % (s.pp * s.cp * s.tp) != 0) continue;
          s.dp = gpus / (s.pp * s.cp * s.tp);
          for (s.micro_batch = 1; s.micro_batch <= options_.global_batch; ++s.micro_batch) {
            if (options_.global_batch % (s.dp * s.micro_batch) != 0) continue;
            s.micro_batches = options_.global_batch / (s.dp * s.micro_batch);
            for (s.ep = 1; s.ep <= gpus; ++s.ep) {
              for (s.expert_tp = 1; s.expert_tp * s.ep <= gpus; ++s.expert_tp) Kinds(s, gpus);
            }
          }
        }
      }
    }
  }

  /// The test rules of parallelism.md in words take long: what they surely refuse goes first.
  bool Hopeless(const stack::Split& s, int format, int schedule) const {
    const auto& formats = options_.formats;
    if (std::find(formats.begin(), formats.end(), static_cast<stack::LinearFormat>(format)) ==
        formats.end()) {
      return true;
    }
    if (s.virtual_stages > 1 &&
        static_cast<stack::Schedule>(schedule) != stack::Schedule::kInterleaved) {
      return true;
    }
    return s.tp * s.cp * s.dp % (s.ep * s.expert_tp) != 0;
  }

  void Kinds(stack::Split s, int64_t gpus) {
    for (const bool sp : {false, true}) {
      for (int sharding = 0; sharding < 4; ++sharding) {
        for (int schedule = 0; schedule < 3; ++schedule) {
          for (int format = 0; format < 6; ++format) {
            for (int order = 0; order < 2; ++order) {
              for (s.virtual_stages = 1; s.virtual_stages <= module_.layer_count();
                   ++s.virtual_stages) {
                s.sequence_parallel = sp;
                s.sharding = static_cast<stack::ShardingLevel>(sharding);
                s.schedule = static_cast<stack::Schedule>(schedule);
                s.format = static_cast<stack::LinearFormat>(format);
                s.order = static_cast<stack::RankOrder>(order);
                if (Hopeless(s, format, schedule)) continue;
                if (!WhyIllegal(groups_, options_, gpus, s).empty()) continue;
                std::vector<int> sequence(groups_.size());
                std::iota(sequence.begin(), sequence.end(), 0);
                int32_t group_order = 0;
                do {
                  best_[{s, group_order++}] = Solve(s, sequence);
                } while (std::next_permutation(sequence.begin(), sequence.end()));
              }
            }
          }
        }
      }
    }
  }

  double Solve(const stack::Split& s, const std::vector<int>& sequence) {
    stages_.clear();
    for (const int g : sequence) {
      const int64_t n =
          groups_.size() == 1 ? s.pp : groups_[static_cast<size_t>(g)].gpus / (s.tp * s.cp * s.dp);
      stages_.insert(stages_.end(), static_cast<size_t>(n), &groups_[static_cast<size_t>(g)]);
    }
    double message = 0.0;
    for (const DeviceGroup* g : stages_) message = std::max(message, g->costs->Items(s).message_s);
    const double messages = stack::FillMessages(s) * message;
    double best = std::numeric_limits<double>::infinity();
    if (options_.mode_rule == ModeRule::kFree) {
      choices_.clear();
      Ranges(s, 0, 0, 0.0, -1e300, -1, -1, best);
      return best + messages;
    }
    for (int rest = 0; rest < 4; ++rest) {
      for (int64_t full = 0; full <= module_.layer_count(); ++full) {
        if (full > 0 && (options_.mode_rule == ModeRule::kUniform || rest != 0)) continue;
        if (full > 0 && !ModeAllowed(s, 2)) continue;
        if (!ModeAllowed(s, rest)) continue;
        choices_.clear();
        Ranges(s, 0, 0, 0.0, -1e300, rest, full, best);
      }
    }
    return best + messages;
  }

  bool ModeAllowed(const stack::Split& s, int mode) const {
    if (!options_.modes[static_cast<size_t>(mode)]) return false;
    return mode != 3 || s.pp == 1 || options_.offload_in_pipelines;
  }

  /// Kinds of the layers of a stage, in order.
  std::vector<int> LayersOf(const stack::Split& s, int64_t p, int64_t first, int64_t n) const {
    if (s.virtual_stages == 1 || one_kind_) {
      return {module_.layers.begin() + first, module_.layers.begin() + first + n};
    }
    std::vector<int> kinds;
    const std::vector<int64_t> chunks = EvenLayers(module_.layer_count(), s.pp * s.virtual_stages);
    int64_t begin = 0;
    for (size_t c = 0; c < chunks.size(); ++c) {
      if (static_cast<int64_t>(c) % s.pp == p) {
        kinds.insert(kinds.end(), module_.layers.begin() + begin,
                     module_.layers.begin() + begin + chunks[c]);
      }
      begin += chunks[c];
    }
    return kinds;
  }

  bool CountAllowed(const stack::Split& s, int64_t p, int64_t n) const {
    if (options_.even_layers && n != module_.layer_count() / s.pp) return false;
    if (s.virtual_stages == 1) return n >= 1;
    if (one_kind_) return n >= s.virtual_stages;
    return n == static_cast<int64_t>(LayersOf(s, p, 0, 0).size());
  }

  void Ranges(const stack::Split& s, int64_t p, int64_t used, double sum, double most, int rest,
              int64_t full, double& best) {
    if (p == s.pp) {
      if (used == module_.layer_count()) best = std::min(best, sum + most);
      return;
    }
    for (int64_t n = 1; used + n <= module_.layer_count(); ++n) {
      if (!CountAllowed(s, p, n)) continue;
      const auto [at, fresh] = choices_.try_emplace({p, used, n});
      if (fresh) at->second = Choices(s, p, LayersOf(s, p, used, n), rest, full);
      for (const Choice& c : at->second) {
        Ranges(s, p + 1, used + n, sum + c.z, std::max(most, c.y), rest, full, best);
      }
    }
  }

  std::vector<Choice> Choices(const stack::Split& s, int64_t p, const std::vector<int>& layers,
                              int rest, int64_t full) {
    std::vector<Choice> all;
    std::vector<std::vector<stack::ModeCounts>> seen;
    std::vector<int> modes(layers.size(), 0);
    const std::function<void(size_t)> assign = [&](size_t i) {
      if (i == layers.size()) {
        stack::StageContent content;
        content.kinds.resize(module_.layer_kinds.size());
        for (size_t k = 0; k < layers.size(); ++k) {
          ++content.kinds[static_cast<size_t>(layers[k])].layers[static_cast<size_t>(modes[k])];
        }
        if (std::find(seen.begin(), seen.end(), content.kinds) != seen.end()) return;
        seen.push_back(content.kinds);
        content.embedding = p == 0;
        content.head = p == s.pp - 1;
        Price(s, p, content, all);
        return;
      }
      for (int mode = 0; mode < 4; ++mode) {
        if (!ModeAllowed(s, mode)) continue;
        if (rest >= 0 && mode != (static_cast<int64_t>(i) < full ? 2 : rest)) continue;
        modes[i] = mode;
        assign(i + 1);
      }
    };
    assign(0);
    return all;
  }

  void Price(const stack::Split& s, int64_t p, const stack::StageContent& content,
             std::vector<Choice>& all) {
    const DeviceGroup& group = *stages_[static_cast<size_t>(p)];
    const stack::ItemTable& table = group.costs->Items(s);
    const stack::StageSums sums = stack::SumOf(content, table);
    if (group.costs->Memory(s, sums, stack::InFlight(s, p)).total() > group.memory_bytes) return;
    const stack::StageTimes times = stack::TimesOf(s, table, sums);
    all.push_back({times.z, static_cast<double>(s.micro_batches) * times.t - times.z +
                                group.costs->EndOfStep(s, sums)});
  }

  const std::vector<DeviceGroup>& groups_;
  const SpaceOptions& options_;
  const ModuleSpec& module_;
  bool one_kind_ = false;
  std::vector<const DeviceGroup*> stages_;
  std::map<std::tuple<int64_t, int64_t, int64_t>, std::vector<Choice>> choices_;
  std::map<Tuple, double> best_;
};

}  // namespace meshwright::planner::space
