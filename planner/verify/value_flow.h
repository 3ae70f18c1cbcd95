// Which value a read may see. A slot or buffer holds the value of one micro-batch after another; a
// read of what another micro-batch left there is an error even when every access is ordered.
#pragma once

#include <cstdint>
#include <string>

#include "planner/ir/program.h"

namespace meshwright::planner::verify {

/// Parts of the arena, by the rule that reads of them obey.
enum class AreaRule : uint8_t {
  kState,        ///< parameters and optimizer: live from step to step
  kAccumulated,  ///< gradients and step scalars: what a step adds to, it has written before
  kTransient,    ///< slots, scratch, buffers, labels: written earlier for the same micro-batch
};
AreaRule RuleAt(const ArenaLayout& arena, int64_t byte);

/// Who wrote or reads: the task, the layer of the instance, the step (0 or 1).
struct Toucher {
  const Task* task = nullptr;  ///< nullptr: nobody yet
  int64_t layer = -1;
  int32_t step = 0;
};

/// How a read takes part in the rule.
struct ReadKind {
  bool accumulates = false;  ///< adds to the value
  bool saved = false;        ///< through Region::kSaved: of the same layer
};

/// True when `reader` may read what `writer` wrote.
bool ReadIsCurrent(AreaRule rule, const Toucher& writer, const Toucher& reader, ReadKind kind);

/// What is wrong with such a read, e.g. "which Forward(0,3) wrote".
std::string WhyStale(AreaRule rule, const Toucher& writer, const Toucher& reader);

}  // namespace meshwright::planner::verify
