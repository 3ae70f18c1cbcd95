#include "planner/ir/peer_traffic.h"

#include <algorithm>

#include "planner/ir/op_schema.h"

namespace meshwright::planner {

int64_t MessageRingBytes(const RankProgram& program) {
  const auto buffered = [&](const Block& block, const Op& op) {
    return IsMessage(op.kind) &&
           WorkOf(block, op, program).message_bytes <= kMostBufferedMessageBytes;
  };
  for (const Block& block : program.blocks) {
    if (std::any_of(block.ops.begin(), block.ops.end(),
                    [&](const Op& op) { return buffered(block, op); })) {
      return kMessageRingBytes;
    }
  }
  return 0;
}

}  // namespace meshwright::planner
