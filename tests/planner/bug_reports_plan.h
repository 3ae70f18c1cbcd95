// Models, splits and shorthands of the bug report tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cost_models/device_profile.h"
#include "planner/ir/load_model.h"
#include "planner/lower/make_plan.h"
#include "planner/search/find_plans.h"
#include "topologies/cluster_io.h"

namespace meshwright::planner {

struct Shape {
  int64_t layers = 1, hidden = 64, heads = 4, kv_heads = 4, ffn = 256, vocab = 512;
  bool gated = false, tied = false;
};

inline ModelSpec Dense(const std::string& name, const Shape& s) {
  ModuleSpec m;
  m.name = "language";
  m.hidden = s.hidden;
  LayerSpec layer;
  layer.attention.heads = s.heads;
  layer.attention.kv_heads = s.kv_heads;
  layer.attention.head_dim = std::max<int64_t>(s.hidden / s.heads, 2);
  layer.mlp.ffn = s.ffn;
  layer.mlp.gated = s.gated;
  m.layer_kinds = {layer};
  m.layers.assign(static_cast<size_t>(s.layers), 0);
  m.vocab = s.vocab;
  m.max_positions = 65536;
  m.tied_embeddings = s.tied;
  ModelSpec model;
  model.name = name;
  model.family = "llama";
  model.modules = {m};
  return model;
}

inline ModelSpec Llama7B() {
  return Dense("llama-7b", {32, 4096, 32, 32, 11008, 32000, true, false});
}
inline ModelSpec Llama8B() {
  return Dense("llama-3-8b", {32, 4096, 32, 8, 14336, 128256, true, false});
}
inline ModelSpec Shipped(const std::string& name) {
  return LoadModel(std::string(MESHWRIGHT_SOURCE_DIR) + "/planner/models/" + name + ".yaml")
      .value();
}

inline SplitRequest Split(int64_t tp, int64_t pp, int64_t dp, int64_t global_batch,
                          int64_t sequence = 1024) {
  SplitRequest r;
  r.tp = tp;
  r.pp = pp;
  r.dp = dp;
  r.global_batch = global_batch;
  r.sequence = sequence;
  return r;
}
inline std::string ErrorOf(const ModelSpec& model, const SplitRequest& r) {
  const auto plan = MakePlan(model, r);
  EXPECT_FALSE(plan.ok());
  if (plan.ok()) return {};
  EXPECT_EQ(plan.status().code(), StatusCode::kInfeasible);
  return plan.status().message();
}
inline std::vector<int64_t> LayersOf(const Plan& plan) {
  std::vector<int64_t> layers;
  for (const LayerRange& r : plan.modules.front().chunks) layers.push_back(r.layer_count);
  return layers;
}
inline double GB(int64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}
inline int64_t States(const MemoryBreakdown& m) {
  return m.parameters + m.gradients + m.optimizer;
}

inline cost::CostModel Costs(const std::string& profile) {
  const std::string path =
      std::string(MESHWRIGHT_SOURCE_DIR) + "/cost_models/profiles/" + profile + ".yaml";
  return cost::CostModel::Make(cost::LoadDeviceProfile(path).value(),
                               {{cost::Precision::kBf16, cost::Precision::kFp32}})
      .value();
}
inline topologies::Cluster Shipped(const std::string& name, int64_t gpus) {
  const std::string path =
      std::string(MESHWRIGHT_SOURCE_DIR) + "/topologies/clusters/" + name + ".yaml";
  return topologies::LoadCluster(path).value().WithDevices(gpus).value();
}
inline Result<SearchResult> Find(const ModelSpec& model, int64_t gpus,
                                 const SearchOptions& options) {
  SearchOptions o = options;
  o.gpus = gpus;
  return FindPlans(model, Shipped("dgx-h100", std::max<int64_t>(gpus, 8)), Costs("h100-sxm"), o);
}
inline SearchOptions Step(int64_t global_batch, int64_t sequence) {
  SearchOptions o;
  o.global_batch = global_batch;
  o.sequence = sequence;
  return o;
}

}  // namespace meshwright::planner
