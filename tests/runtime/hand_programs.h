// Small programs written by hand, for tests of the executor.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "planner/ir/op_schema.h"
#include "planner/ir/program.h"

namespace meshwright::runtime {

/// Writes a RankProgram op by op; every op is a block of its own.
class ProgramWriter {
 public:
  using Operands = std::vector<std::pair<planner::TensorView, planner::Access>>;

  planner::RankProgram program;

  ProgramWriter() {
    // Areas of 64-byte granules: 3 fp64 parameters and gradients, scalars, scratch, communication.
    planner::ArenaLayout& a = program.arena;
    a.parameters = 0;
    a.gradients = 64;
    a.optimizer = 128;
    a.io = 128;
    a.saved = 256;
    a.scratch = 256;
    a.communication = 448;
    a.size = 512;
    a.memory.parameters = 64;
    a.memory.gradients = 64;
    a.memory.io = 128;
    a.memory.scratch = 192;
    a.memory.communication = 64;
    program.streams = {{"compute", planner::StreamKind::kCompute},
                       {"tensor", planner::StreamKind::kTensor},
                       {"data", planner::StreamKind::kData},
                       {"edge", planner::StreamKind::kEdge}};
  }

  planner::Task& Begin(planner::TaskKind kind, int32_t chunk = -1, int32_t micro_batch = -1) {
    planner::Task task;
    task.kind = kind;
    task.chunk = chunk;
    task.micro_batch = micro_batch;
    program.tasks.push_back(task);
    return program.tasks.back();
  }

  /// Appends an op to the last task.
  planner::Op& Op(planner::OpKind kind, planner::StreamId stream,
                  std::vector<planner::EventId> waits, planner::EventId signal,
                  const Operands& operands, const planner::OpAttributes& attributes = {}) {
    planner::Block block;
    block.name = "hand" + std::to_string(program.blocks.size());
    planner::Op op;
    op.kind = kind;
    op.stream = stream;
    op.waits = std::move(waits);
    op.signal = signal;
    op.attributes = attributes;
    for (const auto& [view, access] : operands) {
      op.operands.push_back({static_cast<int32_t>(block.tensors.size()), access});
      if (view.name.empty()) {
        op.operands.back().tensor = -1;
      } else {
        block.tensors.push_back(view);
      }
    }
    block.ops.push_back(op);
    planner::Instance instance;
    instance.block = static_cast<int32_t>(program.blocks.size());
    instance.base = Bases();
    program.blocks.push_back(std::move(block));
    program.tasks.back().instances.push_back(instance);
    return program.blocks.back().ops.back();
  }

  /// Tensor of 3 fp64 values (or of another shape) at an offset of a region.
  static planner::TensorView View(const std::string& name, planner::Region region,
                                  int64_t offset = 0, std::vector<int64_t> shape = {3},
                                  planner::DType dtype = planner::DType::kF64) {
    return {name, dtype, std::move(shape), region, offset};
  }
  static planner::TensorView Cell(planner::Scalar scalar, int64_t cells = 1,
                                  planner::DType dtype = planner::DType::kF64) {
    return {"scalar", dtype, {cells}, planner::Region::kScalar, 8 * static_cast<int64_t>(scalar)};
  }

 private:
  std::array<int64_t, planner::kRegionCount> Bases() const {
    std::array<int64_t, planner::kRegionCount> base{};
    const planner::ArenaLayout& a = program.arena;
    base[static_cast<size_t>(planner::Region::kParameter)] = a.parameters;
    base[static_cast<size_t>(planner::Region::kGradient)] = a.gradients;
    base[static_cast<size_t>(planner::Region::kScalar)] = a.io;
    base[static_cast<size_t>(planner::Region::kIo)] = a.io + planner::kScalarBytes;
    base[static_cast<size_t>(planner::Region::kScratch)] = a.scratch;
    base[static_cast<size_t>(planner::Region::kIn0)] = a.communication;
    return base;
  }
};

/// Two ranks. Rank 0 sends its 3 parameters w to rank 1, which adds its own; the sums (w on rank 0,
/// 2 w on rank 1) are all-reduced to 3 w, which become the statistics; the gradient is w itself and
/// the optimizer SGD. With w = 1 at the start: grad norm sqrt(3 w), loss 1, w' = w (1 - rate).
inline planner::Programs PairPrograms() {
  using planner::Access;
  using planner::OpKind;
  using planner::Region;
  using planner::Scalar;
  using planner::TaskKind;
  constexpr Access kR = Access::kRead;
  constexpr Access kW = Access::kWrite;
  constexpr Access kRW = Access::kReadWrite;
  constexpr planner::StreamId kEdgeStream = 3;
  planner::Programs programs;
  for (const int rank : {0, 1}) {
    ProgramWriter w;
    const auto weight = w.View("w", Region::kParameter);
    const auto gradient = w.View("g", Region::kGradient);
    const auto a = w.View("a", Region::kScratch);
    const auto c = w.View("c", Region::kScratch, 64);
    const auto received = w.View("received", Region::kIn0);
    const auto statistics = w.Cell(Scalar::kStatistics, 3);
    planner::OpAttributes edge;
    edge.communicator = 0;
    edge.peer = 1 - rank;
    planner::OpAttributes world;
    world.communicator = 1;
    planner::OpAttributes bucket;
    bucket.bucket = 0;

    w.Begin(TaskKind::kForward, 0, 0);
    w.Op(OpKind::kCopy, planner::kComputeStream, {1}, 0, {{weight, kR}, {a, kW}});
    w.Begin(rank == 0 ? TaskKind::kSend : TaskKind::kRecv, 0, 0);
    if (rank == 0) {
      w.Op(OpKind::kSend, kEdgeStream, {0}, 1, {{a, kR}}, edge);
      w.Begin(TaskKind::kForward, 0, 1);
      w.Op(OpKind::kCopy, planner::kComputeStream, {4}, 2, {{a, kR}, {c, kW}});
    } else {
      w.Op(OpKind::kRecv, kEdgeStream, {2}, 3, {{received, kW}}, edge);
      w.Begin(TaskKind::kForward, 0, 1);
      w.Op(OpKind::kAdd, planner::kComputeStream, {3, 4}, 2, {{a, kR}, {received, kR}, {c, kW}});
    }
    w.Begin(TaskKind::kReduceGrads).bucket = 0;
    w.Op(OpKind::kAllReduce, planner::kTensorStream, {2}, 4, {{c, kRW}}, world);
    w.Begin(TaskKind::kClipNorm);
    w.Op(OpKind::kCopy, planner::kComputeStream, {4}, -1, {{weight, kR}, {gradient, kW}});
    w.Op(OpKind::kCopy, planner::kComputeStream, {}, -1, {{c, kR}, {statistics, kW}});
    w.Op(OpKind::kClipFactor, planner::kComputeStream, {}, 5,
         {{statistics, kR}, {w.Cell(Scalar::kClipFactor), kW}});
    w.Begin(TaskKind::kStep);
    // On another stream, so that the step scalars have to be ordered over streams.
    w.Op(OpKind::kOptimizerStep, planner::kDataStream, {5}, 6,
         {{weight, kRW},
          {gradient, kR},
          {{}, kRW},
          {w.Cell(Scalar::kClipFactor), kR},
          {w.Cell(Scalar::kLearningRate), kR},
          {w.Cell(Scalar::kStepNumber, 1, planner::DType::kI64), kR}},
         bucket);
    w.Begin(TaskKind::kReadBack);
    w.Op(OpKind::kReadBack, planner::kComputeStream, {6}, -1,
         {{statistics, kR}, {w.Cell(Scalar::kClipFactor), kR}});

    w.program.stage = rank;
    w.program.events = 7;
    w.program.communicators = {{"edge", planner::CommunicatorKind::kEdge, 2},
                               {"world", planner::CommunicatorKind::kWorld, 2}};
    planner::ParameterEntry entry;
    entry.name = "w";
    entry.global_shape = entry.local_shape = {3};
    entry.init = planner::InitKind::kOnes;
    w.program.parameters = {entry};
    w.program.buckets = {{0, 3, 0}};
    programs.programs.push_back(std::move(w.program));
    planner::RankBinding binding;
    binding.program = rank;
    binding.pp_index = rank;
    binding.groups = {0, 1};
    programs.ranks.push_back(binding);
  }
  programs.groups = {{"edge", planner::CommunicatorKind::kEdge, {0, 1}},
                     {"world", planner::CommunicatorKind::kWorld, {0, 1}}};
  planner::ModulePlan module;
  module.module = "hand";
  module.pp = 2;
  programs.modules = {module};
  programs.facts.sequence = 4;
  programs.facts.micro_batch = 1;
  programs.facts.micro_batches = 1;
  programs.facts.global_batch = 1;
  programs.facts.vocab = 16;
  programs.facts.dtypes = planner::PolicyOf(planner::DType::kF64);
  programs.facts.optimizer = planner::OptimizerKind::kSgd;
  return programs;
}

}  // namespace meshwright::runtime
