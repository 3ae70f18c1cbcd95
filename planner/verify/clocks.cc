#include "planner/verify/clocks.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace meshwright::planner::verify {
namespace {

/// Clocks are padded so that loops over them have no remainder.
constexpr size_t kClockPadding = 8;

void Join(int32_t* into, const int32_t* from, size_t width) {
  for (size_t i = 0; i < width; ++i) into[i] = std::max(into[i], from[i]);
}

/// Builds a BlockOrder op by op, in issue order.
class OrderBuilder {
 public:
  explicit OrderBuilder(const Block& block) : block_(block) {
    for (const Op& op : block.ops) {
      if (std::find(order_.streams.begin(), order_.streams.end(), op.stream) ==
          order_.streams.end()) {
        order_.streams.push_back(op.stream);
      }
    }
    order_.ops_on_stream.assign(order_.streams.size(), 0);
    order_.last_on_stream.assign(order_.streams.size(), -1);
    order_.known.assign(block.ops.size() * order_.streams.size(), 0);
    sources_of_.resize(block.ops.size());
  }

  BlockOrder Build() {
    for (size_t i = 0; i < block_.ops.size(); ++i) Add(static_cast<int32_t>(i));
    for (const auto& [event, op] : recorded_) order_.records.emplace_back(event, op);
    return std::move(order_);
  }

 private:
  void Add(int32_t i) {
    const Op& op = block_.ops[static_cast<size_t>(i)];
    const auto it = std::find(order_.streams.begin(), order_.streams.end(), op.stream);
    const auto slot = static_cast<size_t>(it - order_.streams.begin());
    if (order_.last_on_stream[slot] >= 0) {
      After(i, order_.last_on_stream[slot]);
    } else {
      AddSource(i, {BlockOrder::Source::Kind::kStream, op.stream, {}});
      AddSource(i, {BlockOrder::Source::Kind::kInstanceWaits, 0, {}});
    }
    BlockOrder::Source outside{BlockOrder::Source::Kind::kEvents, 0, {}};
    for (EventId e : op.waits) {
      if (const auto record = recorded_.find(e); record != recorded_.end()) {
        After(i, record->second);
      } else {
        outside.events.push_back(e);
      }
    }
    if (!outside.events.empty()) AddSource(i, std::move(outside));
    order_.slot.push_back(static_cast<int32_t>(slot));
    order_.position.push_back(++order_.ops_on_stream[slot]);
    order_.last_on_stream[slot] = i;
    known(i)[slot] = order_.position.back();
    order_.view.push_back(ViewOf(i));
    if (op.signal >= 0) recorded_[op.signal] = i;
  }

  void After(int32_t i, int32_t earlier) {
    Join(known(i), known(earlier), order_.streams.size());
    auto& own = sources_of_[static_cast<size_t>(i)];
    const auto& more = sources_of_[static_cast<size_t>(earlier)];
    own.insert(own.end(), more.begin(), more.end());
  }

  void AddSource(int32_t i, BlockOrder::Source source) {
    sources_of_[static_cast<size_t>(i)].push_back(static_cast<int32_t>(order_.sources.size()));
    order_.sources.push_back(std::move(source));
  }

  int32_t ViewOf(int32_t i) {
    auto& own = sources_of_[static_cast<size_t>(i)];
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
    const auto it = std::find(order_.views.begin(), order_.views.end(), own);
    if (it != order_.views.end()) return static_cast<int32_t>(it - order_.views.begin());
    order_.views.push_back(own);
    return static_cast<int32_t>(order_.views.size()) - 1;
  }

  int32_t* known(int32_t i) {
    return order_.known.data() + static_cast<size_t>(i) * order_.streams.size();
  }

  const Block& block_;
  BlockOrder order_;
  std::vector<std::vector<int32_t>> sources_of_;
  std::map<EventId, int32_t> recorded_;
};

}  // namespace

BlockOrder OrderOf(const Block& block) {
  return OrderBuilder(block).Build();
}

ClockWalk::ClockWalk(const RankProgram& program, const std::vector<BlockOrder>& orders)
    : orders_(orders),
      width_((program.streams.size() + kClockPadding - 1) / kClockPadding * kClockPadding),
      counts_(program.streams.size(), 0),
      streams_(program.streams.size() * width_, 0),
      registers_(static_cast<size_t>(program.events) * width_, 0),
      scratch_(width_, 0) {}

void ClockWalk::Enter(const Instance& instance) {
  order_ = &orders_[static_cast<size_t>(instance.block)];
  sources_.assign(order_->sources.size() * width_, 0);
  for (size_t i = 0; i < order_->sources.size(); ++i) {
    const BlockOrder::Source& source = order_->sources[i];
    int32_t* clock = sources_.data() + i * width_;
    switch (source.kind) {
      case BlockOrder::Source::Kind::kStream:
        std::memcpy(clock, Stream(source.stream), width_ * sizeof(int32_t));
        break;
      case BlockOrder::Source::Kind::kInstanceWaits:
        for (EventId e : instance.waits) Join(clock, Register(e), width_);
        break;
      case BlockOrder::Source::Kind::kEvents:
        for (EventId e : source.events) Join(clock, Register(e), width_);
        break;
    }
  }
  views_.assign(order_->views.size() * width_, 0);
  for (size_t v = 0; v < order_->views.size(); ++v) {
    for (int32_t s : order_->views[v]) {
      Join(views_.data() + v * width_, sources_.data() + static_cast<size_t>(s) * width_, width_);
    }
  }
}

void ClockWalk::ClockOf(int32_t op, int32_t* clock) const {
  std::memcpy(clock, View(order_->view[static_cast<size_t>(op)]), width_ * sizeof(int32_t));
  for (size_t slot = 0; slot < order_->streams.size(); ++slot) {
    const int32_t inside = order_->Known(op, static_cast<int32_t>(slot));
    if (inside == 0) continue;
    const auto stream = static_cast<size_t>(order_->streams[slot]);
    clock[stream] = std::max(clock[stream], counts_[stream] + inside);
  }
}

void ClockWalk::Leave(const Instance& instance) {
  for (const auto& [event, op] : order_->records) ClockOf(op, Register(event));
  if (!instance.signals.empty()) {
    ClockOf(static_cast<int32_t>(order_->slot.size()) - 1, scratch_.data());
    for (EventId e : instance.signals) {
      std::memcpy(Register(e), scratch_.data(), width_ * sizeof(int32_t));
    }
  }
  for (size_t slot = 0; slot < order_->streams.size(); ++slot) {
    ClockOf(order_->last_on_stream[slot], Stream(order_->streams[slot]));
  }
  for (size_t slot = 0; slot < order_->streams.size(); ++slot) {
    counts_[static_cast<size_t>(order_->streams[slot])] += order_->ops_on_stream[slot];
  }
}

}  // namespace meshwright::planner::verify
