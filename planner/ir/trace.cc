#include "planner/ir/trace.h"

#include <nlohmann/json.hpp>

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

std::string WriteChromeTrace(const std::vector<TraceRow>& rows) {
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
  const nlohmann::json document = {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace meshwright::planner
