// Invented stage costs that keep the promises of StageCosts and nothing more: numbers by hash, ends
// of a step that longer passes hide, memory that rises in steps.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "planner/stack/stage_costs.h"

namespace meshwright::planner::space {

struct InventedOptions {
  uint64_t seed = 1;
  double speed = 1.0;            ///< times are divided by this
  double hidden = 1.0;           ///< seconds of reduction that a second of backward hides
  double page_bytes = 0.0;       ///< activations are rounded up to this; 0: not
  bool weights_by_mode = false;  ///< the weight part of backward depends on the mode
  bool least_items = true;
};

class InventedCosts final : public stack::StageCosts {
 public:
  InventedCosts(ModuleSpec module, int64_t sequence, InventedOptions options)
      : module_(std::move(module)), sequence_(sequence), options_(options) {}

  const ModuleSpec& module() const override { return module_; }
  int64_t sequence() const override { return sequence_; }

  const stack::ItemTable& Items(const stack::Split& s) override {
    const bool zero3 = s.sharding == stack::ShardingLevel::kZero3;
    const auto key = std::tuple(s.tp, s.cp, s.ep, s.expert_tp, s.micro_batch, s.sequence_parallel,
                                s.format, s.order, s.pp > 1, zero3 ? s.dp : 0);
    std::unique_ptr<stack::ItemTable>& entry = tables_[key];
    if (entry) return *entry;
    entry = std::make_unique<stack::ItemTable>(Base(s));
    uint64_t h = Hash({static_cast<uint64_t>(s.order), s.pp > 1, zero3 ? Word(s.dp) : 0}, Of(s));
    for (auto& modes : entry->layers) {
      for (stack::ItemCost& c : modes) Slower(c, zero3, h);
    }
    Slower(entry->embedding, zero3, h);
    Slower(entry->head, zero3, h);
    if (s.pp > 1) {
      entry->message_s = Between(h, 0.0, 0.3);
      entry->exposed_message_s = Between(h, 0.0, 0.2);
    }
    return *entry;
  }

  const stack::ItemTable* LeastItems(const stack::Split& s) override {
    if (!options_.least_items) return nullptr;
    const auto key =
        std::tuple(s.tp, s.cp, s.ep, s.expert_tp, s.micro_batch, s.sequence_parallel, s.format);
    std::unique_ptr<stack::ItemTable>& entry = least_[key];
    if (!entry) entry = std::make_unique<stack::ItemTable>(Base(s));
    return entry.get();
  }

  /// Somewhere below the tables, in coarse steps.
  bool LeastPasses(const stack::Split& s, stack::BoundOver over,
                   const std::array<bool, stack::kLayerModes>& modes,
                   stack::LeastSeconds* least) override {
    if (!options_.least_items) return false;
    if (over == stack::BoundOver::kShape) {
      StageCosts::LeastPasses(s, over, modes, least);
    } else {
      const double passes = 3.0 * Work(s) / options_.speed;  // the least of Cost()
      least->layer_s.assign(module_.layer_kinds.size(), passes);
      least->embedding_s = 0.2 * passes;
      least->head_s = 0.8 * passes;
    }
    uint64_t h = Hash({Word(s.tp), Word(s.cp), Word(s.micro_batch)}, options_.seed);
    for (double& seconds : least->layer_s) seconds *= Between(h, 0.8, 1.0);
    least->embedding_s *= Between(h, 0.5, 1.0);
    least->head_s *= Between(h, 0.5, 1.0);
    return true;
  }

  double EndOfStep(const stack::Split& s, const stack::StageSums& sums) override {
    const double reduced = s.dp > 1 ? 0.02 * sums.parameters.dense : 0.0;
    return EndOfStepBound(s, sums.parameters) +
           std::max(0.0, reduced / options_.speed - options_.hidden * sums.backward_s);
  }
  double EndOfStepBound(const stack::Split& s, const stack::ItemParameters& p) override {
    const bool sharded = s.sharding != stack::ShardingLevel::kNone;
    return 0.002 * (p.dense + p.expert) / (sharded ? static_cast<double>(s.dp * s.cp) : 1.0);
  }
  stack::StageMemory Memory(const stack::Split& s, const stack::StageSums& sums,
                            double in_flight) override {
    const auto shard = [&](stack::ShardingLevel from, double bytes) {
      const bool on = s.sharding >= from;
      return bytes * (sums.parameters.dense / (on ? static_cast<double>(s.dp * s.cp) : 1.0) +
                      sums.parameters.expert / (on ? static_cast<double>(s.expert_dp()) : 1.0));
    };
    stack::StageMemory m;
    m.parameters = shard(stack::ShardingLevel::kZero3, 2);
    m.gradients = shard(stack::ShardingLevel::kZero2, 4);
    m.optimizer = shard(stack::ShardingLevel::kZero1, 12);
    m.activations = sums.saved_bytes * in_flight;
    if (options_.page_bytes > 0) {
      m.activations = std::ceil(m.activations / options_.page_bytes) * options_.page_bytes;
    }
    m.transient = sums.transient_bytes;
    m.outside = 5.0 + (s.ranks() > 1 ? 3.0 : 0.0);
    return m;
  }

 private:
  static uint64_t Word(int64_t value) { return static_cast<uint64_t>(value); }
  static uint64_t Mix(uint64_t x) {  // splitmix64, Steele et al. 2014
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }
  static uint64_t Hash(std::initializer_list<uint64_t> words, uint64_t seed) {
    for (const uint64_t w : words) seed = Mix(seed ^ w);
    return seed;
  }
  uint64_t Of(const stack::Split& s) const {
    return Hash({Word(s.tp), Word(s.cp), Word(s.ep), Word(s.expert_tp), Word(s.micro_batch),
                 s.sequence_parallel, static_cast<uint64_t>(s.format)},
                options_.seed);
  }
  /// Coarse steps, so that equal numbers happen.
  static double Between(uint64_t& state, double low, double high) {
    state = Mix(state);
    return low + (high - low) * static_cast<double>(state % 17) / 16.0;
  }
  void Slower(stack::ItemCost& c, bool sharded, uint64_t& h) const {
    const double factor = 1.0 + Between(h, 0.0, 0.2) + (sharded ? 0.1 : 0.0);
    c.forward_s *= factor;
    c.backward_s *= factor;
    if (sharded) c.transient_bytes += 20;
  }
  static double Work(const stack::Split& s) {
    const double ranks = static_cast<double>(s.tp * s.cp);
    return static_cast<double>(s.micro_batch) / std::sqrt(ranks) / std::sqrt(ranks + 1);
  }
  /// One layer or end; `work` micro-batch samples a rank.
  stack::ItemCost Cost(uint64_t& h, double work) const {
    stack::ItemCost c;
    c.forward_s = work * Between(h, 1.0, 2.0) / options_.speed;
    c.backward_s = 2.0 * c.forward_s;
    c.weight_s = c.forward_s * 0.9;
    c.saved_bytes = work * Between(h, 20.0, 60.0);
    c.transient_bytes = work * Between(h, 0.0, 30.0);
    return c;
  }
  stack::ItemTable Base(const stack::Split& s) const {
    uint64_t h = Of(s);
    stack::ItemTable table;
    const double work = Work(s);
    for (const LayerSpec& layer : module_.layer_kinds) {
      std::array<stack::ItemCost, stack::kLayerModes> modes;
      modes[0] = Cost(h, work);
      for (size_t mode = 1; mode < stack::kLayerModes; ++mode) {
        modes[mode] = modes[0];
        const double again = modes[0].forward_s * Between(h, 0.05, 1.0);
        modes[mode].backward_s += again;
        // Moving activations to the host delays forward too.
        if (mode == 3) modes[mode].forward_s += again / 2;
        modes[mode].saved_bytes *= Between(h, 0.0, 0.9);
        modes[mode].transient_bytes += modes[0].saved_bytes * Between(h, -0.2, 1.0);
        modes[mode].transient_bytes = std::max(0.0, modes[mode].transient_bytes);
        if (options_.weights_by_mode) modes[mode].weight_s *= Between(h, 0.5, 1.5);
      }
      table.layers.push_back(modes);
      const double tp = static_cast<double>(s.tp);
      table.layer_parameters.push_back(
          {Between(h, 10, 30) / tp,
           layer.mlp.moe ? Between(h, 20, 80) / static_cast<double>(s.ep * s.expert_tp) : 0.0});
    }
    table.embedding = Cost(h, work * 0.2);
    table.head = Cost(h, work * 0.8);
    table.embedding_parameters.dense = 25.0 / static_cast<double>(s.tp);
    table.head_parameters.dense = 25.0 / static_cast<double>(s.tp);
    return table;
  }

  ModuleSpec module_;
  int64_t sequence_ = 0;
  InventedOptions options_;
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, bool, stack::LinearFormat,
                      stack::RankOrder, bool, int64_t>,
           std::unique_ptr<stack::ItemTable>>
      tables_;
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, bool, stack::LinearFormat>,
           std::unique_ptr<stack::ItemTable>>
      least_;
};

}  // namespace meshwright::planner::space
