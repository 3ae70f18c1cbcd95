#include "planner/ir/peer_traffic.h"

#include <algorithm>

#include "planner/ir/op_schema.h"

namespace meshwright::planner {

int64_t MessageRingBytes(const RankProgram& program, int32_t communicator) {
  constexpr int64_t kLeastBytes = 1 << 20;
  int64_t largest = 0;
  for (const Block& block : program.blocks) {
    for (const Op& op : block.ops) {
      if (op.kind != OpKind::kRecv || op.attributes.communicator != communicator) continue;
      const OpWork work = WorkOf(block, op, program);
      const bool buffered = work.message_bytes <= kMostBufferedMessageBytes &&
                            PeerTrafficPossible(work.message_bytes, 2, work.dtype);
      if (buffered) largest = std::max(largest, work.message_bytes);
    }
  }
  return largest == 0 ? 0 : std::max(2 * largest, kLeastBytes);
}

}  // namespace meshwright::planner
