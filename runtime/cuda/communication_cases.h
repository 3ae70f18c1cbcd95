// Operations whose rates are measured, and programs that repeat them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "planner/ir/program.h"

namespace meshwright::runtime::cuda {

/// What is repeated. `bytes`: buffer of an all-reduce, output of an all-gather, input of a
/// reduce-scatter, message.
struct RateCase {
  planner::OpKind kind = planner::OpKind::kAllReduce;  ///< kSend: from rank 0 to rank 1
  planner::CommunicatorKind traffic = planner::CommunicatorKind::kTensor;
  int64_t bytes = 0;
  int calls = 0;  ///< in a row

  bool message() const { return kind == planner::OpKind::kSend; }
  /// The executor gathers and scatters buckets of gradients and parameters in place.
  bool in_place() const { return traffic == planner::CommunicatorKind::kData; }
  int64_t part_elements(int ranks) const { return bytes / 2 / ranks; }
  /// In bf16; divisible by the ranks.
  int64_t elements(int ranks) const { return part_elements(ranks) * ranks; }
};

/// Where both ways find their operands: the whole buffer, then this rank's part.
inline int64_t ArenaBytes(int64_t most_bytes) {
  return 2 * most_bytes;
}

inline constexpr planner::StreamId kRateStream = planner::kTensorStream;
inline constexpr planner::EventId kRateComputed = 0;  ///< what each operation waits for
inline constexpr planner::EventId kRateMet = 1;       ///< what it records

/// All operations and sizes of both classes and the edge.
inline std::vector<RateCase> RateCases(int64_t least_bytes, int64_t most_bytes) {
  using planner::CommunicatorKind;
  using planner::OpKind;
  std::vector<RateCase> cases;
  const auto add = [&](OpKind kind, CommunicatorKind traffic) {
    for (int64_t bytes = least_bytes; bytes <= most_bytes; bytes *= 4) {
      // Two runs stay below the 1024 pieces of work that the driver queues on a stream.
      const int calls = bytes <= (64 << 10) ? 60 : bytes <= (4 << 20) ? 30 : 10;
      cases.push_back({kind, traffic, bytes, calls});
    }
  };
  for (const CommunicatorKind traffic : {CommunicatorKind::kTensor, CommunicatorKind::kData}) {
    for (const OpKind kind : {OpKind::kAllReduce, OpKind::kAllGather, OpKind::kReduceScatter}) {
      add(kind, traffic);
    }
  }
  add(OpKind::kSend, CommunicatorKind::kEdge);
  return cases;
}

/// GB/s that each link must carry, as NCCL's own tests count.
inline double BusBandwidth(const RateCase& c, int gpus, double us) {
  const double share = static_cast<double>(gpus - 1) / gpus;
  const double factor = c.message()                             ? 1.0
                        : c.kind == planner::OpKind::kAllReduce ? 2.0 * share
                                                                : share;
  return factor * static_cast<double>(c.bytes) / (us * 1e3);
}

inline planner::Op RateOp(const RateCase& c, int rank) {
  using planner::Access;
  using planner::OpKind;
  constexpr int32_t kWhole = 0;
  const int32_t part = c.in_place() ? -1 : 1;
  const Access whole = c.in_place() ? Access::kReadWrite : Access::kRead;
  planner::Op op;
  op.kind = c.kind;
  op.stream = kRateStream;
  op.waits = {kRateComputed};
  op.signal = kRateMet;
  op.attributes.communicator = 0;
  op.operands = {{kWhole, Access::kReadWrite}};
  if (c.kind == OpKind::kAllGather) {
    op.operands = {{part, Access::kRead},
                   {kWhole, c.in_place() ? Access::kReadWrite : Access::kWrite}};
  }
  if (c.kind == OpKind::kReduceScatter) op.operands = {{kWhole, whole}, {part, Access::kWrite}};
  if (c.message()) {
    op.kind = rank == 0 ? OpKind::kSend : OpKind::kRecv;
    op.attributes.peer = 1 - rank;
    op.operands = {{kWhole, rank == 0 ? Access::kRead : Access::kWrite}};
  }
  return op;
}

/// What rank `rank` of `group` runs in a step. Tensor traffic lies within one task, other traffic
/// is a task each, as in the programs of plans.
inline planner::RankProgram RateProgram(const RateCase& c, int rank,
                                        const planner::CommunicatorInfo& group,
                                        int64_t arena_bytes) {
  using planner::StreamKind;
  const int ranks = c.message() ? 1 : static_cast<int>(group.size);
  planner::RankProgram program;
  program.streams = {{"compute", StreamKind::kCompute}, {"communication", StreamKind::kTensor}};
  program.events = 2;
  program.arena.size = arena_bytes;
  program.communicators = {group};
  planner::Block block;
  block.name = "rates";
  const auto view = [](const char* name, int64_t elements, int64_t offset) {
    return planner::TensorView{
        name, planner::DType::kBf16, {elements}, planner::Region::kScratch, offset};
  };
  block.tensors = {view("whole", c.elements(ranks), 0),
                   view("part", c.part_elements(ranks), arena_bytes / 2)};
  block.ops = {RateOp(c, rank)};
  program.blocks = {std::move(block)};
  const bool within = c.traffic == planner::CommunicatorKind::kTensor;
  program.tasks.resize(within ? 1 : static_cast<size_t>(c.calls));
  for (planner::Task& task : program.tasks) {
    task.instances.resize(within ? static_cast<size_t>(c.calls) : 1);
  }
  return program;
}

}  // namespace meshwright::runtime::cuda
