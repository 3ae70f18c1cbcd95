#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "planner/verify/checks.h"
#include "planner/verify/names.h"

namespace meshwright::planner {
namespace {

Status Bad(const std::string& what) {
  return Infeasible("saved: " + what +
                    "; forward and backward must lay out the slot alike, and "
                    "live tensors apart");
}

/// A byte range of the saved area and the view through which it was last written.
struct Piece {
  int64_t end = 0;
  const TensorView* view = nullptr;
};
using Pieces = std::map<int64_t, Piece>;  ///< begin -> piece, disjoint

void Cover(Pieces& pieces, int64_t begin, int64_t end, const TensorView* view) {
  const auto split = [&](int64_t at) {
    auto it = pieces.upper_bound(at);
    if (it == pieces.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    pieces[at] = it->second;
    it->second.end = at;
  };
  split(begin);
  split(end);
  pieces.erase(pieces.lower_bound(begin), pieces.lower_bound(end));
  pieces[begin] = {end, view};
}

Pieces SavedBy(const Block& block) {
  Pieces pieces;
  for (const Op& op : block.ops) {
    for (const Operand& o : op.operands) {
      if (o.tensor < 0 || o.access == Access::kRead) continue;
      const TensorView& t = block.tensors[static_cast<size_t>(o.tensor)];
      if (t.region == Region::kSaved) Cover(pieces, t.offset, t.offset + t.bytes(), &t);
    }
  }
  return pieces;
}

/// Every byte of [begin, end) is in some piece.
bool Holds(const Pieces& pieces, int64_t begin, int64_t end) {
  auto it = pieces.upper_bound(begin);
  if (it != pieces.begin()) --it;
  for (; begin < end; ++it) {
    if (it == pieces.end() || it->first > begin || it->second.end <= begin) return false;
    begin = it->second.end;
  }
  return true;
}

/// What `read` finds other than its own tensor; nullptr: nothing. `*found` false: a gap.
const TensorView* Foreign(const Pieces& pieces, const TensorView& read, bool* gap) {
  int64_t at = read.offset;
  const int64_t end = read.offset + read.bytes();
  *gap = false;
  auto it = pieces.upper_bound(at);
  if (it != pieces.begin()) --it;
  for (; at < end; ++it) {
    if (it == pieces.end() || it->first > at || it->second.end <= at) {
      *gap = true;
      return nullptr;
    }
    if (it->second.view->name != read.name || it->second.view->dtype != read.dtype) {
      return it->second.view;
    }
    at = it->second.end;
  }
  return nullptr;
}

/// Reads of saved tensors in `backward` that it has not written itself, against what `forward`
/// left.
std::string Compare(const Block& forward, const Block& backward) {
  const Pieces pieces = SavedBy(forward);
  Pieces own;
  for (const Op& op : backward.ops) {
    for (const Operand& o : op.operands) {
      if (o.tensor < 0 || o.access == Access::kWrite) continue;
      const TensorView& t = backward.tensors[static_cast<size_t>(o.tensor)];
      if (t.region != Region::kSaved || Holds(own, t.offset, t.offset + t.bytes())) continue;
      bool gap = false;
      const TensorView* other = Foreign(pieces, t, &gap);
      if (gap) {
        return fmt::format("block {} reads saved tensor {}, which block {} does not write whole",
                           backward.name, t.name, forward.name);
      }
      if (other != nullptr) {
        return fmt::format(
            "block {} reads saved tensor {}, but block {} leaves tensor {} ({}) "
            "there",
            backward.name, t.name, forward.name, other->name, ToString(other->dtype));
      }
    }
    for (const Operand& o : op.operands) {
      if (o.tensor < 0 || o.access == Access::kRead) continue;
      const TensorView& t = backward.tensors[static_cast<size_t>(o.tensor)];
      if (t.region == Region::kSaved) Cover(own, t.offset, t.offset + t.bytes(), &t);
    }
  }
  return "";
}

Status CheckProgram(const Programs& programs, size_t index) {
  const RankProgram& program = programs.programs[index];
  std::map<std::pair<int64_t, int32_t>, int32_t> forward;  // layer, micro-batch -> block
  std::set<std::pair<int32_t, int32_t>> compared;
  for (const Task& task : program.tasks) {
    if (task.kind != TaskKind::kForward && task.kind != TaskKind::kBackward) continue;
    for (const Instance& i : task.instances) {
      if (i.layer < 0) continue;
      const std::pair<int64_t, int32_t> key{i.layer, task.micro_batch};
      if (task.kind == TaskKind::kForward) {
        forward[key] = i.block;
        continue;
      }
      const auto it = forward.find(key);
      if (it == forward.end() || !compared.emplace(it->second, i.block).second) continue;
      const std::string found = Compare(program.blocks[static_cast<size_t>(it->second)],
                                        program.blocks[static_cast<size_t>(i.block)]);
      if (found.empty()) continue;
      return Bad(fmt::format("{}, task {}, layer {}: {}",
                             verify::NameRanksOf(programs, static_cast<int32_t>(index)),
                             Label(task), i.layer, found));
    }
  }
  return Status::Ok();
}

}  // namespace

Status CheckSaved(const Programs& programs) {
  MW_RETURN_IF_ERROR(CheckIndices(programs));
  for (size_t p = 0; p < programs.programs.size(); ++p) {
    MW_RETURN_IF_ERROR(CheckProgram(programs, p));
  }
  return Status::Ok();
}

}  // namespace meshwright::planner
