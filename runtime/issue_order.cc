#include "runtime/issue_order.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/ir/op_schema.h"

namespace meshwright::runtime {
namespace {

using planner::Block;
using planner::EventId;
using planner::Instance;
using planner::Op;
using planner::RankProgram;
using planner::Task;

Status Wrong(const Task& task, const std::string& what) {
  return Infeasible(fmt::format("task {}: {}; lower and verify the plan again", Label(task), what));
}

Status CheckEvents(const RankProgram& program, const Task& task,
                   const std::vector<EventId>& events) {
  for (EventId e : events) {
    if (e < 0 || e >= program.events) {
      return Wrong(task, fmt::format("event {} of {}", e, program.events));
    }
  }
  return Status::Ok();
}

Status CheckIssued(const RankProgram& program, const IssuedOp& issued) {
  const Op& op = *issued.op;
  const Task& task = *issued.task_ptr;
  if (op.stream < 0 || static_cast<size_t>(op.stream) >= program.streams.size()) {
    return Wrong(task, fmt::format("op {} is on stream {} of {}", ToString(op.kind), op.stream,
                                   program.streams.size()));
  }
  MW_RETURN_IF_ERROR(CheckOp(*issued.block, op, program).WithContext("task " + Label(task)));
  MW_RETURN_IF_ERROR(CheckEvents(program, task, op.waits));
  if (op.signal >= program.events) {
    return Wrong(task, fmt::format("event {} of {}", op.signal, program.events));
  }
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const ByteRange range = RangeOf(issued, i);
    if (range.begin < 0 || range.end > program.arena.size) {
      return Wrong(task, fmt::format("operand {} of {} covers bytes {}..{} of an arena of {}",
                                     planner::RowOf(op.kind).operands[i].name, ToString(op.kind),
                                     range.begin, range.end, program.arena.size));
    }
  }
  return Status::Ok();
}

/// Appends the ops of one instance.
Status AppendInstance(const RankProgram& program, int32_t task_index, const Instance& instance,
                      IssueOrder* order) {
  const Task& task = program.tasks[static_cast<size_t>(task_index)];
  if (instance.block < 0 || static_cast<size_t>(instance.block) >= program.blocks.size()) {
    return Wrong(task, fmt::format("block {} of {}", instance.block, program.blocks.size()));
  }
  const Block& block = program.blocks[static_cast<size_t>(instance.block)];
  MW_RETURN_IF_ERROR(CheckEvents(program, task, instance.waits));
  MW_RETURN_IF_ERROR(CheckEvents(program, task, instance.signals));
  if (block.ops.empty() && !(instance.waits.empty() && instance.signals.empty())) {
    return Wrong(task, fmt::format("block {} has events but no ops", block.name));
  }
  for (const Op& op : block.ops) {
    IssuedOp issued;
    issued.index = static_cast<int32_t>(order->ops.size());
    issued.task = task_index;
    const auto place = static_cast<size_t>(&op - block.ops.data());
    issued.first_of_instance = place == 0;
    issued.takes_waits = !instance.waits.empty() && planner::FirstOnStream(block, place);
    issued.last_of_instance = &op == &block.ops.back();
    issued.task_ptr = &task;
    issued.instance = &instance;
    issued.block = &block;
    issued.op = &op;
    MW_RETURN_IF_ERROR(CheckIssued(program, issued));
    order->streams_used[static_cast<size_t>(op.stream)] = true;
    order->ops.push_back(std::move(issued));
  }
  return Status::Ok();
}

/// Replays records and waits of one step over `latest` (event -> op that it was recorded after).
/// In the first pass the waits lead to the last record of a step before; they are kept in the
/// second.
void Replay(IssueOrder* order, std::vector<Dependency>* latest, bool keep) {
  const auto wait = [&](IssuedOp& issued, EventId e) {
    const Dependency& d = (*latest)[static_cast<size_t>(e)];
    if (d.op < 0 || order->ops[static_cast<size_t>(d.op)].op->stream == issued.op->stream) return;
    for (Dependency& known : issued.waits) {
      const auto& a = *order->ops[static_cast<size_t>(known.op)].op;
      if (a.stream != order->ops[static_cast<size_t>(d.op)].op->stream) continue;
      const bool later =
          d.previous_step != known.previous_step ? known.previous_step : d.op > known.op;
      if (later) known = d;
      return;
    }
    issued.waits.push_back(d);
  };
  for (IssuedOp& issued : order->ops) {
    if (keep) {
      if (issued.first_of_instance) {
        ForEachGated(order->ops, issued, [&](IssuedOp& gated) {
          for (EventId e : gated.instance->waits) wait(gated, e);
        });
      }
      for (EventId e : issued.op->waits) wait(issued, e);
    }
    if (issued.op->signal >= 0) (*latest)[static_cast<size_t>(issued.op->signal)] = {issued.index};
    if (issued.last_of_instance) {
      for (EventId e : issued.instance->signals) (*latest)[static_cast<size_t>(e)] = {issued.index};
    }
  }
}

}  // namespace

std::string PlaceOf(const IssuedOp& op) {
  return fmt::format("task {} ({}), op {} ({})", op.task, Label(*op.task_ptr), op.index,
                     ToString(op.op->kind));
}

ByteRange RangeOf(const IssuedOp& op, size_t i) {
  const int32_t tensor = op.op->operands[i].tensor;
  if (tensor < 0) return {};
  const planner::TensorView& t = op.block->tensors[static_cast<size_t>(tensor)];
  const int64_t begin = op.instance->base[static_cast<size_t>(t.region)] + t.offset;
  return {begin, begin + t.bytes()};
}

Result<IssueOrder> MakeIssueOrder(const RankProgram& program) {
  IssueOrder order;
  order.streams_used.assign(std::max<size_t>(program.streams.size(), 1), false);
  order.streams_used[planner::kComputeStream] = true;
  for (size_t t = 0; t < program.tasks.size(); ++t) {
    for (const Instance& instance : program.tasks[t].instances) {
      MW_RETURN_IF_ERROR(AppendInstance(program, static_cast<int32_t>(t), instance, &order));
    }
  }
  std::vector<Dependency> latest(static_cast<size_t>(std::max(program.events, 0)), {-1});
  Replay(&order, &latest, false);
  for (Dependency& d : latest) d.previous_step = true;
  Replay(&order, &latest, true);
  return order;
}

}  // namespace meshwright::runtime
