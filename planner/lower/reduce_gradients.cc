#include <fmt/format.h>

#include "planner/lower/step_parts.h"

namespace meshwright::planner::lower {
namespace {

class Reductions {
 public:
  Reductions(ProgramBuilder& builder, const CompleteGradients& complete)
      : builder_(builder), stage_(builder.stage()), complete_(complete) {
    reduced_.bucket.assign(stage_.buckets.size(), -1);
  }

  ReducedGradients Run() {
    // Copies of key-value heads are summed before any bucket leaves.
    const EventId kv = builder_.module().kv_copies > 1 ? SumKeyValueCopies() : -1;
    for (int32_t b : complete_.order) {
      if (b != stage_.tied_bucket) ReduceBucket(b, {CompleteOf(b), kv});
    }
    if (stage_.late_bucket >= 0) ReduceBucket(stage_.late_bucket, {SumOverTensorGroup()});
    if (stage_.tied_bucket >= 0) ReduceBucket(stage_.tied_bucket, {SumTiedWeight(), kv});
    return std::move(reduced_);
  }

 private:
  EventId CompleteOf(int32_t b) const { return complete_.bucket[static_cast<size_t>(b)]; }
  EventId SumKeyValueCopies();
  EventId SumOverTensorGroup();
  EventId SumTiedWeight();
  void ReduceBucket(int32_t b, const std::vector<EventId>& waits);

  ProgramBuilder& builder_;
  const Stage& stage_;
  const CompleteGradients& complete_;
  ReducedGradients reduced_;
};

EventId Reductions::SumKeyValueCopies() {
  const EventId summed = builder_.NewEvent();
  std::vector<Instance> instances;
  for (const ParameterEntry& e : builder_.parameters()) {
    if (e.late != LateReduction::kKeyValueCopies) continue;
    // Rows behind the query part are the copied ones.
    const int64_t width = e.local_shape.size() > 1 ? e.local_shape[1] : 1;
    const int64_t query_rows = e.parts.front().extent / builder_.module().tp;
    const int64_t rows = e.local_shape[0] - query_rows;
    const TensorView gradient = {e.name + ".kv.grad",
                                 stage_.split.dtypes.gradient,
                                 {rows, width},
                                 Region::kGradient,
                                 (e.offset + query_rows * width) * builder_.GradientSize()};
    const int32_t block = builder_.OneOp("sum key-value copies", OpKind::kAllReduce, kTensorStream,
                                         {{gradient, Access::kReadWrite}},
                                         {.communicator = builder_.communicators().kv});
    instances.push_back(builder_.Bind(block));
    instances.back().layer = e.layer;
  }
  instances.front().waits.push_back(complete_.all);
  instances.back().signals.push_back(summed);
  Task& t = builder_.NewTask(TaskKind::kReduceGrads, -1, -1, stage_.buckets.empty() ? -1 : 0);
  t.instances = std::move(instances);
  return summed;
}

/// Of the late bucket.
EventId Reductions::SumOverTensorGroup() {
  const EventId summed = builder_.NewEvent();
  const TensorView gradient = builder_.BucketGradient(builder_.bucket(stage_.late_bucket));
  const int32_t block = builder_.OneOp("sum over tensor group", OpKind::kAllReduce, kTensorStream,
                                       {{gradient, Access::kReadWrite}},
                                       {.communicator = builder_.communicators().tensor});
  Task& t = builder_.NewTask(TaskKind::kReduceGrads, -1, -1, stage_.late_bucket);
  t.instances.push_back(builder_.Bind(block));
  t.instances.back().waits.push_back(complete_.all);
  t.instances.back().signals.push_back(summed);
  return summed;
}

/// Over the first and the last stage.
EventId Reductions::SumTiedWeight() {
  const ParameterEntry* tied = nullptr;
  for (const ParameterEntry& e : builder_.parameters()) {
    if (e.late == LateReduction::kTied) tied = &e;
  }
  MW_CHECK(tied != nullptr && tied->bucket == stage_.tied_bucket &&
           builder_.bucket(stage_.tied_bucket).elements > 0);
  const TensorView gradient = {"tied.grad", stage_.split.dtypes.gradient, tied->local_shape,
                               Region::kGradient, tied->offset * builder_.GradientSize()};
  const int32_t block = builder_.OneOp("sum tied weight", OpKind::kAllReduce, kDataStream,
                                       {{gradient, Access::kReadWrite}},
                                       {.communicator = builder_.communicators().tied});
  const EventId summed = builder_.NewEvent();
  Task& t = builder_.NewTask(TaskKind::kReduceGrads, -1, -1, stage_.tied_bucket);
  t.instances.push_back(builder_.Bind(block));
  t.instances.back().waits.push_back(CompleteOf(stage_.tied_bucket));
  t.instances.back().signals.push_back(summed);
  return summed;
}

/// Data-parallel reduction of bucket `b` once `waits` have happened (-1: none).
void Reductions::ReduceBucket(int32_t b, const std::vector<EventId>& waits) {
  const int32_t data = builder_.communicators().data;
  const auto add_waits = [&](std::vector<EventId>& to) {
    for (EventId e : waits) {
      if (e >= 0) to.push_back(e);
    }
  };
  if (data < 0) return add_waits(reduced_.others);
  const bool scatter = stage_.sharding == Sharding::kZero1;
  std::vector<std::pair<TensorView, Access>> operands = {
      {builder_.BucketGradient(builder_.bucket(b)), Access::kReadWrite}};
  if (scatter) operands.push_back({TensorView{}, Access::kWrite});  // in place
  const int32_t block = builder_.OneOp(fmt::format("reduce bucket {}", b),
                                       scatter ? OpKind::kReduceScatter : OpKind::kAllReduce,
                                       kDataStream, operands, {.communicator = data});
  Task& t = builder_.NewTask(TaskKind::kReduceGrads, -1, -1, b);
  t.instances.push_back(builder_.Bind(block));
  add_waits(t.instances.back().waits);
  const EventId reduced = builder_.NewEvent();
  t.instances.back().signals.push_back(reduced);
  reduced_.bucket[static_cast<size_t>(b)] = reduced;
}

}  // namespace

ReducedGradients ReduceGradients(ProgramBuilder& builder, const CompleteGradients& complete) {
  return Reductions(builder, complete).Run();
}

}  // namespace meshwright::planner::lower
