// Folding: ranks that do the same with partners that do the same are one class. The quotient has
// one participant a class, and its strict-rendezvous execution deadlocks exactly when the whole
// does.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/ir/program.h"

namespace meshwright::planner {

struct RankClasses {
  std::vector<int32_t> class_of;              ///< rank -> class
  std::vector<std::vector<int32_t>> members;  ///< class -> its ranks, ascending

  int32_t size() const { return static_cast<int32_t>(members.size()); }
  int32_t representative(int32_t c) const { return members[static_cast<size_t>(c)].front(); }
  int64_t multiplicity(int32_t c) const {
    return static_cast<int64_t>(members[static_cast<size_t>(c)].size());
  }
};

/// For each program the first that is equal but for the offsets of views: tensor ranks that take
/// other rows do the same at the same time (ModulePlan::programs_per_stage).
std::vector<int32_t> AlikePrograms(const Programs& programs);

/// Coarsest classes with alike programs in which, communicator by communicator, the groups of two
/// ranks of a class hold the same classes in the same order. Classes are numbered by lowest rank.
/// All indices must be in range (CheckIndices).
RankClasses FoldRanks(const Programs& programs);

/// The same with a color a rank instead of its program.
RankClasses FoldColors(const Programs& programs, std::vector<int32_t> color);

/// Every rank a class of its own: the unfolded system.
RankClasses SeparateRanks(const Programs& programs);

/// A communicator of the quotient. Parallel groups between the same classes (the pipeline edges of
/// all tensor and data ranks, say) are one channel.
struct Channel {
  struct Participant {
    int32_t rank_class = 0;
    int32_t communicator = 0;  ///< class-local index
  };
  std::vector<Participant> participants;  ///< distinct, ascending; members that do the same are one
};

struct Channels {
  std::vector<Channel> channels;
  std::vector<std::vector<int32_t>> of;  ///< class -> class-local communicator -> channel

  const Channel& At(int32_t rank_class, int32_t communicator) const {
    return channels[static_cast<size_t>(
        of[static_cast<size_t>(rank_class)][static_cast<size_t>(communicator)])];
  }
};
Channels ChannelsOf(const Programs& programs, const RankClasses& classes);

}  // namespace meshwright::planner
