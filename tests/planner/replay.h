// Tasks of one rank replayed op by op, for the brute force of the search.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "planner/ir/op_schema.h"
#include "planner/ir/program.h"

namespace meshwright::planner {

/// Of an op: time alone, and thousandths of the device that it takes.
struct OpPrice {
  double time = 0.0;
  int32_t device_milli = 0;
};
using PriceOf = std::function<OpPrice(const Block&, const Op&)>;

/// Time of a block's ops on the compute and the tensor stream: those that run at once share the
/// device by their demands.
inline double SharedTime(const Block& block, const PriceOf& price) {
  std::vector<OpPrice> left;
  for (const Op& op : block.ops) left.push_back(price(block, op));
  std::vector<bool> done(block.ops.size(), false);
  const auto blocked = [&](size_t k) {
    for (size_t b = 0; b < k; ++b) {
      const Op& before = block.ops[b];
      const auto& waits = block.ops[k].waits;
      const bool waited =
          before.signal >= 0 && std::find(waits.begin(), waits.end(), before.signal) != waits.end();
      if (!done[b] && (before.stream == block.ops[k].stream || waited)) return true;
    }
    return false;
  };
  double now = 0.0;
  while (true) {
    std::vector<size_t> running;
    double demand = 0.0;
    for (size_t k = 0; k < block.ops.size(); ++k) {
      if (done[k] || blocked(k)) continue;
      running.push_back(k);
      demand += left[k].device_milli;
    }
    if (running.empty()) return now;
    const auto rate = [&](size_t k) {
      return demand > 1000.0 && left[k].device_milli > 0 ? 1000.0 / demand : 1.0;
    };
    double step = std::numeric_limits<double>::infinity();
    for (const size_t k : running) step = std::min(step, left[k].time / rate(k));
    for (const size_t k : running) {
      left[k].time -= step * rate(k);
      done[k] = left[k].time <= 1e-6;
    }
    now += step;
  }
}

/// Runs tasks of one rank on its streams. Blocks of passes run alone (SharedTime), other ops are
/// priced alone.
class Replay {
 public:
  struct Range {
    double begin = 0.0, end = 0.0;
  };
  Replay(const RankProgram& program, PriceOf price) : program_(program), price_(std::move(price)) {
    streams_.assign(program.streams.size(), 0.0);
    events_.assign(static_cast<size_t>(program.events), 0.0);
  }
  void Run(const Task& task) {
    const bool passes = task.kind == TaskKind::kForward || task.kind == TaskKind::kBackward;
    for (const Instance& i : task.instances) {
      passes ? RunAtOnce(i) : RunOps(task, i);
    }
  }
  void Rest(double time) { streams_[kComputeStream] = streams_[kTensorStream] = compute() + time; }
  double compute() const { return std::max(streams_[kComputeStream], streams_[kTensorStream]); }
  /// By which sums of gradients slow what runs in a range.
  double Slowed(const Range& range) const {
    double slowed = 0.0;
    for (const auto& [sum, share] : sums_) {
      slowed +=
          share * std::max(0.0, std::min(sum.end, range.end) - std::max(sum.begin, range.begin));
    }
    return slowed;
  }

 private:
  void RunAtOnce(const Instance& i) {
    const Block& block = program_.blocks[static_cast<size_t>(i.block)];
    double begin = compute();
    for (EventId e : i.waits) begin = std::max(begin, events_[static_cast<size_t>(e)]);
    const double end = begin + SharedTime(block, price_);
    streams_[kComputeStream] = streams_[kTensorStream] = end;
    for (const Op& op : block.ops) {
      if (op.signal >= 0) events_[static_cast<size_t>(op.signal)] = end;
    }
    for (EventId e : i.signals) events_[static_cast<size_t>(e)] = end;
  }
  void RunOps(const Task& task, const Instance& i) {
    const Block& block = program_.blocks[static_cast<size_t>(i.block)];
    for (size_t k = 0; k < block.ops.size(); ++k) {
      const Op& op = block.ops[k];
      double& stream = streams_[static_cast<size_t>(op.stream)];
      for (EventId e : op.waits) stream = std::max(stream, events_[static_cast<size_t>(e)]);
      if (k == 0) {
        for (EventId e : i.waits) stream = std::max(stream, events_[static_cast<size_t>(e)]);
      }
      const OpPrice price = price_(block, op);
      const bool sums =
          task.kind == TaskKind::kReduceGrads && IsCollective(op.kind) &&
          program_.communicators[static_cast<size_t>(op.attributes.communicator)].kind ==
              CommunicatorKind::kData;
      if (sums) sums_.push_back({{stream, stream + price.time}, price.device_milli / 1000.0});
      stream += price.time;
      if (op.signal >= 0) events_[static_cast<size_t>(op.signal)] = stream;
      if (k + 1 < block.ops.size()) continue;
      for (EventId e : i.signals) events_[static_cast<size_t>(e)] = stream;
    }
  }

  const RankProgram& program_;
  PriceOf price_;
  std::vector<double> streams_;
  std::vector<double> events_;
  std::vector<std::pair<Range, double>> sums_;
};

}  // namespace meshwright::planner
