// Brute force for the search: every grid, layer table and recomputation of a small case, priced by
// replaying the lowered programs op by op. It shares the objective's definition with the search and
// nothing else: no enumeration, bounds, sums or caches of costs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "planner/ir/op_schema.h"
#include "planner/lower/communicators.h"
#include "planner/lower/tasks.h"
#include "planner/predict/predict.h"
#include "planner/search/find_plans.h"
#include "tests/planner/replay.h"
#include "tests/planner/search_cases.h"
#include "topologies/cluster.h"

namespace meshwright::planner {

using cost::CostModel;
using topologies::Cluster;

struct Case {
  ModelSpec model;
  Cluster cluster;
  CostModel costs;
  SearchOptions options;
};

inline bool LoadsTokens(const RankProgram& program, const Task& t) {
  if (t.kind != TaskKind::kLoadBatch) return false;
  const auto block = static_cast<size_t>(t.instances.front().block);
  return program.blocks[block].ops.front().kind == OpKind::kLoadTokens;
}

struct StageValue {
  double first = 0.0, later = 0.0, end = 0.0, slowed = 0.0;
  int64_t bytes = 0;  ///< arena and outside
};

/// Everything about one grid: groups of its ranks and their paths.
class Grid {
 public:
  Grid(const Case& c, Plan plan) : case_(c), plan_(std::move(plan)) {
    lower::BuildGroups(plan_, true, groups_);
    auto prices = MakePrices(plan_, c.cluster, c.costs);
    EXPECT_TRUE(prices.ok()) << prices.status().message();
    prices_.emplace(std::move(prices).value());
  }

  /// Slowest of the groups that ranks of the stage use.
  OpPrice Price(const RankProgram& program, const Block& block, const Op& op) const {
    const auto of = [](const NodePrice& p) {
      return OpPrice{static_cast<double>(p.time.value()), p.device_milli};
    };
    if (!IsCollective(op.kind) && !IsMessage(op.kind)) {
      return of(prices_->PriceOp(program, block, op));
    }
    OpPrice slowest;
    for (const RankBinding& rank : groups_.ranks) {
      if (rank.pp_index != program.stage) continue;
      const int32_t group = rank.groups[static_cast<size_t>(op.attributes.communicator)];
      const auto path = prices_->PathOf(groups_.groups[static_cast<size_t>(group)].ranks);
      const CommunicatorKind kind = groups_.groups[static_cast<size_t>(group)].kind;
      EXPECT_TRUE(path.ok());
      const OpPrice price = of(prices_->PriceCommunication(program, kind, block, op, *path));
      if (price.time > slowest.time) slowest = price;
    }
    return slowest;
  }

  StageValue Evaluate(const Plan& plan, int64_t stage) const {
    const RankProgram program = lower::BuildRankProgram(plan, 0, stage);
    const auto price = [&](const Block& b, const Op& op) { return Price(program, b, op); };
    const int64_t m = plan.micro_batches;
    const auto run = [&](const std::function<bool(const Task&)>& wanted) {
      double sum = 0.0;
      for (const Task& t : program.tasks) {
        if (!wanted(t)) continue;
        Replay replay(program, price);
        replay.Run(t);
        sum += replay.compute();
      }
      return sum;
    };
    const auto is_pass = [&](const Task& t, int64_t micro_batch) {
      return t.micro_batch == micro_batch &&
             (LoadsTokens(program, t) || t.kind == TaskKind::kForward ||
              t.kind == TaskKind::kBackward);
    };
    StageValue value;
    value.first = run([&](const Task& t) { return is_pass(t, 0); });
    if (m > 1) value.later = run([&](const Task& t) { return is_pass(t, 1); });
    End(plan, program, price, value);
    value.bytes = program.arena.size + OutsideBytes(program, case_.costs.profile()).value();
    return value;
  }

  double Message() const {
    double slowest = 0.0;
    const ModulePlan& m = plan_.modules.front();
    for (int64_t stage = 0; stage + 1 < m.pp; ++stage) {
      const RankProgram program = lower::BuildRankProgram(plan_, 0, stage);
      for (const Block& block : program.blocks) {
        const Op& op = block.ops.front();
        if (op.kind != OpKind::kSend) continue;
        const std::string& name =
            program.communicators[static_cast<size_t>(op.attributes.communicator)].name;
        if (name != "edge act " + std::to_string(stage) + ">" + std::to_string(stage + 1)) continue;
        slowest = std::max(slowest, Price(program, block, op).time);
      }
    }
    return slowest;
  }

  int64_t Limit(int64_t stage) const {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (size_t r = 0; r < groups_.ranks.size(); ++r) {
      if (groups_.ranks[r].pp_index != stage) continue;
      int64_t bytes = case_.cluster.Device(static_cast<int>(plan_.placement[r])).memory.value();
      if (case_.costs.profile().gpu)
        bytes = std::min(bytes, case_.costs.profile().memory.value.value());
      if (case_.options.memory_limit) bytes = case_.options.memory_limit->value();
      least = std::min(least, bytes);
    }
    return least;
  }

  /// Micro-batches that pass a chunk before the first of them passes the next one.
  static int64_t Turns(const Plan& plan) {
    const ModulePlan& m = plan.modules.front();
    int64_t n = m.virtual_stages > 1 ? m.pp : 1;
    while (m.virtual_stages > 1 && plan.micro_batches % n > 0 && plan.micro_batches % n < m.pp) ++n;
    return n;
  }

  /// `end`: from the end of the last backward pass to where the next step's forward pass is not
  /// delayed; `slowed`: of that pass, by the sums beside it.
  void End(const Plan& plan, const RankProgram& program, const PriceOf& price,
           StageValue& value) const {
    const int64_t last = plan.micro_batches - 1;
    const ModulePlan& m = plan.modules.front();
    const auto turns = static_cast<double>(Turns(plan));
    const auto alone = [&](const Task& t) {
      Replay replay(program, price);
      replay.Run(t);
      return replay.compute();
    };
    Replay replay(program, price);
    std::vector<Replay::Range> passes;
    for (const Task& t : program.tasks) {
      if (t.kind != TaskKind::kBackward || t.micro_batch != last) continue;
      if (!passes.empty()) replay.Rest((turns - 1) * alone(t));
      const double begin = replay.compute();
      replay.Run(t);
      passes.push_back({begin, replay.compute()});
    }
    double begin = replay.compute();
    for (const Task& t : program.tasks) {
      if (t.kind == TaskKind::kReduceGrads || t.kind == TaskKind::kClipNorm ||
          t.kind == TaskKind::kStep || t.kind == TaskKind::kGatherParams) {
        replay.Run(t);
      }
    }
    for (const Replay::Range& range : passes) value.slowed += replay.Slowed(range);
    value.end = replay.compute() - begin;
    if (m.sharding != Sharding::kZero1 || m.dp == 1) return;
    for (int64_t c = 0; c < m.virtual_stages; ++c) {
      double chunk = 0.0;
      for (const Task& t : program.tasks) {
        const bool forward =
            t.chunk == c && (t.kind == TaskKind::kForward || LoadsTokens(program, t));
        // The head's parameters are first used by the backward pass of its chunk.
        const bool head = t.kind == TaskKind::kBackward && program.stage == m.pp - 1 &&
                          c == m.virtual_stages - 1 && t.chunk == c;
        if (t.micro_batch != 0 || (!forward && !head)) continue;
        chunk += alone(t);
        replay.Run(t);
      }
      begin += chunk;
      if (c + 1 == m.virtual_stages) break;
      begin += (turns - 1) * chunk;
      replay.Rest((turns - 1) * chunk);
    }
    value.end = replay.compute() - begin;
  }

 private:
  const Case& case_;
  const Plan plan_;
  Programs groups_;
  std::optional<Prices> prices_;
};

/// All ways to cut `layers` into `parts` ranges of at least one.
inline std::vector<std::vector<int64_t>> Tables(int64_t layers, int64_t parts) {
  if (parts == 1) return {{layers}};
  std::vector<std::vector<int64_t>> all;
  for (int64_t first = 1; first <= layers - parts + 1; ++first) {
    for (std::vector<int64_t> rest : Tables(layers - first, parts - 1)) {
      rest.insert(rest.begin(), first);
      all.push_back(std::move(rest));
    }
  }
  return all;
}

/// Rank -> device for the two nestings of data and pipeline groups.
inline std::vector<int64_t> PlacementFor(const Case& c, const SplitRequest& r, bool data_inside) {
  const std::vector<int> sizes = {static_cast<int>(r.tp),
                                  static_cast<int>(data_inside ? r.dp : r.pp),
                                  static_cast<int>(data_inside ? r.pp : r.dp)};
  const auto order = c.cluster.BestOrder(sizes);
  EXPECT_TRUE(order.ok());
  std::vector<int64_t> devices(static_cast<size_t>(r.tp * r.dp * r.pp));
  for (int64_t pp = 0; pp < r.pp; ++pp) {
    for (int64_t dp = 0; dp < r.dp; ++dp) {
      for (int64_t tp = 0; tp < r.tp; ++tp) {
        const int64_t outer = data_inside ? dp + r.dp * pp : pp + r.pp * dp;
        devices[static_cast<size_t>(tp + r.tp * (dp + r.dp * pp))] =
            order->device_of_rank[static_cast<size_t>(tp + r.tp * outer)];
      }
    }
  }
  return devices;
}

class BruteForce {
 public:
  explicit BruteForce(const Case& c) : case_(c) {}

  /// Best objective of every split that fits, by the split's name.
  std::map<std::string, double> Run(int64_t gpus) {
    const SearchOptions& o = case_.options;
    for (int64_t tp = 1; tp <= gpus; ++tp) {
      for (int64_t pp = 1; pp <= gpus; ++pp) {
        for (int64_t dp = 1; dp <= gpus; ++dp) {
          if (tp * pp * dp != gpus) continue;
          for (int64_t v = 1; v <= o.max_virtual_stages; ++v) {
            for (int64_t mb = 1; mb <= o.global_batch; ++mb) Variants(tp, pp, dp, v, mb);
          }
        }
      }
    }
    return best_;
  }

 private:
  void Variants(int64_t tp, int64_t pp, int64_t dp, int64_t v, int64_t mb) {
    const SearchOptions& o = case_.options;
    if (o.global_batch % (mb * dp) != 0) return;
    if ((o.tp && *o.tp != tp) || (o.pp && *o.pp != pp) || (o.dp && *o.dp != dp)) return;
    if ((o.virtual_stages && *o.virtual_stages != v) || (o.micro_batch && *o.micro_batch != mb))
      return;
    if (!o.pp && o.global_batch / (mb * dp) < pp) return;
    for (const bool sp : {false, true}) {
      for (const Sharding sharding : {Sharding::kNone, Sharding::kZero1}) {
        if (sharding == Sharding::kZero1 && dp == 1) continue;
        if (o.sharding && dp > 1 && *o.sharding != sharding) continue;
        if (o.sequence_parallel && tp > 1 && *o.sequence_parallel != sp) continue;
        SplitRequest r;
        r.tp = tp, r.pp = pp, r.dp = dp, r.virtual_stages = v, r.micro_batch = mb;
        r.global_batch = o.global_batch;
        r.sequence = o.sequence;
        r.sequence_parallel = sp;
        r.sharding = sharding;
        r.dtype = o.dtype;
        r.device = case_.cluster.Device(0).kind;
        r.optimizer = o.optimizer;
        r.vocab_quantum = o.vocab_quantum;
        r.logits_chunk_bytes = o.logits_chunk_bytes;
        r.bucket_elements = o.bucket_elements;
        Grids(r);
        // Hosts of kTwoHosts have two GPUs; traffic of larger groups does not go beside products.
        if (r.device != topologies::DeviceKind::kGpu || tp != 2) continue;
        for (const int64_t chunks : {2, 4}) {
          r.tensor_chunks = chunks;
          Grids(r);
        }
      }
    }
  }

  void Grids(const SplitRequest& request) {
    const ModuleSpec& spec = case_.model.modules.front();
    const int64_t parts = request.pp * request.virtual_stages;
    if (parts > spec.layer_count()) return;
    const std::set<int> kinds(spec.layers.begin(), spec.layers.end());
    std::vector<std::vector<int64_t>> tables = Tables(spec.layer_count(), parts);
    if (request.virtual_stages > 1 && kinds.size() > 1)
      tables = {EvenLayers(spec.layer_count(), parts)};
    for (const bool data_inside : {true, false}) {
      auto plan = MakePlan(case_.model, request);
      if (!plan.ok()) return;
      plan->placement = PlacementFor(case_, request, data_inside);
      const Grid grid(case_, *plan);
      const double message = grid.Message();
      std::map<std::vector<int64_t>, StageValue> known;  // of this grid
      for (const auto& table : tables) {
        SplitRequest with = request;
        with.layers = table;
        Recomputations(grid, with, plan->placement, message, known);
      }
    }
  }

  void Recomputations(const Grid& grid, SplitRequest r, const std::vector<int64_t>& placement,
                      double message, std::map<std::vector<int64_t>, StageValue>& known) {
    int64_t combinations = 1;
    for (int64_t p = 0; p < r.pp; ++p) combinations *= 3;
    for (int64_t k = 0; k < combinations; ++k) {
      r.recompute.clear();
      int64_t rest = k;
      bool held = true;
      for (int64_t p = 0; p < r.pp; ++p, rest /= 3) {
        r.recompute.push_back(static_cast<Recompute>(rest % 3));
        held = held && (!case_.options.recompute || *case_.options.recompute == r.recompute.back());
      }
      if (!held) continue;
      auto plan = MakePlan(case_.model, r);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      plan->placement = placement;
      Judge(grid, *plan, message, known);
    }
  }

  void Judge(const Grid& grid, const Plan& plan, double message,
             std::map<std::vector<int64_t>, StageValue>& known) {
    const ModulePlan& mp = plan.modules.front();
    const double v = static_cast<double>(mp.virtual_stages);
    const double m = static_cast<double>(plan.micro_batches);
    // Messages and slower passes add up as often as a micro-batch comes round without slack.
    const double rounds = Grid::Turns(plan) == mp.pp ? v : 1;
    double sum = 0.0;
    double most = 0.0;
    for (int64_t p = 0; p < mp.pp; ++p) {
      std::vector<int64_t> key = {p, static_cast<int64_t>(mp.recompute[static_cast<size_t>(p)])};
      for (int64_t c = 0; c < mp.virtual_stages; ++c) {
        const LayerRange& range = mp.chunks[static_cast<size_t>(c * mp.pp + p)];
        key.push_back(range.first_layer);
        key.push_back(range.layer_count);
      }
      auto it = known.find(key);
      if (it == known.end()) it = known.emplace(key, grid.Evaluate(plan, p)).first;
      const StageValue& s = it->second;
      if (s.bytes > grid.Limit(p)) return;
      const double waits =
          mp.virtual_stages > 1
              ? 0.0
              : 2 * message * static_cast<double>(mp.pp - 1 - p) / static_cast<double>(mp.pp - p);
      sum += s.first + rounds * s.slowed;
      most = std::max(most, (m - 1 / v) * s.later + (m - 1) * waits + s.end);
    }
    const double stages = static_cast<double>(mp.pp);
    const double fill = 2 * (stages - 1 + (rounds - 1) * stages) * message;
    const double total = (sum / v + most + fill) * 1e-9;
    std::string name = ShortName(plan);
    name = name.substr(0, name.rfind(' '));  // without recomputation
    const auto [it, added] = best_.emplace(name, total);
    if (!added) it->second = std::min(it->second, total);
  }

  const Case& case_;
  std::map<std::string, double> best_;
};

}  // namespace meshwright::planner
