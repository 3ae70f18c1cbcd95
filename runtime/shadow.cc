#include "runtime/shadow.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "planner/ir/hash.h"
#include "runtime/shadow_analysis.h"

namespace meshwright::runtime {
namespace {

constexpr int kNan = 0xFF;    // a byte of which every floating-point type makes a NaN
constexpr int kGuard = 0xA5;  // bytes that nobody may touch

void Fill(std::byte* arena, const ByteRange& range, int byte) {
  if (range.end > range.begin) {
    std::memset(arena + range.begin, byte, static_cast<size_t>(range.end - range.begin));
  }
}

std::array<int64_t, kAreaCount> AreaStarts(const planner::ArenaLayout& a) {
  return {a.parameters, a.gradients, a.optimizer, a.io, a.saved, a.scratch, a.communication};
}

std::string Describe(const IssuedOp& op) {
  return fmt::format("op {} ({} of task {})", op.index, planner::ToString(op.op->kind),
                     Label(*op.task_ptr));
}

}  // namespace

struct Shadow::State {
  const planner::RankProgram& program;
  const IssueOrder& order;
  std::byte* const arena;
  const int64_t guard;
  const int64_t steps;
  const int rank;
  const ShadowOptions options;
  std::shared_ptr<std::atomic<int64_t>> clock;
  ShadowAnalysis analysis;
  std::vector<std::atomic<int64_t>> done;       ///< by op: steps completed
  std::vector<std::atomic<int32_t>> uses_left;  ///< by value
  std::atomic<int64_t> filled{0};
  std::array<std::atomic<int64_t>, kAreaCount> high_water{};  ///< end offsets in the arena
  std::vector<OpRecord> records;

  void Delay(const IssuedOp& op, int64_t step) const;
  void Touch(const IssuedOp& op);
};

Shadow::Shadow(const planner::RankProgram& program, const IssueOrder& order, std::byte* arena,
               int64_t guard, int64_t steps, int rank, const ShadowOptions& options)
    : state_(new State{program,
                       order,
                       arena,
                       guard,
                       steps,
                       rank,
                       options,
                       options.clock ? options.clock : std::make_shared<std::atomic<int64_t>>(0),
                       AnalyzeForShadow(program, order),
                       std::vector<std::atomic<int64_t>>(order.ops.size()),
                       {}}) {
  State& s = *state_;
  s.uses_left = std::vector<std::atomic<int32_t>>(s.analysis.values.size());
  for (size_t v = 0; v < s.analysis.values.size(); ++v) s.uses_left[v] = s.analysis.values[v].uses;
  s.records.resize(order.ops.size() * static_cast<size_t>(steps));
  for (const ByteRange& range : s.analysis.dead_at_start) Fill(arena, range, kNan);
  for (const ByteRange& range : s.analysis.unowned) Fill(arena, range, kGuard);
  Fill(arena, {-guard, 0}, kGuard);
  Fill(arena, {program.arena.size, program.arena.size + guard}, kGuard);
}

Shadow::~Shadow() = default;

void Shadow::State::Delay(const IssuedOp& op, int64_t step) const {
  if (options.max_delay_us <= 0) return;
  planner::Hasher hasher;
  hasher.Add(static_cast<int64_t>(options.seed)).Add(int64_t{rank}).Add(step);
  const uint64_t hash = hasher.Add(int64_t{op.index}).value();
  const double draw = static_cast<double>(hash % 1000003) / 1000003.0;
  if (draw >= options.delay_share) return;
  const auto range = static_cast<uint64_t>(options.max_delay_us);
  std::this_thread::sleep_for(std::chrono::microseconds(1 + hash / 1000003 % range));
}

void Shadow::State::Touch(const IssuedOp& op) {
  const auto starts = AreaStarts(program.arena);
  for (size_t i = 0; i < op.op->operands.size(); ++i) {
    const ByteRange range = RangeOf(op, i);
    if (range.begin == range.end) continue;
    size_t area = 0;  // empty areas share their start with the next one, which gets the bytes
    for (size_t a = 0; a < kAreaCount; ++a) {
      if (starts[a] <= range.begin) area = a;
    }
    int64_t now = high_water[area].load(std::memory_order_relaxed);
    while (range.end > now && !high_water[area].compare_exchange_weak(now, range.end)) {
    }
  }
}

Status Shadow::Before(const IssuedOp& op, int64_t step) {
  State& s = *state_;
  s.Delay(op, step);
  const auto index = static_cast<size_t>(op.index);
  for (const Conflict& conflict : s.analysis.conflicts[index]) {
    const int64_t needed = conflict.on.previous_step ? step : step + 1;
    const auto other = static_cast<size_t>(conflict.on.op);
    if (s.done[other].load(std::memory_order_acquire) >= needed) continue;
    return RunFailed(fmt::format(
        "race: it starts before {}{} is done, and both use bytes {}..{} of the arena; a wait is "
        "missing",
        Describe(s.order.ops[other]), conflict.on.previous_step ? " of the step before" : "",
        conflict.bytes.begin, conflict.bytes.end));
  }
  s.Touch(op);
  for (const ByteRange& range : s.analysis.overwritten[index]) Fill(s.arena, range, kNan);
  OpRecord& record = s.records[static_cast<size_t>(step) * s.order.ops.size() + index];
  record.step = step;
  record.op = op.index;
  record.start = s.clock->fetch_add(1);
  return Status::Ok();
}

void Shadow::After(const IssuedOp& op, int64_t step) {
  State& s = *state_;
  const auto index = static_cast<size_t>(op.index);
  // Whoever uses a value last fills it; its next writer waits for all users in a correct program.
  for (int32_t value : s.analysis.values_used[index]) {
    const Value& v = s.analysis.values[static_cast<size_t>(value)];
    std::atomic<int32_t>& left = s.uses_left[static_cast<size_t>(value)];
    if (left.fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
    left.store(v.uses, std::memory_order_relaxed);
    Fill(s.arena, v.bytes, kNan);
    s.filled.fetch_add(1, std::memory_order_relaxed);
  }
  s.records[static_cast<size_t>(step) * s.order.ops.size() + index].end = s.clock->fetch_add(1);
  s.done[index].store(step + 1, std::memory_order_release);
}

Status Shadow::CheckGuards() const {
  const State& s = *state_;
  std::vector<ByteRange> guards = s.analysis.unowned;
  guards.push_back({-s.guard, 0});
  guards.push_back({s.program.arena.size, s.program.arena.size + s.guard});
  for (const ByteRange& range : guards) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      if (s.arena[i] == std::byte{kGuard}) continue;
      return RunFailed(fmt::format(
          "byte {} of the arena (size {}) was changed, but no operand of the program covers it: a "
          "kernel wrote beyond its operands",
          i, s.program.arena.size));
    }
  }
  return Status::Ok();
}

ShadowReport Shadow::TakeReport() {
  State& s = *state_;
  ShadowReport report;
  const auto starts = AreaStarts(s.program.arena);
  for (size_t a = 0; a < kAreaCount; ++a) {
    const int64_t end = s.high_water[a].load();
    report.high_water_bytes = std::max(report.high_water_bytes, end);
    report.area_high_water_bytes[a] = end > 0 ? end - starts[a] : 0;
  }
  report.filled_values = s.filled.load();
  report.records = std::move(s.records);
  return report;
}

}  // namespace meshwright::runtime
