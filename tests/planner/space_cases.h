// Small random cases for the search of the whole space.
#pragma once

#include <memory>
#include <vector>

#include "planner/space/space.h"
#include "tests/planner/search_cases.h"
#include "tests/planner/space_costs.h"

namespace meshwright::planner::space {

struct SpaceCase {
  std::vector<std::unique_ptr<InventedCosts>> costs;
  std::vector<DeviceGroup> groups;
  SpaceOptions options;
};

inline ModuleSpec SmallModule(Dice& dice) {
  ModuleSpec module;
  module.name = "language";
  module.hidden = 64;
  const int kinds = static_cast<int>(dice.Between(1, 2));
  for (int k = 0; k < kinds; ++k) {
    LayerSpec layer;
    layer.attention.heads = dice.Pick({2, 4, 6});
    layer.attention.kv_heads = dice.Pick({1, 2});
    layer.attention.head_dim = 16;
    layer.mlp.ffn = dice.Pick({64, 96});
    if (dice.Between(0, 2) == 0) {
      layer.mlp.moe.emplace();
      layer.mlp.moe->experts = dice.Pick({2, 4});
      layer.mlp.moe->top_k = 1;
      layer.mlp.moe->expert_ffn = dice.Pick({32, 33});
    }
    module.layer_kinds.push_back(layer);
  }
  const int64_t layers = dice.Between(kinds, 5);
  for (int64_t l = 0; l < layers; ++l) {
    module.layers.push_back(l < kinds ? static_cast<int>(l)
                                      : static_cast<int>(dice.Between(0, kinds - 1)));
  }
  return module;
}

inline void RandomOptions(Dice& dice, SpaceOptions& o) {
  o.global_batch = dice.Pick({1, 2, 4, 6, 8});
  o.formats = {stack::LinearFormat::kBf16};
  if (dice.Between(0, 3) == 0) o.formats.push_back(stack::LinearFormat::kFp8);
  o.top = static_cast<size_t>(dice.Between(1, 4));
  o.sequence_parallel_tied = dice.Coin();
  o.even_layers = dice.Between(0, 4) == 0;
  o.offload_in_pipelines = dice.Coin();
  o.expert_tp = dice.Coin();
  o.cut_subtrees = dice.Coin();
  const int64_t rule = dice.Between(0, 5);
  if (rule == 4) o.mode_rule = ModeRule::kEqualOnStages;
  if (rule == 5) o.mode_rule = ModeRule::kUniform;
  for (bool& mode : o.modes) mode = dice.Between(0, 4) > 0;
  o.modes[static_cast<size_t>(dice.Between(0, 2))] = true;
  if (dice.Between(0, 2) == 0) o.held.micro_batch = dice.Pick({1, 2});
  if (dice.Between(0, 3) == 0) o.held.pp = dice.Pick({1, 2, 4});
  if (dice.Between(0, 3) == 0) o.excluded.tp = dice.Pick({1, 2});
  if (dice.Between(0, 3) == 0) o.held.schedule = static_cast<stack::Schedule>(dice.Between(0, 2));
  if (dice.Between(0, 2) == 0) {
    o.held.sharding = static_cast<stack::ShardingLevel>(dice.Between(0, 3));
  }
  if (dice.Between(0, 4) == 0) o.most_sharding_in_pipelines = stack::ShardingLevel::kZero1;
  if (dice.Between(0, 4) == 0) o.most_tp = 2;
  if (dice.Between(0, 4) == 0) o.most_virtual_stages = 2;
}

inline SpaceCase RandomSpaceCase(Dice& dice) {
  SpaceCase c;
  const ModuleSpec module = SmallModule(dice);
  const int64_t sequence = dice.Pick({8, 12});
  RandomOptions(dice, c.options);
  const size_t kinds = dice.Between(0, 2) == 0 ? 2 : 1;
  InventedOptions o;
  o.hidden = static_cast<double>(dice.Pick({0, 1, 2, 2})) / 2;
  o.page_bytes = dice.Between(0, 3) == 0 ? 7.0 : 0.0;
  o.weights_by_mode = dice.Between(0, 3) == 0;
  o.least_items = dice.Between(0, 3) > 0;
  for (size_t g = 0; g < kinds; ++g) {
    o.seed = static_cast<uint64_t>(dice.Between(1, 1000000));
    o.speed = g == 0 ? 1.0 : 2.0;
    c.costs.push_back(std::make_unique<InventedCosts>(module, sequence, o));
    c.groups.push_back({g == 0 ? "slow" : "fast", c.costs.back().get(), 1e9,
                        kinds == 1 ? 0 : dice.Pick({1, 2, 2, 4})});
  }
  if (kinds == 1) c.options.gpus = {dice.Pick({1, 2, 2, 4, 4, 6, 8})};
  if (kinds == 1 && dice.Between(0, 5) == 0) c.options.gpus = {2, 3};
  return c;
}

}  // namespace meshwright::planner::space
