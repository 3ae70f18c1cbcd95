#include "planner/ir/trace.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "planner/ir/op_schema.h"

namespace meshwright::planner {

TraceRow MakeTraceRow(int32_t rank, int64_t step, int32_t index, const Task& task,
                      const RankProgram& program) {
  TraceRow row;
  row.rank = rank;
  row.step = step;
  row.task = index;
  row.label = Label(task);
  row.kind = task.kind;
  row.chunk = task.chunk;
  row.micro_batch = task.micro_batch;
  row.bucket = task.bucket;
  for (const Instance& instance : task.instances) {
    const Block& block = program.blocks[static_cast<size_t>(instance.block)];
    if (block.ops.empty()) continue;
    row.stream = block.ops.front().stream;
    break;
  }
  return row;
}

std::vector<OpTraceRow> MakeOpTraceRows(const Programs& programs, int32_t rank, int64_t first_step,
                                        int64_t steps) {
  const RankBinding& binding = programs.ranks[static_cast<size_t>(rank)];
  const RankProgram& program = programs.programs[static_cast<size_t>(binding.program)];
  std::vector<OpTraceRow> rows;
  for (const Task& task : program.tasks) {
    for (const Instance& instance : task.instances) {
      for (const Op& op : program.blocks[static_cast<size_t>(instance.block)].ops) {
        OpTraceRow& row = rows.emplace_back();
        row.rank = rank;
        row.kind = op.kind;
        row.stream = program.streams[static_cast<size_t>(op.stream)].kind;
        if (IsCollective(op.kind) || IsMessage(op.kind)) {
          row.group = binding.groups[static_cast<size_t>(op.attributes.communicator)];
        }
      }
    }
  }
  const size_t ops = rows.size();
  rows.reserve(ops * static_cast<size_t>(steps - first_step));
  for (int64_t step = first_step; step < steps; ++step) {
    for (size_t i = 0; i < ops; ++i) {
      if (step > first_step) rows.push_back(rows[i]);
      rows[ops * static_cast<size_t>(step - first_step) + i].step = step;
    }
  }
  return rows;
}

namespace {

constexpr int kFirstOpThread = 1000;  // beyond the streams

std::string OpThread(StreamKind kind) {
  return "ops: " + TrafficName(kind) + (kind == StreamKind::kCompute ? "" : " traffic");
}

/// By rank, what ops' times lack to those of tasks.
std::map<int32_t, int64_t> OpShifts(const std::vector<TraceRow>& rows,
                                    const std::vector<OpTraceRow>& ops) {
  int64_t step = std::numeric_limits<int64_t>::max();
  for (const OpTraceRow& op : ops) step = std::min(step, op.step);
  const auto first = [step](const auto& all) {
    std::map<int32_t, int64_t> starts;
    for (const auto& row : all) {
      if (row.step != step) continue;
      const auto [at, added] = starts.try_emplace(row.rank, row.start_ns);
      at->second = std::min(at->second, row.start_ns);
    }
    return starts;
  };
  std::map<int32_t, int64_t> shifts = first(rows);
  for (const auto& [rank, start] : first(ops)) shifts[rank] -= start;
  return shifts;
}

void AppendOps(const std::vector<TraceRow>& rows, const std::vector<OpTraceRow>& ops,
               nlohmann::json* events) {
  std::map<int32_t, int64_t> shifts = OpShifts(rows, ops);
  std::set<std::pair<int32_t, int>> threads;
  for (const OpTraceRow& op : ops) {
    const int thread = kFirstOpThread + static_cast<int>(op.stream);
    if (threads.emplace(op.rank, thread).second) {
      events->push_back({{"ph", "M"},
                         {"name", "thread_name"},
                         {"pid", op.rank},
                         {"tid", thread},
                         {"args", {{"name", OpThread(op.stream)}}}});
    }
    events->push_back({{"ph", "X"},
                       {"name", ToString(op.kind)},
                       {"cat", "op"},
                       {"pid", op.rank},
                       {"tid", thread},
                       {"ts", static_cast<double>(op.start_ns + shifts[op.rank]) / 1e3},
                       {"dur", static_cast<double>(op.end_ns - op.start_ns) / 1e3},
                       {"args", {{"step", op.step}}}});
  }
}

}  // namespace

std::string WriteChromeTrace(const std::vector<TraceRow>& rows,
                             const std::vector<OpTraceRow>& ops) {
  nlohmann::json events = nlohmann::json::array();
  for (const TraceRow& row : rows) {
    events.push_back({{"ph", "X"},
                      {"name", row.label},
                      {"cat", ToString(row.kind)},
                      {"pid", row.rank},
                      {"tid", row.stream},
                      {"ts", static_cast<double>(row.start_ns) / 1e3},  // microseconds
                      {"dur", static_cast<double>(row.end_ns - row.start_ns) / 1e3},
                      {"args",
                       {{"step", row.step},
                        {"task", row.task},
                        {"chunk", row.chunk},
                        {"micro_batch", row.micro_batch},
                        {"bucket", row.bucket}}}});
  }
  AppendOps(rows, ops, &events);
  const nlohmann::json document = {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace meshwright::planner
