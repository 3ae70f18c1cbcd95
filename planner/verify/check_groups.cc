#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "planner/ir/op_schema.h"
#include "planner/verify/checks.h"
#include "planner/verify/names.h"

namespace meshwright::planner {
namespace {

using verify::NameRank;

const char* Name(CommunicatorKind kind) {
  switch (kind) {
    case CommunicatorKind::kTensor:
      return "tensor";
    case CommunicatorKind::kData:
      return "data";
    case CommunicatorKind::kWorld:
      return "world";
    case CommunicatorKind::kKeyValueCopies:
      return "key-value copies";
    case CommunicatorKind::kTied:
      return "tied embedding";
    case CommunicatorKind::kEdge:
      return "edge";
  }
  return "?";
}

Status Bad(const std::string& what) {
  return Infeasible("groups: " + what + "; make the group tables of all ranks agree");
}

const RankProgram& ProgramOf(const Programs& programs, size_t rank) {
  return programs.programs[static_cast<size_t>(programs.ranks[rank].program)];
}
const ModulePlan& ModuleOf(const Programs& programs, size_t rank) {
  return programs.modules[static_cast<size_t>(ProgramOf(programs, rank).module)];
}

int64_t RankAt(const ModulePlan& m, int64_t tp, int64_t cp, int64_t ep, int64_t dp, int64_t pp) {
  return m.rank_offset + tp + m.tp * (cp + m.cp * (ep + m.ep * (dp + m.dp * pp)));
}

/// Coordinates of every rank against the process grid of its module.
Status CheckCoordinates(const Programs& programs) {
  const auto world = static_cast<int64_t>(programs.ranks.size());
  int64_t end = 0;
  for (const ModulePlan& m : programs.modules) {
    int64_t left = m.rank_offset >= 0 ? world - m.rank_offset : 0;
    for (int64_t size : {m.tp, m.cp, m.ep, m.dp, m.pp}) left = size >= 1 ? left / size : 0;
    if (left < 1) {
      return Bad(
          fmt::format("the grid of module {} (tp {} cp {} ep {} dp {} pp {} at offset {}) "
                      "does not fit {} ranks",
                      m.module, m.tp, m.cp, m.ep, m.dp, m.pp, m.rank_offset, world));
    }
    end = std::max(end, m.rank_offset + m.ranks());
  }
  if (end != world) {
    return Bad(
        fmt::format("the grids of the modules end at rank {}, but there are {} ranks", end, world));
  }
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    const RankBinding& b = programs.ranks[r];
    const ModulePlan& m = ModuleOf(programs, r);
    const auto inside = [](int64_t i, int64_t n) { return i >= 0 && i < n; };
    if (!inside(b.tp_index, m.tp) || !inside(b.cp_index, m.cp) || !inside(b.ep_index, m.ep) ||
        !inside(b.dp_index, m.dp) || !inside(b.pp_index, m.pp) ||
        RankAt(m, b.tp_index, b.cp_index, b.ep_index, b.dp_index, b.pp_index) !=
            static_cast<int64_t>(r)) {
      return Bad(fmt::format(
          "{} has coordinates tp {} cp {} ep {} dp {} pp {}, which the grid tp {} cp {} ep {} dp "
          "{} pp {} at offset {} does not give it",
          NameRank(programs, static_cast<int32_t>(r)), b.tp_index, b.cp_index, b.ep_index,
          b.dp_index, b.pp_index, m.tp, m.cp, m.ep, m.dp, m.pp, m.rank_offset));
    }
    if (ProgramOf(programs, r).stage != b.pp_index) {
      return Bad(fmt::format("{} runs the program of stage {}, its coordinate is pp {}",
                             NameRank(programs, static_cast<int32_t>(r)),
                             ProgramOf(programs, r).stage, b.pp_index));
    }
  }
  return Status::Ok();
}

/// Members that a group of `kind` with rank `r` must have; empty: CheckEdge decides.
std::vector<int32_t> ExpectedMembers(const Programs& programs, size_t r, CommunicatorKind kind) {
  const ModulePlan& m = ModuleOf(programs, r);
  const RankBinding& b = programs.ranks[r];
  std::vector<int32_t> members;
  const auto add = [&](int64_t tp, int64_t cp, int64_t dp, int64_t pp) {
    members.push_back(static_cast<int32_t>(RankAt(m, tp, cp, b.ep_index, dp, pp)));
  };
  switch (kind) {
    case CommunicatorKind::kTensor:
      for (int64_t i = 0; i < m.tp; ++i) add(i, b.cp_index, b.dp_index, b.pp_index);
      break;
    case CommunicatorKind::kKeyValueCopies: {
      const int64_t copies = std::max<int64_t>(m.kv_copies, 1);
      const int64_t first = b.tp_index / copies * copies;
      for (int64_t i = 0; i < copies; ++i) add(first + i, b.cp_index, b.dp_index, b.pp_index);
      break;
    }
    case CommunicatorKind::kData:
      for (int64_t d = 0; d < m.dp; ++d) {
        for (int64_t c = 0; c < m.cp; ++c) add(b.tp_index, c, d, b.pp_index);
      }
      break;
    case CommunicatorKind::kTied:
      add(b.tp_index, b.cp_index, b.dp_index, 0);
      if (m.pp > 1) add(b.tp_index, b.cp_index, b.dp_index, m.pp - 1);
      break;
    case CommunicatorKind::kWorld:
      for (size_t i = 0; i < programs.ranks.size(); ++i) members.push_back(static_cast<int32_t>(i));
      break;
    case CommunicatorKind::kEdge:
      break;
  }
  return members;
}

/// An edge joins two ranks: neighbouring stages of one module with the other coordinates equal, or
/// last and first stage of two modules.
Status CheckEdge(const Programs& programs, const Group& group) {
  const std::string name = fmt::format("edge group {} of ranks {}", group.name, group.ranks);
  if (group.ranks.size() != 2) return Bad(name + " must have two ranks");
  const auto a = static_cast<size_t>(group.ranks[0]);
  const auto b = static_cast<size_t>(group.ranks[1]);
  if (ProgramOf(programs, a).module != ProgramOf(programs, b).module) return Status::Ok();
  const ModulePlan& m = ModuleOf(programs, a);
  const RankBinding& x = programs.ranks[a];
  const RankBinding& y = programs.ranks[b];
  const bool neighbours =
      (x.pp_index + 1) % m.pp == y.pp_index || (y.pp_index + 1) % m.pp == x.pp_index;
  if (!neighbours || x.tp_index != y.tp_index || x.cp_index != y.cp_index ||
      x.ep_index != y.ep_index || x.dp_index != y.dp_index) {
    return Bad(name + " must join neighbouring stages at equal tp, cp, ep and dp coordinates");
  }
  return Status::Ok();
}

/// What one rank calls its communicators against the groups that exist.
Status CheckListings(const Programs& programs, size_t r, const std::vector<bool>& world_ok) {
  const RankProgram& program = ProgramOf(programs, r);
  const std::string who = NameRank(programs, static_cast<int32_t>(r));
  const auto& listed = programs.ranks[r].groups;
  for (size_t c = 0; c < listed.size(); ++c) {
    const CommunicatorInfo& info = program.communicators[c];
    const Group& group = programs.groups[static_cast<size_t>(listed[c])];
    const auto describe = [&] {
      return fmt::format("{} binds communicator {} ({}, {} ranks) to group {} ({}, ranks {})", who,
                         info.name, Name(info.kind), info.size, group.name, Name(group.kind),
                         group.ranks);
    };
    if (info.kind != group.kind) return Bad(describe() + ": kinds differ");
    if (info.size != static_cast<int64_t>(group.ranks.size())) {
      return Bad(describe() + ": sizes differ");
    }
    if (group.kind == CommunicatorKind::kWorld && world_ok[static_cast<size_t>(listed[c])]) {
      continue;
    }
    if (std::find(group.ranks.begin(), group.ranks.end(), static_cast<int32_t>(r)) ==
        group.ranks.end()) {
      return Bad(describe() + ": the rank is not a member");
    }
    if (group.kind == CommunicatorKind::kEdge) {
      MW_RETURN_IF_ERROR(CheckEdge(programs, group));
      continue;
    }
    const std::vector<int32_t> expected = ExpectedMembers(programs, r, info.kind);
    if (group.ranks != expected) {
      return Bad(fmt::format("{}: the process grid gives {}", describe(), expected));
    }
  }
  return Status::Ok();
}

/// Every member of a group lists it exactly once.
Status CheckMembership(const Programs& programs) {
  std::vector<int32_t> last_group(programs.ranks.size(), -1);
  std::vector<int64_t> listings(programs.groups.size(), 0);
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    std::vector<int32_t> own = programs.ranks[r].groups;
    std::sort(own.begin(), own.end());
    if (const auto twice = std::adjacent_find(own.begin(), own.end()); twice != own.end()) {
      return Bad(fmt::format("{} lists group {} twice", NameRank(programs, static_cast<int32_t>(r)),
                             programs.groups[static_cast<size_t>(*twice)].name));
    }
    for (int32_t g : own) ++listings[static_cast<size_t>(g)];
  }
  for (size_t g = 0; g < programs.groups.size(); ++g) {
    const Group& group = programs.groups[g];
    for (int32_t rank : group.ranks) {
      int32_t& last = last_group[static_cast<size_t>(rank)];
      if (last == static_cast<int32_t>(g)) {
        return Bad(fmt::format("group {} holds rank {} twice", group.name, rank));
      }
      last = static_cast<int32_t>(g);
    }
    // Listing ranks are members (CheckListings), each once: a shortfall is a member without
    // listing.
    if (listings[g] == static_cast<int64_t>(group.ranks.size())) continue;
    for (int32_t rank : group.ranks) {
      const auto& own = programs.ranks[static_cast<size_t>(rank)].groups;
      if (std::find(own.begin(), own.end(), static_cast<int32_t>(g)) != own.end()) continue;
      return Bad(fmt::format("{} is a member of group {} {} but has no communicator for it",
                             NameRank(programs, rank), group.name, group.ranks));
    }
  }
  return Status::Ok();
}

/// All ops on a communicator are on one stream, so that their order is one order.
Status CheckStreams(const Programs& programs, size_t index) {
  const RankProgram& program = programs.programs[index];
  std::vector<std::pair<const Block*, const Op*>> first(program.communicators.size());
  for (const Block& block : program.blocks) {
    for (const Op& op : block.ops) {
      if (!IsCollective(op.kind) && !IsMessage(op.kind)) continue;
      auto& seen = first[static_cast<size_t>(op.attributes.communicator)];
      if (seen.second == nullptr) seen = {&block, &op};
      if (seen.second->stream == op.stream) continue;
      return Bad(fmt::format(
          "{}: communicator {} is used from stream {} (block {}, {}) and from stream {} (block {}, "
          "{}); allowed is one stream a communicator",
          verify::NameRanksOf(programs, static_cast<int32_t>(index)),
          program.communicators[static_cast<size_t>(op.attributes.communicator)].name,
          program.streams[static_cast<size_t>(seen.second->stream)].name, seen.first->name,
          ToString(seen.second->kind), program.streams[static_cast<size_t>(op.stream)].name,
          block.name, ToString(op.kind)));
    }
  }
  return Status::Ok();
}

}  // namespace

Status CheckGroups(const Programs& programs) {
  MW_RETURN_IF_ERROR(CheckIndices(programs));
  MW_RETURN_IF_ERROR(CheckCoordinates(programs));
  std::vector<bool> world_ok;  // the long list is compared once, not once a rank
  for (const Group& group : programs.groups) {
    world_ok.push_back(group.kind == CommunicatorKind::kWorld &&
                       group.ranks == ExpectedMembers(programs, 0, CommunicatorKind::kWorld));
  }
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    MW_RETURN_IF_ERROR(CheckListings(programs, r, world_ok));
  }
  MW_RETURN_IF_ERROR(CheckMembership(programs));
  for (size_t p = 0; p < programs.programs.size(); ++p) {
    MW_RETURN_IF_ERROR(CheckStreams(programs, p));
  }
  return Status::Ok();
}

}  // namespace meshwright::planner
