// Which communicators a stage uses, in the order every rank of the class lists them.
#pragma once

#include <string>
#include <vector>

#include "planner/ir/program.h"

namespace meshwright::planner::lower {

/// Direction and class of a pipeline edge as a stage sees it.
enum class Edge : uint8_t { kActIn, kActOut, kGradIn, kGradOut };

struct StageCommunicators {
  std::vector<CommunicatorInfo> list;
  int32_t tensor = -1, data = -1, world = -1, kv = -1, tied = -1;
  int32_t edge[4] = {-1, -1, -1, -1};  ///< by Edge
  int32_t Of(Edge e) const { return edge[static_cast<size_t>(e)]; }
};

/// Stages that an edge of `stage` joins, from sender to receiver.
struct EdgeStages {
  int64_t from = 0;
  int64_t to = 0;
  bool gradient = false;
};
EdgeStages StagesOf(Edge edge, int64_t stage, int64_t pp);
/// True when the stage has traffic on the edge (the ends only with virtual stages).
bool HasEdge(const ModulePlan& module, Edge edge, int64_t stage);

StageCommunicators CommunicatorsOf(const Plan& plan, size_t module, int64_t stage);

/// Groups of all modules in creation order, and the bindings of all ranks; `own_programs`: to a
/// program a tensor rank where those differ.
void BuildGroups(const Plan& plan, bool own_programs, Programs& programs);

}  // namespace meshwright::planner::lower
