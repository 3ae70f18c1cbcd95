#include "runtime/flight_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>

namespace meshwright::runtime {
namespace {

using nlohmann::json;

constexpr CommOp kOps[] = {CommOp::kAllReduce, CommOp::kAllGather, CommOp::kReduceScatter,
                           CommOp::kBroadcast, CommOp::kAllToAll,  CommOp::kBarrier,
                           CommOp::kSplit,     CommOp::kSend,      CommOp::kRecv,
                           CommOp::kShift};

Result<CommOp> ParseOp(const std::string& text) {
  for (const CommOp op : kOps) {
    if (text == ToString(op)) return op;
  }
  return InvalidInput(fmt::format("op '{}' is unknown", text));
}

json ToJson(const FlightEntry& e) {
  const FlightRecord& r = e.record;
  const auto time = [](int64_t ns) { return ns == 0 ? json(nullptr) : json(ns); };
  return {{"rank", e.rank},
          {"group", r.group},
          {"communicator", e.communicator},
          {"sequence", r.sequence},
          {"op", ToString(r.op)},
          {"bytes", r.bytes},
          {"dtype", planner::ToString(r.dtype)},
          {"step", r.step},
          {"item", r.item},
          {"task", e.item},
          {"enqueued_ns", time(r.enqueued_ns)},
          {"started_ns", time(r.started_ns)},
          {"done_ns", time(r.done_ns)}};
}

Result<FlightEntry> FromJson(const json& j) {
  const auto time = [&](const char* name) {
    return j.at(name).is_null() ? int64_t{0} : j.at(name).get<int64_t>();
  };
  FlightEntry e;
  e.rank = j.at("rank").get<int>();
  e.communicator = j.at("communicator").get<std::string>();
  e.item = j.at("task").get<std::string>();
  e.record.group = j.at("group").get<int32_t>();
  e.record.sequence = j.at("sequence").get<int64_t>();
  MW_ASSIGN_OR_RETURN(e.record.op, ParseOp(j.at("op").get<std::string>()));
  e.record.bytes = j.at("bytes").get<int64_t>();
  MW_ASSIGN_OR_RETURN(e.record.dtype, planner::ParseDType(j.at("dtype").get<std::string>()));
  e.record.step = j.at("step").get<int64_t>();
  e.record.item = j.at("item").get<int64_t>();
  e.record.enqueued_ns = time("enqueued_ns");
  e.record.started_ns = time("started_ns");
  e.record.done_ns = time("done_ns");
  return e;
}

}  // namespace

FlightRecorder::FlightRecorder(size_t capacity) : ring_(std::max<size_t>(capacity, 1)) {}

int64_t FlightRecorder::Add(const FlightRecord& record) {
  const std::lock_guard lock(mutex_);
  ring_[static_cast<size_t>(added_) % ring_.size()] = record;
  return added_++;
}

FlightRecord* FlightRecorder::Find(int64_t number) {
  const bool kept =
      number >= 0 && number < added_ && added_ - number <= static_cast<int64_t>(ring_.size());
  return kept ? &ring_[static_cast<size_t>(number) % ring_.size()] : nullptr;
}

void FlightRecorder::SetStarted(int64_t number, int64_t ns) {
  const std::lock_guard lock(mutex_);
  if (FlightRecord* record = Find(number)) record->started_ns = ns;
}

void FlightRecorder::SetDone(int64_t number, int64_t ns) {
  const std::lock_guard lock(mutex_);
  if (FlightRecord* record = Find(number)) record->done_ns = ns;
}

std::vector<FlightRecord> FlightRecorder::Snapshot() const {
  const std::lock_guard lock(mutex_);
  const auto size = static_cast<int64_t>(ring_.size());
  std::vector<FlightRecord> out;
  for (int64_t i = std::max<int64_t>(0, added_ - size); i < added_; ++i) {
    out.push_back(ring_[static_cast<size_t>(i % size)]);
  }
  return out;
}

int64_t WallClockNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::vector<FlightEntry> Name(int rank, const std::vector<FlightRecord>& records,
                              const FlightNames& names) {
  std::vector<FlightEntry> out;
  out.reserve(records.size());
  for (const FlightRecord& record : records) {
    out.push_back({rank, record, names.group ? names.group(record.group) : "",
                   names.item && record.item >= 0 ? names.item(record.item) : ""});
  }
  return out;
}

std::string ToJsonLines(const std::vector<FlightEntry>& entries) {
  std::string out;
  for (const FlightEntry& entry : entries) {
    out += ToJson(entry).dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  }
  return out;
}

Result<std::vector<FlightEntry>> ParseJsonLines(const std::string& text) {
  std::vector<FlightEntry> out;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::string where = fmt::format("flight record, line {}", number);
    try {
      const auto j = json::parse(line);
      Result<FlightEntry> entry = FromJson(j);
      if (!entry.ok()) return entry.status().WithContext(where);
      out.push_back(std::move(*entry));
    } catch (const json::exception& e) {
      return InvalidInput(fmt::format("{}: {}", where, e.what()));
    }
  }
  return out;
}

}  // namespace meshwright::runtime
