// How the verifier's messages name ranks and ops.
#pragma once

#include <string>

#include "planner/ir/program.h"

namespace meshwright::planner::verify {

/// Where an op stands: indices into tasks, instances of the task, ops of its block.
struct OpPlace {
  int32_t task = 0;
  int32_t instance = 0;
  int32_t op = 0;
  friend bool operator==(const OpPlace&, const OpPlace&) = default;
};

const Instance& InstanceAt(const RankProgram& program, const OpPlace& place);
const Block& BlockAt(const RankProgram& program, const OpPlace& place);
const Op& OpAt(const RankProgram& program, const OpPlace& place);

/// "rank 3 (language, stage 1)".
std::string NameRank(const Programs& programs, int32_t rank);

/// "rank 0 (language, stage 0) and 7 more of its class": the ranks that run program `index`.
std::string NameRanksOf(const Programs& programs, int32_t index);

/// "task Forward(0,1), block layer.0/forward of layer 3".
std::string NameInstance(const RankProgram& program, int32_t task, int32_t instance);

/// "task Forward(0,1), block layer.0/forward of layer 3, op 4 all_gather on stream tp".
std::string NameOp(const RankProgram& program, const OpPlace& place);

}  // namespace meshwright::planner::verify
