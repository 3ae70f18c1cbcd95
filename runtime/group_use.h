// What the programs of a run do on each of its groups: what has to be warmed up before step 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "planner/ir/program.h"

namespace meshwright::runtime {

/// One kind of operation on a group. `bytes` is the most of any of them: the whole buffer of an
/// all-reduce, the input of a reduce-scatter, the output of an all-gather, a message.
struct GroupUse {
  planner::OpKind kind{};
  planner::DType dtype{};
  int64_t bytes = 0;
  friend bool operator==(const GroupUse&, const GroupUse&) = default;
};

/// Whether an operation, with its own bytes, on a group counts.
using CountsForGroup = std::function<bool(size_t group, const GroupUse& use)>;

/// By group, in a fixed order. A message counts once, as kSend. Equal on all ranks if `counts` is;
/// empty: everything counts.
std::vector<std::vector<GroupUse>> UsesOfGroups(const planner::Programs& programs,
                                                const CountsForGroup& counts = {});

/// Groups of more than one rank, in batches of one kind whose groups share no rank: a batch can be
/// split from the world by one call. Indices in increasing order; batches by their first index.
std::vector<std::vector<size_t>> SplitBatches(const std::vector<planner::Group>& groups);

}  // namespace meshwright::runtime
