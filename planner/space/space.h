// The space of splits that a search runs through, and which of its splits are legal.
//
// An outer tuple is a Split and, on unlike devices, the order of their groups along the pipeline.
// Inside it the search chooses contiguous layer ranges and what every layer keeps.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/stack/split.h"
#include "planner/stack/stage_costs.h"
#include "topologies/status.h"

namespace meshwright::planner::space {

/// A value for some members of Split.
struct Axes {
  std::optional<int64_t> tp, cp, ep, expert_tp, pp, virtual_stages, dp, micro_batch;
  std::optional<bool> sequence_parallel;
  std::optional<stack::ShardingLevel> sharding;
  std::optional<stack::Schedule> schedule;
  std::optional<stack::LinearFormat> format;
  std::optional<stack::RankOrder> order;
  friend bool operator==(const Axes&, const Axes&) = default;
};

/// Like devices. With one group it hosts every stage; with several, the stages of a group are
/// neighbours in the pipeline and every group is used whole.
struct DeviceGroup {
  std::string name;
  stack::StageCosts* costs = nullptr;  ///< prices of this device; not owned
  double memory_bytes = 0.0;           ///< limit of StageMemory::total on one of its devices
  int64_t gpus = 0;                    ///< only with several groups
};

/// Freedom of what layers keep.
enum class ModeRule : uint8_t {
  kFree,           ///< any number of layers in any mode on each stage
  kEqualOnStages,  ///< one mode for all layers, or the first n layers of each stage kFull, others
                   ///< kKeep, with the same n (at most the stage's layers) everywhere
  kUniform         ///< one mode for all layers
};

struct SpaceOptions {
  std::vector<int64_t> gpus;  ///< counts to try, each used whole; one group only
  int64_t global_batch = 1;   ///< samples per step
  Axes held;                  ///< members that must have this value
  Axes excluded;              ///< members that must not have this value

  // What the stack supports.
  std::vector<stack::ShardingLevel> sharding = {
      stack::ShardingLevel::kNone, stack::ShardingLevel::kZero1, stack::ShardingLevel::kZero2,
      stack::ShardingLevel::kZero3};
  stack::ShardingLevel most_sharding_in_pipelines = stack::ShardingLevel::kZero3;
  std::vector<stack::Schedule> schedules = {stack::Schedule::kOneForwardOneBackward,
                                            stack::Schedule::kInterleaved,
                                            stack::Schedule::kZeroBubbleH1};
  std::vector<stack::LinearFormat> formats = {stack::LinearFormat::kBf16};
  std::vector<stack::RankOrder> orders = {stack::RankOrder::kDataInside,
                                          stack::RankOrder::kStagesInside};
  std::array<bool, stack::kLayerModes> modes = {true, true, true, true};
  bool offload_in_pipelines = true;  ///< kOffload also where pp > 1
  ModeRule mode_rule = ModeRule::kFree;
  bool expert_tp = true;                ///< expert_tp other than 1
  bool sequence_parallel_tied = false;  ///< it is on exactly where tp > 1
  bool even_layers = false;             ///< the same number of layers on every stage (and chunk)

  // Sizes; 0: no limit but the devices and the model.
  int64_t most_tp = 0;  ///< e.g. of an NVLink domain
  int64_t most_cp = 0;
  int64_t most_ep = 0;
  int64_t most_virtual_stages = 0;
  int64_t most_micro_batch = 0;

  size_t top = 5;             ///< best tuples returned
  double time_limit_s = 0.0;  ///< 0: until the optimum is proven
  /// Cut many tuples by one bound. Off: every tuple is bounded or evaluated by itself.
  bool cut_subtrees = true;
};

/// Errors: kInvalidInput, all problems at once: no group, costs missing, groups of unlike modules,
/// counts or limits out of range, no GPU count.
Status CheckSpace(const std::vector<DeviceGroup>& groups, const SpaceOptions& options);

/// One outer tuple.
struct Tuple {
  stack::Split split;
  int32_t group_order = 0;  ///< which permutation of the groups, in lexicographic order
  friend auto operator<=>(const Tuple&, const Tuple&) = default;
};

/// The module's shape as far as splits must divide it.
class Divisibility {
 public:
  Divisibility(const ModuleSpec& module, int64_t sequence);
  /// Heads, key-value heads and dense and shared widths can be cut in tp.
  bool Tensor(int64_t tp) const;
  /// Experts and their width.
  bool Expert(int64_t ep, int64_t expert_tp) const;
  bool Context(int64_t cp) const { return cp == 1 || sequence_ % (2 * cp) == 0; }
  bool SequenceParallel(int64_t tp, int64_t cp) const {
    return tp > 1 && sequence_ % cp == 0 && (sequence_ / cp) % tp == 0;
  }
  bool experts() const { return experts_; }

 private:
  const ModuleSpec& module_;
  int64_t sequence_ = 0;
  bool experts_ = false;
};

/// The shape of a tuple: what LeastItems depends on. Rules of parallelism.md 10.2 and 10.4.
struct Shape {
  int64_t tp = 1, cp = 1, ep = 1, expert_tp = 1, micro_batch = 1;
  bool sequence_parallel = false;
  stack::LinearFormat format = stack::LinearFormat::kBf16;
  friend auto operator<=>(const Shape&, const Shape&) = default;
};

/// Calls `visit` for every legal split of that shape on `gpus` devices: pp, dp, micro-batches,
/// sharding, rank order, schedule and virtual stages (parallelism.md 10.1, 10.3). Group orders are
/// not part of it.
void ForEachSplit(const std::vector<DeviceGroup>& groups, const SpaceOptions& options, int64_t gpus,
                  const Shape& shape, const std::function<void(const stack::Split&)>& visit);

/// Stages of each group under a split; empty when the groups do not come out even. One group: {pp}.
std::vector<int64_t> StagesOfGroups(const std::vector<DeviceGroup>& groups,
                                    const stack::Split& split);

/// Group of each stage, by the permutation `group_order`.
std::vector<int32_t> GroupOfStages(const std::vector<DeviceGroup>& groups, const Tuple& tuple);

/// Permutations of the groups; 1 for one group.
int32_t GroupOrders(const std::vector<DeviceGroup>& groups);

}  // namespace meshwright::planner::space
