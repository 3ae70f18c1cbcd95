// The program of a rank while it is built: the facts of its stage, the layout of its memory, and
// what the parts of the step (step_parts.h) add to it: blocks of one op, instances, tasks, events.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "planner/lower/communicators.h"
#include "planner/lower/edge_buffers.h"
#include "planner/lower/schedule.h"
#include "planner/lower/stage.h"

namespace meshwright::planner::lower {

class ProgramBuilder {
 public:
  /// Block templates, arena, streams and parameters; no task yet.
  ProgramBuilder(const Plan& plan, size_t module, int64_t stage, int64_t position);
  ProgramBuilder(const ProgramBuilder&) = delete;  // templates refer to the stage
  ProgramBuilder& operator=(const ProgramBuilder&) = delete;
  /// The program with all tasks added so far; ends the builder.
  RankProgram Take();

  const Plan& plan() const { return plan_; }
  const ModulePlan& module() const { return module_; }
  const Stage& stage() const { return stage_; }
  const StageCommunicators& communicators() const { return communicators_; }
  const Templates& templates() const { return templates_; }
  const std::vector<ScheduleStep>& steps() const { return steps_; }
  const SlotAssignment& slots() const { return slots_; }
  const std::vector<ParameterEntry>& parameters() const { return program_.parameters; }
  const Bucket& bucket(int32_t b) const { return stage_.buckets[static_cast<size_t>(b)]; }
  bool HasEmbedding() const { return stage_.items.front().kind == ItemKind::kEmbedding; }
  bool HasHead() const { return stage_.items.back().kind == ItemKind::kHead; }
  /// Ranks step a part of the parameters each and gather the rest.
  bool GathersParameters() const { return stage_.dp > 1 && stage_.sharding == Sharding::kZero1; }

  // Memory
  EdgeBuffers& edge(Edge e) { return edges_[static_cast<size_t>(e)]; }
  /// The residual stream between the items of a chunk, where nothing saves it.
  int64_t CarriedResidual() const { return program_.arena.scratch; }
  /// Saved area of an item in a slot of the schedule.
  int64_t SavedAddress(const StageItem& item, int64_t slot) const;
  /// Bytes of the labels of one micro-batch; those of a step lie back to back.
  int64_t LabelBytes() const;
  int64_t GradientSize() const { return SizeOf(stage_.split.dtypes.gradient); }
  TensorView BucketGradient(const Bucket& b) const;
  TensorView BucketParameter(const Bucket& b) const;

  /// A block bound to the rank's areas, and to those of an item and a slot.
  Instance Bind(int32_t block) const;
  Instance BindItem(int32_t block, const StageItem& item, int64_t slot) const;

  /// A block of one op, used outside the layer templates; a view without a shape stands for an
  /// absent operand. Returns its index.
  int32_t OneOp(const std::string& name, OpKind kind, StreamId stream,
                const std::vector<std::pair<TensorView, Access>>& operands,
                const OpAttributes& attributes = {});
  /// The op of such a block.
  Op& OpOf(int32_t block) { return program_.blocks[static_cast<size_t>(block)].ops.front(); }

  /// Appends a task; the reference holds until the next.
  Task& NewTask(TaskKind kind, int32_t chunk = -1, int32_t micro_batch = -1, int32_t bucket = -1);
  EventId NewEvent() { return next_event_++; }

 private:
  void LayOutSlots();
  void LayOutStreamsAndEdges();
  void LayOutArena();
  int64_t ComputeSize() const { return SizeOf(stage_.split.dtypes.compute); }

  const Plan& plan_;
  const ModulePlan& module_;
  const int32_t module_index_;
  RankProgram program_;
  Stage stage_;
  const StageCommunicators communicators_;
  const std::vector<ScheduleStep> steps_;
  const SlotAssignment slots_;
  Templates templates_;
  EventId next_event_ = 0;
  EdgeBuffers edges_[4];  ///< by Edge
  int64_t communication_bytes_ = 0;
  int64_t labels_ = 0;    ///< bytes from the start of the io area, behind the step scalars
};

/// Where an instance finds a region.
inline int64_t& Base(Instance& i, Region region) { return i.base[static_cast<size_t>(region)]; }

/// `count` step scalars from `s` on.
TensorView ScalarView(Scalar s, DType dtype, const std::string& name, int64_t count = 1);

}  // namespace meshwright::planner::lower
