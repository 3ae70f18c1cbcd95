#include "planner/verify/op_races.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "planner/ir/op_schema.h"
#include "planner/verify/access.h"
#include "planner/verify/names.h"
#include "planner/verify/value_flow.h"

namespace meshwright::planner::verify {
namespace {

using Clock = std::vector<int32_t>;

void Join(Clock& into, const Clock& from) {
  for (size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
}

/// One op in one step.
struct Event {
  OpPlace place;
  int32_t step = 0;
  StreamId stream = 0;
  int32_t position = 0;  ///< 1-based on its stream
};

/// Smallest ranges that every access covers whole or not at all.
struct Cell {
  int64_t begin = 0;
  std::optional<Event> write;
  std::vector<Event> reads;  ///< since the write
  std::vector<int32_t>
      written;  ///< tensors that the instance of `write` has written here, in order
};

class OpRaces {
 public:
  OpRaces(const RankProgram& program, const ByteRange& range)
      : program_(program),
        range_(range),
        counts_(program.streams.size(), 0),
        streams_(program.streams.size(), Clock(program.streams.size(), 0)),
        registers_(static_cast<size_t>(program.events), Clock(program.streams.size(), 0)) {}

  std::optional<std::string> Find() {
    MakeCells();
    for (int32_t step = 0; step < 2; ++step) {
      for (size_t t = 0; t < program_.tasks.size(); ++t) {
        for (size_t i = 0; i < program_.tasks[t].instances.size(); ++i) {
          Event event;
          event.place = {static_cast<int32_t>(t), static_cast<int32_t>(i), 0};
          event.step = step;
          if (auto found = WalkInstance(event)) return found;
        }
      }
    }
    return std::nullopt;
  }

 private:
  struct Span {
    int64_t begin, end;
  };
  Span SpanOf(const Instance& instance, const TensorView& t) const {
    const int64_t begin = instance.base[static_cast<size_t>(t.region)] + t.offset;
    return {std::max(begin, range_.begin), std::min(begin + t.bytes(), range_.end)};
  }

  void MakeCells() {
    std::vector<int64_t> ends;
    for (const Task& task : program_.tasks) {
      for (const Instance& instance : task.instances) {
        const Block& block = program_.blocks[static_cast<size_t>(instance.block)];
        for (const TensorView& t : block.tensors) {
          const Span span = SpanOf(instance, t);
          if (span.begin >= span.end) continue;
          ends.push_back(span.begin);
          ends.push_back(span.end);
        }
      }
    }
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    for (int64_t e : ends) cells_.push_back({e, std::nullopt, {}});
  }

  std::optional<std::string> WalkInstance(Event event) {
    const Instance& instance = InstanceAt(program_, event.place);
    const Block& block = BlockAt(program_, event.place);
    Clock last;
    Clock gate(streams_.size(), 0);
    for (EventId e : instance.waits) Join(gate, registers_[static_cast<size_t>(e)]);
    for (size_t i = 0; i < block.ops.size(); ++i) {
      const Op& op = block.ops[i];
      event.place.op = static_cast<int32_t>(i);
      event.stream = op.stream;
      event.position = ++counts_[static_cast<size_t>(op.stream)];
      Clock& clock = streams_[static_cast<size_t>(op.stream)];
      for (EventId e : op.waits) Join(clock, registers_[static_cast<size_t>(e)]);
      if (FirstOnStream(block, i)) Join(clock, gate);
      if (auto found = Access(event, clock)) return found;
      clock[static_cast<size_t>(op.stream)] = event.position;
      if (op.signal >= 0) registers_[static_cast<size_t>(op.signal)] = clock;
      last = clock;
    }
    for (EventId e : instance.signals) registers_[static_cast<size_t>(e)] = last;
    return std::nullopt;
  }

  std::optional<std::string> Access(const Event& event, const Clock& clock) {
    const Instance& instance = InstanceAt(program_, event.place);
    const Block& block = BlockAt(program_, event.place);
    const Op& op = OpAt(program_, event.place);
    for (bool writes : {false, true}) {  // an op reads before it writes
      for (const Operand& o : op.operands) {
        if (o.tensor < 0) continue;
        if (writes ? o.access == planner::Access::kRead : o.access == planner::Access::kWrite)
          continue;
        const TensorView& t = block.tensors[static_cast<size_t>(o.tensor)];
        const Span span = SpanOf(instance, t);
        auto cell = std::lower_bound(cells_.begin(), cells_.end(), span.begin,
                                     [](const Cell& c, int64_t at) { return c.begin < at; });
        for (; cell != cells_.end() && cell->begin < span.end; ++cell) {
          auto found = writes ? Write(*cell, event, clock, o.tensor) : Read(*cell, event, clock, o);
          if (found) return fmt::format("{} (tensor {})", *found, t.name);
        }
      }
    }
    return std::nullopt;
  }

  static bool Ordered(const Event& earlier, const Event& later, const Clock& clock) {
    return (earlier.place == later.place && earlier.step == later.step) ||
           clock[static_cast<size_t>(earlier.stream)] >= earlier.position;
  }

  static bool SameInstance(const Event& a, const Event& b) {
    return a.step == b.step && a.place.task == b.place.task && a.place.instance == b.place.instance;
  }

  std::optional<std::string> Read(Cell& cell, const Event& event, const Clock& clock,
                                  const Operand& operand) {
    const TensorView& t =
        BlockAt(program_, event.place).tensors[static_cast<size_t>(operand.tensor)];
    if (cell.write && !Ordered(*cell.write, event, clock)) {
      return Race(*cell.write, "writes", event, "reads", cell);
    }
    const int32_t tensor = TensorOf(BlockAt(program_, event.place), operand.tensor);
    if (cell.write && SameInstance(*cell.write, event) && cell.written.back() != tensor) {
      const bool input = t.region == Region::kIn0 || t.region == Region::kIn1;
      const auto& w = cell.written;
      if (input || std::find(w.begin(), w.end(), tensor) != w.end()) {
        return Clobbered(cell, event);
      }
    }
    const AreaRule rule = RuleAt(program_.arena, cell.begin);
    const Toucher writer = cell.write ? ToucherOf(*cell.write) : Toucher{};
    const Toucher reader = ToucherOf(event);
    const ReadKind kind{operand.access == planner::Access::kAccumulate, t.region == Region::kSaved};
    if (!ReadIsCurrent(rule, writer, reader, kind)) {
      return fmt::format(
          "{} {} at byte {} of the arena; give live values their own slot or buffer, "
          "or put the writer in front",
          NameOp(program_, event.place), WhyStale(rule, writer, reader), cell.begin);
    }
    cell.reads.push_back(event);
    return std::nullopt;
  }

  std::optional<std::string> Write(Cell& cell, const Event& event, const Clock& clock,
                                   int32_t tensor) {
    if (cell.write && !Ordered(*cell.write, event, clock)) {
      return Race(*cell.write, "writes", event, "writes", cell);
    }
    for (const Event& read : cell.reads) {
      if (!Ordered(read, event, clock)) return Race(read, "reads", event, "writes", cell);
    }
    if (!cell.write || !SameInstance(*cell.write, event)) cell.written.clear();
    cell.written.push_back(TensorOf(BlockAt(program_, event.place), tensor));
    cell.write = event;
    cell.reads.clear();
    return std::nullopt;
  }

  Toucher ToucherOf(const Event& event) const {
    return {&program_.tasks[static_cast<size_t>(event.place.task)],
            InstanceAt(program_, event.place).layer, event.step};
  }

  std::string Clobbered(const Cell& cell, const Event& event) const {
    const TensorView& over =
        BlockAt(program_, event.place).tensors[static_cast<size_t>(cell.written.back())];
    return fmt::format(
        "{} reads byte {} of the arena, which {} has overwritten with tensor {}; "
        "give live tensors separate memory",
        NameOp(program_, event.place), cell.begin, NameOp(program_, cell.write->place), over.name);
  }

  std::string Race(const Event& a, const char* what_a, const Event& b, const char* what_b,
                   const Cell& cell) const {
    return fmt::format(
        "{} {} byte {} of the arena, and {}{} {} it, with nothing that orders the two; let the "
        "second wait for an event that follows the first, or give them separate memory",
        NameOp(program_, a.place), what_a, cell.begin, NameOp(program_, b.place),
        a.step == b.step ? "" : " in the next step", what_b);
  }

  const RankProgram& program_;
  ByteRange range_;
  std::vector<int32_t> counts_;
  std::vector<Clock> streams_;
  std::vector<Clock> registers_;
  std::vector<Cell> cells_;
};

}  // namespace

std::optional<std::string> FindOpRace(const RankProgram& program, const ByteRange& range) {
  return OpRaces(program, range).Find();
}

}  // namespace meshwright::planner::verify
