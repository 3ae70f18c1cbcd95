// What a block does to memory, reduced to what other blocks need to know: per byte range who must
// be waited for before it and what it leaves behind. Depends on the block and on how its regions
// overlap, not on where they lie, so a handful of templates serve all instances of a step.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "planner/ir/program.h"
#include "planner/verify/clocks.h"

namespace meshwright::planner::verify {

/// Before an access with this view of outside ops, outside writes (and reads) must be done.
struct Obligation {
  int32_t view = 0;
  bool after_reads = false;
  friend bool operator==(const Obligation&, const Obligation&) = default;
};

/// Last read of a range on one stream of the block.
struct LastRead {
  int32_t slot = 0;
  int32_t position = 0;
  friend bool operator==(const LastRead&, const LastRead&) = default;
};

struct AccessSegment {
  int64_t begin = 0, end = 0;  ///< bytes from the base of the cluster's anchor region
  std::vector<Obligation> obligations;
  bool reads_outside = false;        ///< reads a value that the block did not write
  bool reads_saved = false;          ///< ... through Region::kSaved
  bool accumulates_outside = false;  ///< ... and adds to it
  bool writes = false;
  int32_t write_slot = 0, write_position = 0;  ///< the last write
  std::vector<LastRead> reads;                 ///< after the last write
};

/// Regions that overlap, directly or through others; apart from the rest of the block.
struct AccessCluster {
  size_t anchor = 0;  ///< lowest region index
  std::vector<AccessSegment> segments;
};

/// A conflict between ops of one block: a race, or a tensor overwritten while it is still read.
struct InnerConflict {
  size_t anchor = 0;
  int64_t offset = 0;  ///< bytes from the base of the anchor region
};

struct AccessTemplate {
  std::vector<std::pair<size_t, int64_t>> alias;  ///< per used region: anchor, offset from it
  std::vector<AccessCluster> clusters;
  std::optional<InnerConflict> conflict;
};

/// The first view of the block with the name and region of view `tensor`: rows of a tensor are views
/// of their own, with its name.
int32_t TensorOf(const Block& block, int32_t tensor);

/// Templates of one block, made as instances ask for them.
class BlockAccess {
 public:
  BlockAccess(const Block& block, const BlockOrder& order);
  /// Stays valid as long as this object.
  const AccessTemplate& For(const Instance& instance);

 private:
  struct RegionUse {
    size_t region;
    int64_t begin, end;  ///< bytes from the region's base
  };
  struct View {
    size_t use;  ///< index into uses_
    int64_t begin, end;
    int32_t op;
    int32_t tensor;  ///< see TensorOf
    bool reads, writes, accumulates, saved, input;
  };

  void AliasOf(const Instance& instance);
  AccessTemplate Make() const;
  void AddSegments(AccessCluster& cluster, const std::vector<View>& views,
                   AccessTemplate& made) const;
  bool Follow(const std::vector<View>& views, AccessSegment& segment) const;
  static std::vector<View> MergeOps(const std::vector<View>& views);
  static bool Clobbers(const std::vector<View>& views);

  const BlockOrder& order_;
  std::vector<RegionUse> uses_;
  std::vector<View> views_;
  std::vector<std::pair<size_t, int64_t>> alias_;
  std::deque<AccessTemplate> templates_;
};

}  // namespace meshwright::planner::verify
