#include "planner/lower/program_builder.h"

#include <algorithm>

#include "planner/lower/tasks.h"

namespace meshwright::planner::lower {
ProgramBuilder::ProgramBuilder(const Plan& plan, size_t module, int64_t stage, int64_t position)
    : plan_(plan),
      module_(plan.modules[module]),
      module_index_(static_cast<int32_t>(module)),
      stage_(BuildStage(plan, module, stage, position)),
      communicators_(CommunicatorsOf(plan, module, stage)),
      steps_(StageSchedule(module_.pp, module_.virtual_stages, plan.micro_batches, stage)),
      slots_(AssignSlots(steps_, module_.virtual_stages, plan.micro_batches)),
      templates_(stage_, program_.blocks),
      next_event_(templates_.events()) {
  program_.module = module_index_;
  program_.stage = stage;
  program_.communicators = communicators_.list;
  program_.buckets = stage_.buckets;
  LayOutSlots();
  LayOutStreamsAndEdges();
  LayOutArena();
  program_.parameters = EntriesOf(stage_, module_.module);
}

RankProgram ProgramBuilder::Take() {
  program_.events = next_event_;
  return std::move(program_);
}

void ProgramBuilder::LayOutSlots() {
  std::vector<int64_t> bytes(static_cast<size_t>(module_.virtual_stages), 0);
  for (StageItem& item : stage_.items) {
    int64_t& at = bytes[static_cast<size_t>(item.chunk)];
    item.saved_offset = at;
    at += templates_.SavedBytes(item);
  }
  program_.arena.slot_bytes = *std::max_element(bytes.begin(), bytes.end());
  program_.arena.slots = slots_.slots;
}

void ProgramBuilder::LayOutStreamsAndEdges() {
  program_.streams = {{"compute", StreamKind::kCompute},
                      {"tensor", StreamKind::kTensor},
                      {"data", StreamKind::kData}};
  for (Edge e : {Edge::kActIn, Edge::kActOut, Edge::kGradIn, Edge::kGradOut}) {
    if (communicators_.Of(e) < 0) continue;
    EdgeBuffers& b = edge(e);
    const EdgeStages stages = StagesOf(e, stage_.stage, module_.pp);
    const bool wraps = stages.gradient ? stages.to > stages.from : stages.from > stages.to;
    b.slots = EdgeSlots(module_, plan_.micro_batches, wraps);
    b.stride = RoundUp(stage_.split.residual_bytes(), kByteAlignment);
    b.base = communication_bytes_;
    communication_bytes_ += b.slots * b.stride;
    b.stream = static_cast<StreamId>(program_.streams.size());
    program_.streams.push_back(
        {communicators_.list[static_cast<size_t>(communicators_.Of(e))].name, StreamKind::kEdge});
    for (int64_t i = 0; i < b.slots; ++i) {
      b.ready.push_back(NewEvent());
      b.free.push_back(NewEvent());
    }
  }
}

void ProgramBuilder::LayOutArena() {
  ArenaLayout& a = program_.arena;
  int64_t at = 0;
  const auto area = [&](int64_t& begin, int64_t bytes, int64_t& used) {
    begin = at;
    used = RoundUp(bytes, kByteAlignment);
    at += used;
  };
  MemoryBreakdown& m = a.memory;
  area(a.parameters, stage_.parameter_elements * ComputeSize(), m.parameters);
  area(a.gradients, stage_.parameter_elements * GradientSize(), m.gradients);
  area(a.optimizer, stage_.optimizer_bytes, m.optimizer);
  labels_ = RoundUp(kScalarBytes, kByteAlignment);
  area(a.io, labels_ + (HasHead() ? plan_.micro_batches * LabelBytes() : 0), m.io);
  area(a.saved, a.slots * a.slot_bytes, m.saved);
  a.workspace_bytes = RoundUp(plan_.workspace_bytes, kByteAlignment);
  const int64_t scratch = RoundUp(templates_.scratch_bytes(), kByteAlignment);
  area(a.scratch, scratch + a.workspace_bytes, m.scratch);
  a.workspace = a.scratch + scratch;
  area(a.communication, communication_bytes_, m.communication);
  m.slots = a.slots;
  a.size = at;
  for (EdgeBuffers& e : edges_) e.base += a.communication;
}

int64_t ProgramBuilder::SavedAddress(const StageItem& item, int64_t slot) const {
  return program_.arena.saved + slot * program_.arena.slot_bytes + item.saved_offset;
}

int64_t ProgramBuilder::LabelBytes() const {
  return plan_.sequence * plan_.micro_batch * SizeOf(DType::kI32);
}

TensorView ProgramBuilder::BucketGradient(const Bucket& b) const {
  return {"bucket.grad",
          stage_.split.dtypes.gradient,
          {b.elements},
          Region::kGradient,
          b.offset * GradientSize()};
}

TensorView ProgramBuilder::BucketParameter(const Bucket& b) const {
  return {"bucket.param",
          stage_.split.dtypes.compute,
          {b.elements},
          Region::kParameter,
          b.offset * ComputeSize()};
}

Instance ProgramBuilder::Bind(int32_t block) const {
  const ArenaLayout& a = program_.arena;
  // The pending addend is carried behind the residual stream.
  const int64_t carried_delta =
      CarriedResidual() + RoundUp(stage_.split.residual_bytes(), kByteAlignment);
  Instance i;
  i.block = block;
  Base(i, Region::kParameter) = Base(i, Region::kParameterLate) = a.parameters;
  Base(i, Region::kGradient) = Base(i, Region::kGradientLate) = a.gradients;
  Base(i, Region::kOptimizer) = a.optimizer;
  Base(i, Region::kSaved) = a.saved;
  Base(i, Region::kScratch) = a.scratch;
  Base(i, Region::kIn0) = Base(i, Region::kOut0) = CarriedResidual();
  Base(i, Region::kIn1) = Base(i, Region::kOut1) = carried_delta;
  Base(i, Region::kIo) = a.io + labels_;
  Base(i, Region::kScalar) = a.io;
  return i;
}

Instance ProgramBuilder::BindItem(int32_t block, const StageItem& item, int64_t slot) const {
  Instance i = Bind(block);
  i.layer = item.layer;
  Base(i, Region::kParameter) += item.main_base * ComputeSize();
  Base(i, Region::kParameterLate) += item.late_base * ComputeSize();
  Base(i, Region::kGradient) += item.main_base * GradientSize();
  Base(i, Region::kGradientLate) += item.late_base * GradientSize();
  Base(i, Region::kSaved) = SavedAddress(item, slot);
  return i;
}

int32_t ProgramBuilder::OneOp(const std::string& name, OpKind kind, StreamId stream,
                              const std::vector<std::pair<TensorView, Access>>& operands,
                              const OpAttributes& attributes) {
  Block block;
  block.name = name;
  block.phase = Phase::kStep;
  Op op;
  op.kind = kind;
  op.stream = stream;
  op.attributes = attributes;
  for (const auto& [view, access] : operands) {
    if (view.shape.empty()) {
      op.operands.push_back({-1, access});
      continue;
    }
    op.operands.push_back({static_cast<int32_t>(block.tensors.size()), access});
    block.tensors.push_back(view);
  }
  // Scratch and stream order of the compute stream pass on to the next block.
  if (stream == kComputeStream && templates_.tensor_stream()) op.signal = kComputeDone;
  block.ops.push_back(std::move(op));
  program_.blocks.push_back(std::move(block));
  return static_cast<int32_t>(program_.blocks.size()) - 1;
}

Task& ProgramBuilder::NewTask(TaskKind kind, int32_t chunk, int32_t micro_batch, int32_t bucket) {
  Task t;
  t.kind = kind;
  t.module = module_index_;
  t.chunk = chunk;
  t.micro_batch = micro_batch;
  t.bucket = bucket;
  program_.tasks.push_back(std::move(t));
  return program_.tasks.back();
}

TensorView ScalarView(Scalar s, DType dtype, const std::string& name, int64_t count) {
  return {name, dtype, {count}, Region::kScalar, 8 * static_cast<int64_t>(s)};
}

}  // namespace meshwright::planner::lower
