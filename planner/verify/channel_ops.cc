#include "planner/verify/channel_ops.h"

#include "planner/ir/op_schema.h"

namespace meshwright::planner::verify {
namespace {

struct BlockOp {
  int32_t op;
  int32_t communicator;
};

}  // namespace

bool HasPartners(const Channel& channel) {
  return channel.participants.size() > 1;
}

ChannelOps ListChannelOps(const Programs& programs, const RankClasses& classes,
                          const Channels& channels) {
  ChannelOps result(channels.channels.size());
  for (size_t c = 0; c < channels.channels.size(); ++c) {
    if (HasPartners(channels.channels[c])) {
      result[c].resize(channels.channels[c].participants.size());
    }
  }
  for (int32_t k = 0; k < classes.size(); ++k) {
    const RankBinding& binding = programs.ranks[static_cast<size_t>(classes.representative(k))];
    const RankProgram& program = programs.programs[static_cast<size_t>(binding.program)];
    std::vector<std::vector<OpPlace>*> lists(program.communicators.size(), nullptr);
    for (size_t c = 0; c < lists.size(); ++c) {
      const auto channel = static_cast<size_t>(channels.of[static_cast<size_t>(k)][c]);
      const auto& participants = channels.channels[channel].participants;
      for (size_t i = 0; i < result[channel].size(); ++i) {
        if (participants[i].rank_class == k &&
            participants[i].communicator == static_cast<int32_t>(c)) {
          lists[c] = &result[channel][i];
        }
      }
    }
    std::vector<std::vector<BlockOp>> of_block(program.blocks.size());
    for (size_t b = 0; b < program.blocks.size(); ++b) {
      for (size_t i = 0; i < program.blocks[b].ops.size(); ++i) {
        const Op& op = program.blocks[b].ops[i];
        if (!IsCollective(op.kind) && !IsMessage(op.kind)) continue;
        if (lists[static_cast<size_t>(op.attributes.communicator)] == nullptr) continue;
        of_block[b].push_back({static_cast<int32_t>(i), op.attributes.communicator});
      }
    }
    for (size_t t = 0; t < program.tasks.size(); ++t) {
      const auto& instances = program.tasks[t].instances;
      for (size_t i = 0; i < instances.size(); ++i) {
        for (const BlockOp& op : of_block[static_cast<size_t>(instances[i].block)]) {
          lists[static_cast<size_t>(op.communicator)]->push_back(
              {static_cast<int32_t>(t), static_cast<int32_t>(i), op.op});
        }
      }
    }
  }
  return result;
}

}  // namespace meshwright::planner::verify
