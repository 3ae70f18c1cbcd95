// Configurations: the outer choices of the search, legal ones only.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/ir/model_spec.h"
#include "planner/ir/plan.h"
#include "planner/search/find_plans.h"
#include "planner/search/placed.h"
#include "topologies/status.h"

namespace meshwright::planner::search {

/// A split before layer ranges and recomputation. The order of the members is the canonical order,
/// which breaks ties: the simpler choice first.
struct Configuration {
  int64_t virtual_stages = 1;
  int64_t pp = 1;
  int64_t tp = 1;
  int64_t dp = 1;
  int64_t micro_batch = 1;
  bool without_sequence_parallel = true;  ///< sorts plans with it first
  int64_t tensor_chunks = 1;              ///< see ModulePlan
  Sharding sharding = Sharding::kNone;
  PlacementOrder order = PlacementOrder::kDataInside;
  int64_t micro_batches = 1;
  friend auto operator<=>(const Configuration&, const Configuration&) = default;

  bool sequence_parallel() const { return !without_sequence_parallel; }
  /// Of a step of a model of `layers` layers, forward and backward, on one rank a stage; about.
  int64_t OpsOf(int64_t layers) const { return layers * micro_batches * (40 + 20 * tensor_chunks); }
  /// Those of them that PredictFromFew simulates.
  int64_t SimulatedOpsOf(int64_t layers) const;
};

/// "tp8 pp4 dp2 mb1x16 sp tc16 zero1".
std::string NameOf(const Configuration& c);

/// Divisors in rising order; n >= 1.
std::vector<int64_t> DivisorsOf(int64_t n);

/// Tensor ranks that hold one key-value head; 0 when `tp` is not legal for the module's heads or
/// MLPs.
int64_t KeyValueCopies(const ModuleSpec& module, int64_t tp);

/// All legal configurations of `gpus` devices in canonical order. Empty when there is none.
/// `most_overlapped`: largest tensor group whose traffic may go beside products; 1: none.
std::vector<Configuration> Enumerate(const ModuleSpec& module, const SearchOptions& options,
                                     int64_t gpus, int64_t sequence, int64_t most_overlapped);

/// Why `Enumerate` is empty: every reason, with what would be allowed (kInfeasible).
Status WhyNoneIsLegal(const ModelSpec& model, const SearchOptions& options, int64_t gpus,
                      int64_t sequence);

/// Sizes that options may have (kInvalidInput names the field).
Status CheckOptions(const ModelSpec& model, const SearchOptions& options);

}  // namespace meshwright::planner::search
