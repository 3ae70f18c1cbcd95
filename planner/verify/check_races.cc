#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "planner/ir/parallel_for.h"
#include "planner/verify/access.h"
#include "planner/verify/checks.h"
#include "planner/verify/clocks.h"
#include "planner/verify/names.h"
#include "planner/verify/op_races.h"
#include "planner/verify/value_flow.h"

namespace meshwright::planner {
namespace {

using verify::AccessCluster;
using verify::AccessSegment;
using verify::AccessTemplate;
using verify::AreaRule;
using verify::BlockAccess;
using verify::BlockOrder;
using verify::ByteRange;
using verify::ClockWalk;
using verify::Toucher;

/// State of a range of bytes that every segment covers whole or not at all.
struct Cell {
  int64_t begin = 0;
  int32_t write_position = 0;  ///< since the first step; 0: never written
  StreamId write_stream = 0;
  AreaRule rule = AreaRule::kState;
  int32_t writer = -1;  ///< step * instances + instance
};

/// A cluster at an address: cells of each of its segments.
struct PlacedCluster {
  const AccessCluster* cluster = nullptr;
  std::vector<std::pair<int32_t, int32_t>> cells;  ///< per segment: first, past the last
};

struct ClusterKey {
  const AccessCluster* cluster;
  int64_t base;
  friend bool operator==(const ClusterKey&, const ClusterKey&) = default;
};
struct ClusterKeyHash {
  size_t operator()(const ClusterKey& k) const {
    return std::hash<const void*>()(k.cluster) ^
           (static_cast<size_t>(k.base) * size_t{0x9e3779b97f4a7c15ULL});
  }
};

/// One rank's two steps, instance by instance.
class RaceWalk {
 public:
  explicit RaceWalk(const RankProgram& program) : program_(program) {
    orders_.reserve(program.blocks.size());
    accesses_.reserve(program.blocks.size());
    for (const Block& block : program.blocks) {
      orders_.push_back(verify::OrderOf(block));
      accesses_.emplace_back(block, orders_.back());
    }
  }

  /// The bytes of a race or stale read, if there is one.
  std::optional<ByteRange> Find() {
    if (auto race = PlaceInstances()) return race;
    MakeCells();
    ClockWalk walk(program_, orders_);
    last_reads_.assign(cells_.size() * walk.width(), 0);
    for (int32_t step = 0; step < 2; ++step) {
      for (size_t i = 0; i < instances_.size(); ++i) {
        walk.Enter(*instances_[i].instance);
        for (size_t p = placed_begin_[i]; p < placed_begin_[i + 1]; ++p) {
          const PlacedCluster& placed = clusters_[static_cast<size_t>(placed_[p])];
          for (size_t s = 0; s < placed.cells.size(); ++s) {
            const AccessSegment& segment = placed.cluster->segments[s];
            for (int32_t c = placed.cells[s].first; c < placed.cells[s].second; ++c) {
              if (!Touch(walk, segment, static_cast<size_t>(c), i, step)) return BytesOf(c);
            }
          }
        }
        walk.Leave(*instances_[i].instance);
      }
    }
    return std::nullopt;
  }

 private:
  struct Place {
    const Task* task;
    const Instance* instance;
  };

  std::optional<ByteRange> PlaceInstances() {
    std::unordered_map<ClusterKey, int32_t, ClusterKeyHash> known;
    for (const Task& task : program_.tasks) {
      for (const Instance& instance : task.instances) {
        const AccessTemplate& access = accesses_[static_cast<size_t>(instance.block)].For(instance);
        if (access.conflict) {
          const int64_t at = instance.base[access.conflict->anchor] + access.conflict->offset;
          return ByteRange{at, at + 1};
        }
        instances_.push_back({&task, &instance});
        placed_begin_.push_back(placed_.size());
        for (const AccessCluster& cluster : access.clusters) {
          const ClusterKey key{&cluster, instance.base[cluster.anchor]};
          const auto [it, added] = known.emplace(key, static_cast<int32_t>(clusters_.size()));
          if (added) {
            clusters_.push_back({&cluster, {}});
            bases_.push_back(key.base);
          }
          placed_.push_back(it->second);
        }
      }
    }
    placed_begin_.push_back(placed_.size());
    return std::nullopt;
  }

  void MakeCells() {
    std::vector<int64_t> ends;
    for (size_t i = 0; i < clusters_.size(); ++i) {
      for (const AccessSegment& s : clusters_[i].cluster->segments) {
        ends.push_back(bases_[i] + s.begin);
        ends.push_back(bases_[i] + s.end);
      }
    }
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    cells_.reserve(ends.size());
    for (int64_t e : ends) {
      Cell cell;
      cell.begin = e;
      cell.rule = verify::RuleAt(program_.arena, e);
      cells_.push_back(cell);
    }
    const auto index = [&](int64_t byte) {
      return static_cast<int32_t>(std::lower_bound(ends.begin(), ends.end(), byte) - ends.begin());
    };
    for (size_t i = 0; i < clusters_.size(); ++i) {
      for (const AccessSegment& s : clusters_[i].cluster->segments) {
        clusters_[i].cells.emplace_back(index(bases_[i] + s.begin), index(bases_[i] + s.end));
      }
    }
  }

  /// Checks a segment against the cell and leaves its mark; false: race or stale read.
  bool Touch(const ClockWalk& walk, const AccessSegment& segment, size_t c, size_t instance,
             int32_t step) {
    Cell& cell = cells_[c];
    int32_t* reads = last_reads_.data() + c * walk.width();
    for (const verify::Obligation& o : segment.obligations) {
      const int32_t* clock = walk.View(o.view);
      if (clock[cell.write_stream] < cell.write_position) return false;
      if (!o.after_reads) continue;
      int32_t late = 0;
      for (size_t i = 0; i < walk.width(); ++i) late |= static_cast<int32_t>(clock[i] < reads[i]);
      if (late != 0) return false;
    }
    if (segment.reads_outside && cell.rule != AreaRule::kState) {
      const Toucher reader{instances_[instance].task, instances_[instance].instance->layer, step};
      if (!verify::ReadIsCurrent(cell.rule, WriterOf(cell), reader,
                                 {segment.accumulates_outside, segment.reads_saved})) {
        return false;
      }
    }
    const BlockOrder& order = walk.order();
    if (segment.writes) {
      cell.write_stream = order.streams[static_cast<size_t>(segment.write_slot)];
      cell.write_position = walk.Count(cell.write_stream) + segment.write_position;
      cell.writer = static_cast<int32_t>(instances_.size()) * step + static_cast<int32_t>(instance);
      std::fill(reads, reads + walk.width(), 0);
    }
    for (const verify::LastRead& r : segment.reads) {
      const StreamId stream = order.streams[static_cast<size_t>(r.slot)];
      reads[stream] = walk.Count(stream) + r.position;
    }
    return true;
  }

  Toucher WriterOf(const Cell& cell) const {
    if (cell.writer < 0) return {};
    const auto count = static_cast<int32_t>(instances_.size());
    const Place& place = instances_[static_cast<size_t>(cell.writer % count)];
    return {place.task, place.instance->layer, cell.writer / count};
  }

  ByteRange BytesOf(int32_t c) const {
    return {cells_[static_cast<size_t>(c)].begin, cells_[static_cast<size_t>(c) + 1].begin};
  }

  const RankProgram& program_;
  std::vector<BlockOrder> orders_;
  std::vector<BlockAccess> accesses_;
  std::vector<Place> instances_;
  std::vector<size_t> placed_begin_;  ///< instance -> first entry of placed_
  std::vector<int32_t> placed_;       ///< indices into clusters_
  std::vector<PlacedCluster> clusters_;
  std::vector<int64_t> bases_;
  std::vector<Cell> cells_;
  std::vector<int32_t> last_reads_;  ///< cell x stream: position of the last read since the write
};

}  // namespace

Status CheckRaces(const Programs& programs, bool use_templates, int threads) {
  MW_RETURN_IF_ERROR(CheckIndices(programs));
  std::vector<std::optional<std::string>> races(programs.programs.size());
  ParallelFor(races.size(), threads, [&](size_t p) {
    const RankProgram& program = programs.programs[p];
    ByteRange where;
    if (use_templates) {
      const std::optional<ByteRange> found = RaceWalk(program).Find();
      if (!found) return;
      where = *found;
    }
    races[p] = verify::FindOpRace(program, where);
    // The two must agree: a race of the fast check that the slow one does not see is our error.
    MW_CHECK(races[p].has_value() || !use_templates);
  });
  for (size_t p = 0; p < races.size(); ++p) {
    if (!races[p]) continue;
    return Infeasible(fmt::format(
        "races: {}: {}", verify::NameRanksOf(programs, static_cast<int32_t>(p)), *races[p]));
  }
  return Status::Ok();
}

}  // namespace meshwright::planner
