// The shapes of a space, family by family, and how many splits they have.
//
// A family: shapes that differ in ep and expert_tp alone. A large space has dozens in each, and a
// bound without experts' work cuts most families whole.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "planner/space/space.h"

namespace meshwright::planner::space {

class Shapes {
 public:
  /// Shapes that some legal split on `gpus` devices has. `weight`: what a split counts; without,
  /// one.
  Shapes(const std::vector<DeviceGroup>& groups, const SpaceOptions& options, int64_t gpus,
         std::function<int64_t(const stack::Split&)> weight = nullptr);

  struct Count {
    int64_t shapes = 0;
    int64_t splits = 0;
  };
  /// Calls `visit` with each family as its shape with ep = expert_tp = 1, which need not be legal.
  void ForEachFamily(const std::function<void(const Shape&, const Count&)>& visit);
  /// Calls `visit` for the shapes of a family.
  void ForEachShape(Shape family, const std::function<void(const Shape&)>& visit);
  /// Splits that ForEachSplit visits.
  int64_t SplitsOf(const Shape& shape);
  Count CountOf(const Shape& family);

 private:
  /// That number depends on tp cp, on whether there are context ranks (replicas to shard over), on
  /// the micro-batch and on ep expert_tp (0: of a family), so like shapes are counted once.
  struct Key {
    int64_t ranks, context, micro_batch, expert_ranks;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  /// `visit` with tp, cp, micro-batch and sequence parallelism of the families.
  void ForEachLayout(const std::function<void(Shape)>& visit) const;

  const std::vector<DeviceGroup>& groups_;
  const SpaceOptions& options_;
  int64_t gpus_ = 0;
  std::function<int64_t(const stack::Split&)> weight_;
  std::vector<std::pair<int64_t, int64_t>> experts_;  ///< (ep, expert_tp)
  std::unordered_map<Key, int64_t, KeyHash> splits_;
  std::unordered_map<Key, Count, KeyHash> counts_;
};

/// All shapes.
std::vector<Shape> ShapesOf(const std::vector<DeviceGroup>& groups, const SpaceOptions& options,
                            int64_t gpus);

}  // namespace meshwright::planner::space
