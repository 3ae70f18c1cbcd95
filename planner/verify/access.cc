#include "planner/verify/access.h"

#include <algorithm>
#include <limits>

namespace meshwright::planner::verify {
namespace {

/// Equal in all but the bytes, and adjacent.
bool Continues(const AccessSegment& a, const AccessSegment& b) {
  return a.end == b.begin && a.obligations == b.obligations && a.reads_outside == b.reads_outside &&
         a.reads_saved == b.reads_saved && a.accumulates_outside == b.accumulates_outside &&
         a.writes == b.writes && a.write_slot == b.write_slot &&
         a.write_position == b.write_position && a.reads == b.reads;
}

void AddObligation(AccessSegment& segment, Obligation added) {
  for (Obligation& o : segment.obligations) {
    if (o.view == added.view) {
      o.after_reads = o.after_reads || added.after_reads;
      return;
    }
  }
  segment.obligations.push_back(added);
}

void AddRead(AccessSegment& segment, LastRead added) {
  for (LastRead& r : segment.reads) {
    if (r.slot == added.slot) {
      r.position = std::max(r.position, added.position);
      return;
    }
  }
  segment.reads.push_back(added);
}

}  // namespace

int32_t TensorOf(const Block& block, int32_t tensor) {
  const TensorView& view = block.tensors[static_cast<size_t>(tensor)];
  for (int32_t i = 0; i < tensor; ++i) {
    const TensorView& other = block.tensors[static_cast<size_t>(i)];
    if (other.region == view.region && other.name == view.name) return i;
  }
  return tensor;
}

BlockAccess::BlockAccess(const Block& block, const BlockOrder& order) : order_(order) {
  std::array<size_t, kRegionCount> use_of;
  use_of.fill(kRegionCount);
  for (size_t i = 0; i < block.ops.size(); ++i) {
    for (const Operand& o : block.ops[i].operands) {
      if (o.tensor < 0) continue;
      const TensorView& t = block.tensors[static_cast<size_t>(o.tensor)];
      const auto region = static_cast<size_t>(t.region);
      if (use_of[region] == kRegionCount) {
        use_of[region] = uses_.size();
        uses_.push_back({region, std::numeric_limits<int64_t>::max(), 0});
      }
      RegionUse& use = uses_[use_of[region]];
      const int64_t end = t.offset + t.bytes();
      use.begin = std::min(use.begin, t.offset);
      use.end = std::max(use.end, end);
      views_.push_back({use_of[region], t.offset, end, static_cast<int32_t>(i),
                        TensorOf(block, o.tensor), o.access != Access::kWrite,
                        o.access != Access::kRead, o.access == Access::kAccumulate,
                        o.access != Access::kWrite && t.region == Region::kSaved,
                        t.region == Region::kIn0 || t.region == Region::kIn1});
    }
  }
  alias_.resize(uses_.size());
}

void BlockAccess::AliasOf(const Instance& instance) {
  const size_t n = uses_.size();
  std::array<size_t, kRegionCount> anchor;  // index into uses_
  for (size_t i = 0; i < n; ++i) anchor[i] = i;
  const auto base = [&](size_t i) { return instance.base[uses_[i].region]; };
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j) {
      if (anchor[i] == anchor[j] || base(i) + uses_[i].end <= base(j) + uses_[j].begin ||
          base(j) + uses_[j].end <= base(i) + uses_[i].begin) {
        continue;
      }
      const size_t low = std::min(anchor[i], anchor[j]);
      const size_t high = std::max(anchor[i], anchor[j]);
      for (size_t k = 0; k < n; ++k) {
        if (anchor[k] == high) anchor[k] = low;
      }
    }
  }
  for (size_t i = 0; i < n; ++i) {
    alias_[i] = {uses_[anchor[i]].region, base(i) - base(anchor[i])};
  }
}

const AccessTemplate& BlockAccess::For(const Instance& instance) {
  AliasOf(instance);
  for (const AccessTemplate& t : templates_) {
    if (t.alias == alias_) return t;
  }
  templates_.push_back(Make());
  return templates_.back();
}

AccessTemplate BlockAccess::Make() const {
  AccessTemplate made;
  made.alias = alias_;
  for (size_t i = 0; i < uses_.size(); ++i) {
    if (alias_[i].first != uses_[i].region) continue;  // another region's cluster
    AccessCluster cluster;
    cluster.anchor = uses_[i].region;
    std::vector<View> views;
    for (View v : views_) {
      if (alias_[v.use].first != cluster.anchor) continue;
      v.begin += alias_[v.use].second;
      v.end += alias_[v.use].second;
      views.push_back(v);
    }
    AddSegments(cluster, views, made);
    made.clusters.push_back(std::move(cluster));
  }
  return made;
}

void BlockAccess::AddSegments(AccessCluster& cluster, const std::vector<View>& views,
                              AccessTemplate& made) const {
  std::vector<int64_t> ends;
  for (const View& v : views) {
    ends.push_back(v.begin);
    ends.push_back(v.end);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  std::vector<std::vector<View>> covering(ends.size());
  for (const View& v : views) {
    const auto first = std::lower_bound(ends.begin(), ends.end(), v.begin) - ends.begin();
    for (auto i = static_cast<size_t>(first); ends[i] < v.end; ++i) covering[i].push_back(v);
  }
  for (size_t i = 0; i + 1 < ends.size(); ++i) {
    if (covering[i].empty()) continue;
    AccessSegment segment;
    segment.begin = ends[i];
    segment.end = ends[i + 1];
    const bool ordered = Follow(MergeOps(covering[i]), segment);
    if ((!ordered || Clobbers(covering[i])) && !made.conflict) {
      made.conflict = InnerConflict{cluster.anchor, segment.begin};
    }
    if (!cluster.segments.empty() && Continues(cluster.segments.back(), segment)) {
      cluster.segments.back().end = segment.end;
    } else {
      cluster.segments.push_back(std::move(segment));
    }
  }
}

/// One view an op, which reads if one of its views reads, and so on.
std::vector<BlockAccess::View> BlockAccess::MergeOps(const std::vector<View>& views) {
  std::vector<View> merged;
  for (const View& v : views) {
    if (merged.empty() || merged.back().op != v.op) {
      merged.push_back(v);
      continue;
    }
    merged.back().reads |= v.reads;
    merged.back().writes |= v.writes;
    merged.back().accumulates |= v.accumulates;
    merged.back().saved |= v.saved;
  }
  return merged;
}

/// True when a tensor that the block has written, or its input, is read after another tensor has
/// been written over it. Tensors put together from views that are written apart are not meant.
bool BlockAccess::Clobbers(const std::vector<View>& views) {
  std::vector<int32_t> written;
  const auto has_written = [&](int32_t tensor) {
    return std::find(written.begin(), written.end(), tensor) != written.end();
  };
  int32_t owner = -1;
  for (size_t begin = 0; begin < views.size();) {
    size_t end = begin;
    for (; end < views.size() && views[end].op == views[begin].op; ++end) {
      const View& v = views[end];  // an op reads before it writes
      if (v.reads && owner >= 0 && owner != v.tensor && (v.input || has_written(v.tensor))) {
        return true;
      }
    }
    for (; begin < end; ++begin) {
      if (!views[begin].writes) continue;
      owner = views[begin].tensor;
      if (!has_written(owner)) written.push_back(owner);
    }
  }
  return false;
}

/// Walks the accesses of one byte range in issue order; false when two of them conflict.
bool BlockAccess::Follow(const std::vector<View>& views, AccessSegment& segment) const {
  std::optional<size_t> write;
  for (size_t j = 0; j < views.size(); ++j) {
    const View& v = views[j];
    // Ordered after an access that itself is after everything outside that matters to this one?
    bool covered = false;
    for (size_t i = 0; i < j; ++i) {
      const bool before = order_.Before(views[i].op, v.op);
      covered = covered || (before && (views[i].writes || !v.writes));
      const bool conflict = views[i].writes || v.writes;
      if (conflict && !before) return false;
    }
    if (!covered) AddObligation(segment, {order_.view[static_cast<size_t>(v.op)], v.writes});
    if (v.reads && !write) {
      segment.reads_outside = true;
      segment.reads_saved = segment.reads_saved || v.saved;
      segment.accumulates_outside = segment.accumulates_outside || v.accumulates;
    }
    const int32_t slot = order_.slot[static_cast<size_t>(v.op)];
    const int32_t position = order_.position[static_cast<size_t>(v.op)];
    if (v.writes) {
      write = j;
      segment.writes = true;
      segment.write_slot = slot;
      segment.write_position = position;
      segment.reads.clear();
    } else {
      AddRead(segment, {slot, position});
    }
  }
  return true;
}

}  // namespace meshwright::planner::verify
