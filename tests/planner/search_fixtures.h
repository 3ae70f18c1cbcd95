// Models, clusters and steps for the tests of the search.
#pragma once

#include <string>

#include "cost_models/cost_model.h"
#include "cost_models/device_profile.h"
#include "planner/ir/load_model.h"
#include "planner/search/find_plans.h"
#include "tests/planner/search_cases.h"
#include "topologies/cluster_io.h"

namespace meshwright::planner {

inline ModelSpec Model(const std::string& name) {
  return LoadModel(std::string(MESHWRIGHT_SOURCE_DIR) + "/planner/models/" + name + ".yaml")
      .value();
}
inline cost::CostModel H100() {
  return cost::CostModel::Make(cost::LoadDeviceProfile("h100-sxm").value(),
                               {{cost::Precision::kBf16, cost::Precision::kFp32}})
      .value();
}
inline topologies::Cluster TwoHosts() {
  return topologies::ParseClusterYaml(kTwoHosts, "test").value();
}
inline topologies::Cluster DgxH100(int nodes) {
  const std::string path =
      std::string(MESHWRIGHT_SOURCE_DIR) + "/topologies/clusters/dgx-h100.yaml";
  return topologies::LoadCluster(path).value().WithDevices(8 * nodes).value();
}
inline SearchOptions Step(int64_t global_batch, int64_t sequence) {
  SearchOptions o;
  o.global_batch = global_batch;
  o.sequence = sequence;
  return o;
}
/// A model of 8 equal layers whose heads divide by 4 and whose two key-value heads do by 2.
inline ModelSpec Small() {
  ModelSpec m = Model("llama-3.2-1b");
  ModuleSpec& s = m.modules.front();
  s.layers.resize(8);
  s.layer_kinds.front().attention.kv_heads = 2;
  return m;
}

}  // namespace meshwright::planner
