#include "runtime/step_issuer.h"

namespace meshwright::runtime {

using planner::EventId;
using planner::StreamId;

namespace {

// Events of our own, behind those of the program.
enum OwnEvent : EventId { kScalarsWritten, kHookDone, kStreamEnd /* + stream */ };

}  // namespace

int StepIssuer::events() const {
  return setup_.context.program->events + kStreamEnd +
         static_cast<int>(setup_.order.streams_used.size());
}

void StepIssuer::IssueBegin(int64_t step, StreamSink& sink) const {
  if (!setup_.any_reads_scalars) return;
  const EventId own = setup_.context.program->events;
  // The step before reads the scalars until its last reader on each stream.
  for (size_t s = 0; s < setup_.order.streams_used.size(); ++s) {
    sink.Wait(planner::kComputeStream, own + kStreamEnd + static_cast<EventId>(s));
  }
  sink.Launch(planner::kComputeStream, {write_scalars(), step});
  sink.Record(planner::kComputeStream, own + kScalarsWritten);
}

/// `before` and its like wait for the hook.
void StepIssuer::IssueGradientHook(const IssuedOp& before, int64_t step, StreamSink& sink) const {
  const EventId own = setup_.context.program->events;
  const StreamId stream = before.op->stream;
  for (size_t s = 0; s < setup_.order.streams_used.size(); ++s) {
    if (!setup_.order.streams_used[s]) continue;
    const EventId end = own + kStreamEnd + static_cast<EventId>(s);
    sink.Record(static_cast<StreamId>(s), end);
    sink.Wait(stream, end);
  }
  sink.Launch(stream, {gradient_hook(), step});
  sink.Record(stream, own + kHookDone);
}

void StepIssuer::Issue(int64_t step, StreamSink& sink) const {
  const EventId own = setup_.context.program->events;
  bool hook_pending = hook_;
  IssueBegin(step, sink);
  for (const IssuedOp& issued : setup_.order.ops) {
    const planner::Op& op = *issued.op;
    const bool optimizer = op.kind == planner::OpKind::kOptimizerStep;
    if (optimizer && hook_pending) {
      IssueGradientHook(issued, step, sink);
      hook_pending = false;
    }
    if (issued.first_of_instance) {
      ForEachGated(setup_.order.ops, issued, [&](const IssuedOp& gated) {
        for (EventId e : gated.instance->waits) sink.Wait(gated.op->stream, e);
      });
    }
    for (EventId e : op.waits) sink.Wait(op.stream, e);
    const bool reads_scalars = setup_.reads_scalars[static_cast<size_t>(issued.index)];
    if (reads_scalars) sink.Wait(op.stream, own + kScalarsWritten);
    if (optimizer && hook_) sink.Wait(op.stream, own + kHookDone);
    sink.Launch(op.stream, {&issued, step});
    if (op.signal >= 0) sink.Record(op.stream, op.signal);
    if (issued.last_of_instance) {
      for (EventId e : issued.instance->signals) sink.Record(op.stream, e);
    }
    if (reads_scalars) sink.Record(op.stream, own + kStreamEnd + op.stream);
  }
}

}  // namespace meshwright::runtime
