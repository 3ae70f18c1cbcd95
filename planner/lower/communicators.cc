#include "planner/lower/communicators.h"

#include <fmt/format.h>

#include <array>
#include <map>

#include "planner/lower/stage.h"

namespace meshwright::planner::lower {
namespace {

constexpr std::array<Edge, 4> kEdges = {Edge::kActIn, Edge::kActOut, Edge::kGradIn, Edge::kGradOut};

std::string EdgeName(const EdgeStages& e) {
  return fmt::format("edge {} {}>{}", e.gradient ? "grad" : "act", e.from, e.to);
}

struct Coordinates {
  int64_t tp = 0, dp = 0, pp = 0;
};

int32_t RankOf(const ModulePlan& m, const Coordinates& c) {
  return static_cast<int32_t>(m.rank_offset + c.tp + m.tp * m.cp * m.ep * (c.dp + m.dp * c.pp));
}

/// Creates each group once, whoever asks first; `name` makes it unique.
class GroupTable {
 public:
  explicit GroupTable(std::vector<Group>& groups) : groups_(groups) {}
  int32_t Get(const std::string& name, CommunicatorKind kind, std::vector<int32_t> ranks) {
    const auto [it, added] = index_.emplace(name, static_cast<int32_t>(groups_.size()));
    if (added) groups_.push_back({name, kind, std::move(ranks)});
    return it->second;
  }

 private:
  std::vector<Group>& groups_;
  std::map<std::string, int32_t> index_;
};

/// Ranks of the group that `kind` means for a rank at `c`.
std::vector<int32_t> MembersOf(const Plan& plan, const ModulePlan& m, CommunicatorKind kind,
                               Coordinates c) {
  std::vector<int32_t> ranks;
  switch (kind) {
    case CommunicatorKind::kTensor:
      for (c.tp = 0; c.tp < m.tp; ++c.tp) ranks.push_back(RankOf(m, c));
      break;
    case CommunicatorKind::kData:
      for (c.dp = 0; c.dp < m.dp; ++c.dp) ranks.push_back(RankOf(m, c));
      break;
    case CommunicatorKind::kKeyValueCopies: {
      const int64_t begin = c.tp / m.kv_copies * m.kv_copies;
      for (c.tp = begin; c.tp < begin + m.kv_copies; ++c.tp) ranks.push_back(RankOf(m, c));
      break;
    }
    case CommunicatorKind::kTied:
      for (int64_t p : {int64_t{0}, m.pp - 1}) {
        c.pp = p;
        ranks.push_back(RankOf(m, c));
      }
      break;
    case CommunicatorKind::kWorld:
      for (int64_t r = 0; r < plan.world_size(); ++r) ranks.push_back(static_cast<int32_t>(r));
      break;
    case CommunicatorKind::kEdge:
      break;  // named by its stages, see BindRank
  }
  return ranks;
}

void BindRank(const Plan& plan, size_t module, const Coordinates& c, const StageCommunicators& list,
              GroupTable& table, RankBinding& binding) {
  const ModulePlan& m = plan.modules[module];
  for (size_t i = 0; i < list.list.size(); ++i) {
    const CommunicatorInfo& info = list.list[i];
    std::string lane = info.name;
    std::vector<int32_t> ranks;
    if (info.kind == CommunicatorKind::kEdge) {
      for (Edge e : kEdges) {
        if (list.Of(e) != static_cast<int32_t>(i)) continue;
        const EdgeStages stages = StagesOf(e, c.pp, m.pp);
        for (int64_t stage : {stages.from, stages.to}) {
          ranks.push_back(RankOf(m, {c.tp, c.dp, stage}));
        }
      }
    } else {
      ranks = MembersOf(plan, m, info.kind, c);
    }
    if (info.kind != CommunicatorKind::kWorld) {
      lane = fmt::format("{} {} {}", m.module, info.name, fmt::join(ranks, ","));
    }
    binding.groups.push_back(table.Get(lane, info.kind, std::move(ranks)));
  }
}

}  // namespace

EdgeStages StagesOf(Edge edge, int64_t stage, int64_t pp) {
  const int64_t next = (stage + 1) % pp;
  const int64_t previous = (stage + pp - 1) % pp;
  switch (edge) {
    case Edge::kActIn:
      return {previous, stage, false};
    case Edge::kActOut:
      return {stage, next, false};
    case Edge::kGradIn:
      return {next, stage, true};
    case Edge::kGradOut:
      return {stage, previous, true};
  }
  return {};
}

bool HasEdge(const ModulePlan& m, Edge edge, int64_t stage) {
  if (m.pp == 1) return false;
  if (m.virtual_stages > 1) return true;
  const bool toward_start = edge == Edge::kActIn || edge == Edge::kGradOut;
  return toward_start ? stage > 0 : stage + 1 < m.pp;
}

StageCommunicators CommunicatorsOf(const Plan& plan, size_t module, int64_t stage) {
  const ModulePlan& m = plan.modules[module];
  const SplitFacts split = SplitOf(plan, module, stage);
  StageCommunicators c;
  const auto add = [&](const std::string& name, CommunicatorKind kind, int64_t size) {
    c.list.push_back({name, kind, size});
    return static_cast<int32_t>(c.list.size()) - 1;
  };
  // The tensor group is communicator 0 wherever it exists: block templates rely on it.
  if (m.tp > 1) c.tensor = add("tp", CommunicatorKind::kTensor, m.tp);
  if (m.dp > 1) c.data = add("dp", CommunicatorKind::kData, m.dp);
  if (m.kv_copies > 1) c.kv = add("kv", CommunicatorKind::kKeyValueCopies, m.kv_copies);
  if (split.tied_across) c.tied = add("tied", CommunicatorKind::kTied, 2);
  if (plan.world_size() > 1) c.world = add("world", CommunicatorKind::kWorld, plan.world_size());
  for (Edge e : kEdges) {
    if (!HasEdge(m, e, stage)) continue;
    c.edge[static_cast<size_t>(e)] =
        add(EdgeName(StagesOf(e, stage, m.pp)), CommunicatorKind::kEdge, 2);
  }
  return c;
}

void BuildGroups(const Plan& plan, bool own_programs, Programs& programs) {
  GroupTable table(programs.groups);
  programs.ranks.resize(static_cast<size_t>(plan.world_size()));
  int32_t program = 0;
  for (size_t module = 0; module < plan.modules.size(); ++module) {
    const ModulePlan& m = plan.modules[module];
    const auto programs_per_stage =
        own_programs ? static_cast<int32_t>(m.programs_per_stage()) : 1;
    for (int64_t pp = 0; pp < m.pp; ++pp, program += programs_per_stage) {
      const StageCommunicators list = CommunicatorsOf(plan, module, pp);
      for (int64_t dp = 0; dp < m.dp; ++dp) {
        for (int64_t tp = 0; tp < m.tp; ++tp) {
          const Coordinates c{tp, dp, pp};
          RankBinding& binding = programs.ranks[static_cast<size_t>(RankOf(m, c))];
          binding.program = program + (programs_per_stage > 1 ? static_cast<int32_t>(tp) : 0);
          binding.tp_index = tp;
          binding.dp_index = dp;
          binding.pp_index = pp;
          BindRank(plan, module, c, list, table, binding);
        }
      }
    }
  }
}

}  // namespace meshwright::planner::lower
