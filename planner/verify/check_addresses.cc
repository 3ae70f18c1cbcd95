#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "planner/verify/checks.h"
#include "planner/verify/names.h"

namespace meshwright::planner {
namespace {

Status Bad(const std::string& where, const std::string& what) {
  return Infeasible(fmt::format("addresses: {}: {}", where, what));
}

/// Byte range that the operands of a block touch from the base of each region.
struct RegionExtent {
  int64_t begin = std::numeric_limits<int64_t>::max();
  int64_t end = 0;
  bool used() const { return end > 0; }
};
using BlockExtents = std::array<RegionExtent, kRegionCount>;

BlockExtents ExtentsOf(const Block& block) {
  BlockExtents extents;
  for (const Op& op : block.ops) {
    for (const Operand& o : op.operands) {
      if (o.tensor < 0) continue;
      const TensorView& t = block.tensors[static_cast<size_t>(o.tensor)];
      RegionExtent& e = extents[static_cast<size_t>(t.region)];
      e.begin = std::min(e.begin, t.offset);
      e.end = std::max(e.end, t.offset + t.bytes());
    }
  }
  return extents;
}

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  const char* name = "";
  bool Holds(int64_t b, int64_t e) const { return begin <= b && e <= end; }
};

/// The places of the arena where a region's bytes from `begin` on may lie.
std::vector<Range> AllowedFor(Region region, const ArenaLayout& a, int64_t begin) {
  const auto area = [](int64_t start, int64_t bytes, const char* name) {
    return Range{start, start + bytes, name};
  };
  const Range communication = area(a.communication, a.memory.communication, "communication area");
  const Range scratch = area(a.scratch, a.memory.scratch, "scratch area");
  Range slot = area(a.saved, 0, "slot");
  if (a.slot_bytes > 0 && begin >= a.saved) {
    const int64_t index =
        std::min((begin - a.saved) / a.slot_bytes, std::max<int64_t>(a.slots, 1) - 1);
    slot.begin = a.saved + index * a.slot_bytes;
    slot.end = a.slots > 0 ? slot.begin + a.slot_bytes : slot.begin;
  }
  switch (region) {
    case Region::kParameter:
    case Region::kParameterLate:
      return {area(a.parameters, a.memory.parameters, "parameter area")};
    case Region::kGradient:
    case Region::kGradientLate:
      return {area(a.gradients, a.memory.gradients, "gradient area")};
    case Region::kOptimizer:
      return {area(a.optimizer, a.memory.optimizer, "optimizer area")};
    case Region::kSaved:
      return {slot};
    case Region::kScratch:
      return {scratch};
    case Region::kIn0:
    case Region::kIn1:
    case Region::kOut0:
    case Region::kOut1:
      return {slot, scratch, communication};
    case Region::kIo:
      return {area(a.io + kScalarBytes, a.memory.io - kScalarBytes, "io area behind the scalars")};
    case Region::kScalar:
      return {area(a.io, kScalarBytes, "step scalars")};
    case Region::kCount:
      break;
  }
  return {};
}

Status CheckRegions(const RankProgram& program, const BlockExtents& extents,
                    const Instance& instance, const std::string& who, int32_t task, int32_t index) {
  for (size_t r = 0; r < kRegionCount; ++r) {
    if (!extents[r].used()) continue;
    const int64_t begin = instance.base[r] + extents[r].begin;
    const int64_t end = instance.base[r] + extents[r].end;
    const std::vector<Range> allowed = AllowedFor(static_cast<Region>(r), program.arena, begin);
    if (std::any_of(allowed.begin(), allowed.end(),
                    [&](const Range& range) { return range.Holds(begin, end); })) {
      continue;
    }
    std::string places;
    for (const Range& range : allowed) {
      places += fmt::format("{}{} {}..{}", places.empty() ? "" : " or ", range.name, range.begin,
                            range.end);
    }
    return Bad(fmt::format("{}, {}", who, verify::NameInstance(program, task, index)),
               fmt::format("its views of region {} are bytes {}..{} of the arena; allowed is {}", r,
                           begin, end, places));
  }
  return Status::Ok();
}

/// Views of parameters and gradients are whole parameters of the instance's layer.
class ParameterViews {
 public:
  explicit ParameterViews(const RankProgram& program) : program_(program) {
    for (const ParameterEntry& e : program.parameters) order_.push_back(&e);
    std::sort(order_.begin(), order_.end(),
              [](const auto* a, const auto* b) { return a->offset < b->offset; });
  }

  Status Check(const Instance& instance, const std::string& who, int32_t task, int32_t index) {
    const Block& block = program_.blocks[static_cast<size_t>(instance.block)];
    if (block.phase == Phase::kStep) return Status::Ok();
    const auto base = [&](Region r) { return instance.base[static_cast<size_t>(r)]; };
    if (!seen_
             .emplace(instance.block, instance.layer, base(Region::kParameter),
                      base(Region::kParameterLate), base(Region::kGradient),
                      base(Region::kGradientLate))
             .second) {
      return Status::Ok();
    }
    for (const Op& op : block.ops) {
      for (const Operand& o : op.operands) {
        if (o.tensor < 0) continue;
        const TensorView& t = block.tensors[static_cast<size_t>(o.tensor)];
        const bool parameter = t.region == Region::kParameter || t.region == Region::kParameterLate;
        const bool gradient = t.region == Region::kGradient || t.region == Region::kGradientLate;
        if (!parameter && !gradient) continue;
        const int64_t area = parameter ? program_.arena.parameters : program_.arena.gradients;
        const std::string found = Mismatch(t, base(t.region) + t.offset - area, instance.layer);
        if (found.empty()) continue;
        return Bad(fmt::format("{}, {}, op {}", who, verify::NameInstance(program_, task, index),
                               ToString(op.kind)),
                   fmt::format("{} {} lies on {}; it must be one whole parameter of its layer",
                               parameter ? "parameter" : "gradient", t.name, found));
      }
    }
    return Status::Ok();
  }

 private:
  /// Empty when the view is one parameter of `layer`; else what lies there.
  std::string Mismatch(const TensorView& t, int64_t byte, int64_t layer) const {
    const int64_t element = byte / SizeOf(t.dtype);
    auto it = std::upper_bound(order_.begin(), order_.end(), element,
                               [](int64_t at, const auto* e) { return at < e->offset; });
    if (it == order_.begin()) return "no parameter";
    const ParameterEntry& e = **--it;
    if (byte % SizeOf(t.dtype) == 0 && e.offset == element && e.elements() == t.elements() &&
        e.layer == layer) {
      return "";
    }
    return fmt::format("element {} of {} (layer {}, {} elements)", element - e.offset, e.name,
                       e.layer, e.elements());
  }

  const RankProgram& program_;
  std::vector<const ParameterEntry*> order_;
  std::set<std::tuple<int32_t, int64_t, int64_t, int64_t, int64_t, int64_t>> seen_;
};

}  // namespace

Status CheckAddresses(const Programs& programs) {
  MW_RETURN_IF_ERROR(CheckIndices(programs));
  for (size_t p = 0; p < programs.programs.size(); ++p) {
    const RankProgram& program = programs.programs[p];
    const std::string who = verify::NameRanksOf(programs, static_cast<int32_t>(p));
    std::vector<BlockExtents> extents;
    for (const Block& block : program.blocks) extents.push_back(ExtentsOf(block));
    ParameterViews views(program);
    for (size_t t = 0; t < program.tasks.size(); ++t) {
      const Task& task = program.tasks[t];
      for (size_t i = 0; i < task.instances.size(); ++i) {
        const Instance& instance = task.instances[i];
        const auto ti = static_cast<int32_t>(t);
        const auto ii = static_cast<int32_t>(i);
        MW_RETURN_IF_ERROR(CheckRegions(program, extents[static_cast<size_t>(instance.block)],
                                        instance, who, ti, ii));
        MW_RETURN_IF_ERROR(views.Check(instance, who, ti, ii));
      }
    }
  }
  return Status::Ok();
}

}  // namespace meshwright::planner
