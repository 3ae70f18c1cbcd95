#include "planner/lower/step_parts.h"

namespace meshwright::planner::lower {
namespace {

/// Labels of all micro-batches.
void LoadLabels(ProgramBuilder& builder) {
  const Plan& plan = builder.plan();
  const TensorView labels = {"labels", DType::kI32, {plan.sequence, plan.micro_batch}, Region::kIo};
  const int32_t load =
      builder.OneOp("load labels", OpKind::kLoadLabels, kComputeStream, {{labels, Access::kWrite}});
  const auto last_chunk = static_cast<int32_t>(builder.module().virtual_stages - 1);
  for (int64_t i = 0; i < plan.micro_batches; ++i) {
    Task& t = builder.NewTask(TaskKind::kLoadBatch, last_chunk, static_cast<int32_t>(i));
    t.instances.push_back(builder.Bind(load));
    Base(t.instances.back(), Region::kIo) += i * builder.LabelBytes();
  }
}

/// The head's stage reads all labels first, so that gradients are scaled by the global count from
/// the start and need no pass of their own at the end. Returns when the count is there.
EventId CountTokens(ProgramBuilder& builder) {
  LoadLabels(builder);
  const Plan& plan = builder.plan();
  const int32_t data = builder.communicators().data;
  const bool reduce = data >= 0;
  const TensorView all_labels = {
      "labels", DType::kI32, {plan.micro_batches, plan.sequence, plan.micro_batch}, Region::kIo};
  const TensorView total = ScalarView(Scalar::kTokenCount, DType::kI64, "count");
  const TensorView inverse = ScalarView(Scalar::kInverseCount, DType::kF64, "inverse_count");
  const int32_t count = builder.OneOp("count tokens", OpKind::kCountTokens, kComputeStream,
                                      {{all_labels, Access::kRead}, {total, Access::kWrite}});
  const int32_t invert =
      builder.OneOp("invert count", OpKind::kInvertCount, reduce ? kDataStream : kComputeStream,
                    {{total, Access::kRead}, {inverse, Access::kWrite}});
  Task& t = builder.NewTask(TaskKind::kCountTokens);
  t.instances.push_back(builder.Bind(count));
  if (reduce) {
    const EventId counted_here = builder.NewEvent();
    t.instances.back().signals.push_back(counted_here);
    const int32_t sum = builder.OneOp("sum count", OpKind::kAllReduce, kDataStream,
                                      {{total, Access::kReadWrite}}, {.communicator = data});
    t.instances.push_back(builder.Bind(sum));
    t.instances.back().waits.push_back(counted_here);
  }
  t.instances.push_back(builder.Bind(invert));
  const EventId counted = builder.NewEvent();
  t.instances.back().signals.push_back(counted);
  return counted;
}

}  // namespace

StepBegin BeginStep(ProgramBuilder& builder) {
  StepBegin begin;
  begin.gathered.assign(builder.stage().buckets.size(), -1);
  if (builder.GathersParameters()) {
    for (EventId& gathered : begin.gathered) gathered = builder.NewEvent();
  }
  if (builder.HasHead()) begin.counted = CountTokens(builder);
  return begin;
}

}  // namespace meshwright::planner::lower
