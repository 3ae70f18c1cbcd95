// Plans, clusters and cost models for the tests of predict.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cost_models/cost_model.h"
#include "planner/ir/load_model.h"
#include "planner/ir/program.h"
#include "planner/lower/lower.h"
#include "planner/lower/make_plan.h"
#include "planner/predict/prices.h"
#include "tests/cost_models/cpu_profile.h"
#include "topologies/cluster.h"
#include "topologies/cluster_io.h"

namespace meshwright::planner {

inline ModelSpec ShippedModel(const std::string& name) {
  auto spec = LoadModel(std::string(MESHWRIGHT_SOURCE_DIR) + "/planner/models/" + name + ".yaml");
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return std::move(spec).value();
}

inline Plan PlanOf(const ModelSpec& model, const SplitRequest& request) {
  auto plan = MakePlan(model, request);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return std::move(plan).value();
}

inline Programs Lowered(const Plan& plan) {
  auto programs = Lower(plan);
  EXPECT_TRUE(programs.ok()) << programs.status().message();
  return std::move(programs).value();
}

inline cost::CostModel ModelOf(cost::DeviceProfile profile,
                               std::vector<cost::Precision> precisions) {
  auto model = cost::CostModel::Make(std::move(profile), {std::move(precisions)});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(model).value();
}

inline cost::CostModel ShippedCosts(const std::string& name) {
  auto profile = cost::LoadDeviceProfile(name);
  EXPECT_TRUE(profile.ok()) << profile.status().message();
  return ModelOf(std::move(profile).value(), {cost::Precision::kBf16, cost::Precision::kFp32});
}

/// As many hosts of a shipped description as `devices` need.
inline topologies::Cluster ShippedCluster(const std::string& name, int64_t devices) {
  auto cluster = topologies::LoadCluster(std::string(MESHWRIGHT_SOURCE_DIR) +
                                         "/topologies/clusters/" + name + ".yaml");
  EXPECT_TRUE(cluster.ok()) << cluster.status().message();
  auto grown = cluster->WithDevices(devices);
  EXPECT_TRUE(grown.ok()) << grown.status().message();
  return std::move(grown).value();
}

inline topologies::Cluster CpuRanks(int ranks, int cores) {
  topologies::CpuHostOptions options;
  options.ranks = ranks;
  options.cores = cores;
  options.memory = Bytes(int64_t{8} << 30);
  options.bandwidth = BytesPerSecond(5e9);
  options.latency = Seconds(3e-6);
  options.source = {topologies::Origin::kAssumed, "round numbers for a test"};
  auto cluster = topologies::CpuCluster(options);
  EXPECT_TRUE(cluster.ok()) << cluster.status().message();
  return std::move(cluster).value();
}

inline Prices PricesOf(const Plan& plan, const topologies::Cluster& cluster,
                       const cost::CostModel& model) {
  auto prices = MakePrices(plan, cluster, model);
  EXPECT_TRUE(prices.ok()) << prices.status().message();
  return std::move(prices).value();
}

inline cost::CostModel InventedCpuCosts() {
  return ModelOf(cost::InventedCpu(), {cost::Precision::kFp32, cost::Precision::kFp64});
}

/// Small enough for a test; ZeRO-1 wherever it shards.
inline SplitRequest Tiny(int64_t tp, int64_t pp, int64_t dp, int64_t vpp = 1) {
  SplitRequest r;
  r.tp = tp;
  r.pp = pp;
  r.dp = dp;
  r.virtual_stages = vpp;
  r.sequence = 32;
  r.global_batch = 8 * dp;
  r.dtype = DType::kF32;
  r.sharding = dp > 1 ? Sharding::kZero1 : Sharding::kNone;
  return r;
}

inline ModelSpec TinyGpt(int64_t layers = 8) {
  ModelSpec model = ShippedModel("gpt-tiny");
  model.modules.front().layers.assign(static_cast<size_t>(layers), 0);
  return model;
}

}  // namespace meshwright::planner
