#include "runtime/shadow_analysis.h"

#include <algorithm>

namespace meshwright::runtime {
namespace {

using planner::Access;

/// How one op uses the bytes between two neighbouring cuts.
struct Use {
  int32_t op = 0;
  bool reads = false;
  bool writes = false;
};

/// The arena cut at every begin and end of an operand; uses of each piece in issue order.
struct Pieces {
  std::vector<int64_t> cuts;
  std::vector<std::vector<Use>> uses;

  ByteRange Bytes(size_t i) const { return {cuts[i], cuts[i + 1]}; }
};

Pieces CutArena(const IssueOrder& order) {
  Pieces pieces;
  for (const IssuedOp& op : order.ops) {
    for (size_t i = 0; i < op.op->operands.size(); ++i) {
      const ByteRange range = RangeOf(op, i);
      if (range.begin == range.end) continue;
      pieces.cuts.push_back(range.begin);
      pieces.cuts.push_back(range.end);
    }
  }
  std::sort(pieces.cuts.begin(), pieces.cuts.end());
  pieces.cuts.erase(std::unique(pieces.cuts.begin(), pieces.cuts.end()), pieces.cuts.end());
  pieces.uses.resize(pieces.cuts.empty() ? 0 : pieces.cuts.size() - 1);
  for (const IssuedOp& op : order.ops) {
    for (size_t i = 0; i < op.op->operands.size(); ++i) {
      const ByteRange range = RangeOf(op, i);
      if (range.begin == range.end) continue;
      const Access access = op.op->operands[i].access;
      const auto first = std::lower_bound(pieces.cuts.begin(), pieces.cuts.end(), range.begin);
      for (auto p = static_cast<size_t>(first - pieces.cuts.begin()); pieces.cuts[p] < range.end;
           ++p) {
        std::vector<Use>& uses = pieces.uses[p];
        if (uses.empty() || uses.back().op != op.index) uses.push_back({op.index});
        uses.back().reads = uses.back().reads || access != Access::kWrite;
        uses.back().writes = uses.back().writes || access != Access::kRead;
      }
    }
  }
  return pieces;
}

void AddRange(std::vector<ByteRange>* ranges, const ByteRange& range) {
  if (!ranges->empty() && ranges->back().end == range.begin) {
    ranges->back().end = range.end;
  } else {
    ranges->push_back(range);
  }
}

/// Adds the conflicts of one piece. The second pass knows the last uses of the step before.
void AddConflicts(const IssueOrder& order, const ByteRange& bytes, const std::vector<Use>& uses,
                  ShadowAnalysis* out) {
  Dependency writer{-1};
  std::vector<Dependency> readers;
  const auto add = [&](const Use& use, const Dependency& on) {
    if (on.op < 0 || order.ops[static_cast<size_t>(on.op)].op->stream ==
                         order.ops[static_cast<size_t>(use.op)].op->stream) {
      return;
    }
    std::vector<Conflict>& known = out->conflicts[static_cast<size_t>(use.op)];
    const bool repeated =
        std::any_of(known.begin(), known.end(), [&](const Conflict& c) { return c.on == on; });
    if (!repeated) known.push_back({on, bytes});
  };
  for (const bool second : {false, true}) {
    for (const Use& use : uses) {
      if (second) add(use, writer);
      if (use.writes) {
        for (const Dependency& reader : readers) {
          if (second && reader.op != use.op) add(use, reader);
        }
        readers.clear();
        writer = {use.op};
      } else {
        readers.push_back({use.op});
      }
    }
    writer.previous_step = true;
    for (Dependency& reader : readers) reader.previous_step = true;
  }
}

/// Splits the uses of one piece at the ops that overwrite it without reading.
void AddValues(const ByteRange& bytes, const std::vector<Use>& uses, ShadowAnalysis* out) {
  const auto overwrites = [](const Use& use) { return use.writes && !use.reads; };
  for (const Use& use : uses) {
    if (overwrites(use)) AddRange(&out->overwritten[static_cast<size_t>(use.op)], bytes);
  }
  const bool fresh = overwrites(uses.front());
  if (fresh) AddRange(&out->dead_at_start, bytes);
  for (size_t begin = 0; begin < uses.size();) {
    size_t end = begin + 1;
    while (end < uses.size() && !overwrites(uses[end])) ++end;
    // The first content may come from the step before, the last one may live on into the next.
    const bool ends = overwrites(uses[begin]) && (end < uses.size() || fresh);
    if (ends) {
      const auto value = static_cast<int32_t>(out->values.size());
      out->values.push_back({bytes, static_cast<int32_t>(end - begin)});
      for (size_t i = begin; i < end; ++i) {
        out->values_used[static_cast<size_t>(uses[i].op)].push_back(value);
      }
    }
    begin = end;
  }
}

std::vector<ByteRange> Unowned(const planner::RankProgram& program, const Pieces& pieces) {
  std::vector<ByteRange> owned;
  for (size_t p = 0; p < pieces.uses.size(); ++p) {
    if (!pieces.uses[p].empty()) owned.push_back(pieces.Bytes(p));
  }
  const planner::ArenaLayout& arena = program.arena;
  owned.push_back({arena.parameters, arena.parameters + arena.memory.parameters});
  owned.push_back({arena.gradients, arena.gradients + arena.memory.gradients});
  owned.push_back({arena.optimizer, arena.optimizer + arena.memory.optimizer});
  owned.push_back({arena.io, arena.io + planner::kScalarBytes});
  std::sort(owned.begin(), owned.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  std::vector<ByteRange> unowned;
  int64_t at = 0;
  for (const ByteRange& range : owned) {
    if (range.begin > at) unowned.push_back({at, range.begin});
    at = std::max(at, range.end);
  }
  if (at < arena.size) unowned.push_back({at, arena.size});
  return unowned;
}

}  // namespace

ShadowAnalysis AnalyzeForShadow(const planner::RankProgram& program, const IssueOrder& order) {
  ShadowAnalysis out;
  out.conflicts.resize(order.ops.size());
  out.values_used.resize(order.ops.size());
  out.overwritten.resize(order.ops.size());
  const Pieces pieces = CutArena(order);
  for (size_t p = 0; p < pieces.uses.size(); ++p) {
    if (pieces.uses[p].empty()) continue;
    AddConflicts(order, pieces.Bytes(p), pieces.uses[p], &out);
    AddValues(pieces.Bytes(p), pieces.uses[p], &out);
  }
  out.unowned = Unowned(program, pieces);
  return out;
}

}  // namespace meshwright::runtime
