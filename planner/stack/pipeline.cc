#include "planner/stack/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cost_models/simulate.h"
#include "planner/lower/schedule.h"

namespace meshwright::planner::stack {
namespace {

using cost::NodeId;

double D(int64_t value) {
  return static_cast<double>(value);
}
size_t S(int64_t value) {
  return static_cast<size_t>(value);
}
Nanoseconds ToNanoseconds(double seconds) {
  constexpr double kPerSecond = 1e9;
  return Nanoseconds(static_cast<int64_t>(std::llround(seconds * kPerSecond)));
}

class PipelineGraph {
 public:
  PipelineGraph(const Split& split, const std::vector<StagePasses>& stages, double message_s)
      : split_(split), stages_(stages), message_(ToNanoseconds(message_s)) {}

  Result<PipelineTimeline> Run() {
    AddPasses();
    AddMessages();
    MW_ASSIGN_OR_RETURN(const cost::Timeline timeline, cost::Simulate(graph_));
    PipelineTimeline result;
    result.step_s = D(timeline.makespan.value()) * 1e-9;
    for (int64_t p = 0; p < split_.pp; ++p) {
      result.busy_s.push_back(D(timeline.busy_ns[S(p)]) * 1e-9);
    }
    result.nodes = graph_.node_count();
    return result;
  }

 private:
  size_t At(PassKind kind, int64_t stage, int64_t chunk, int64_t micro_batch) const {
    const int64_t index =
        (((static_cast<int64_t>(kind) * split_.pp + stage) * split_.virtual_stages + chunk) *
             split_.micro_batches +
         micro_batch);
    return S(index);
  }

  double SecondsOf(PassKind kind, const ChunkPasses& c) const {
    if (kind == PassKind::kForward) return c.forward_s;
    if (kind == PassKind::kWeight) return c.weight_s;
    return split_.schedule == Schedule::kZeroBubbleH1 ? c.backward_s : c.backward_s + c.weight_s;
  }

  void AddPasses() {
    const int64_t P = split_.pp, v = split_.virtual_stages, m = split_.micro_batches;
    nodes_.assign(S(3 * P * v * m), -1);
    for (int64_t p = 0; p < P; ++p) {
      const cost::QueueId queue = graph_.AddQueue();
      orders_.push_back(PassOrder(split_, p));
      for (const Pass& pass : orders_.back()) {
        const ChunkPasses& c = stages_[S(p)].chunks[S(pass.chunk)];
        const double seconds = SecondsOf(pass.kind, c);
        const NodeId node = graph_.AddNode(ToNanoseconds(seconds));
        graph_.Enqueue(queue, node);
        nodes_[At(pass.kind, p, pass.chunk, pass.micro_batch)] = node;
      }
      const NodeId end = graph_.AddNode(ToNanoseconds(stages_[S(p)].end_s));
      graph_.Enqueue(queue, end);
    }
  }

  /// A pass's output goes to the next chunk in its direction, in the order of the passes.
  void AddMessages() {
    const int64_t P = split_.pp, v = split_.virtual_stages;
    for (int64_t p = 0; p < P; ++p) {
      const cost::QueueId up = graph_.AddQueue();
      const cost::QueueId down = graph_.AddQueue();
      for (const Pass& pass : orders_[S(p)]) {
        if (pass.kind == PassKind::kWeight) continue;
        const bool forward = pass.kind == PassKind::kForward;
        const int64_t at = pass.chunk * P + p;  // chunks in the order of the model
        const int64_t to = forward ? at + 1 : at - 1;
        const NodeId from = nodes_[At(pass.kind, p, pass.chunk, pass.micro_batch)];
        if (to < 0) continue;
        if (to == P * v) {  // the head's gradient starts here
          graph_.AddDependency(from,
                               nodes_[At(PassKind::kBackward, p, pass.chunk, pass.micro_batch)]);
          continue;
        }
        const NodeId target = nodes_[At(pass.kind, to % P, to / P, pass.micro_batch)];
        const NodeId message = graph_.AddNode(message_);
        graph_.Enqueue(forward ? up : down, message);
        graph_.AddDependency(from, message);
        graph_.AddDependency(message, target);
      }
    }
  }

  const Split& split_;
  const std::vector<StagePasses>& stages_;
  Nanoseconds message_;
  cost::TaskGraph graph_;
  std::vector<std::vector<Pass>> orders_;
  std::vector<NodeId> nodes_;
};

Status CheckPipeline(const Split& split, const std::vector<StagePasses>& stages, double message_s) {
  const auto seconds = [](double value) { return std::isfinite(value) && value >= 0; };
  if (split.pp < 1 || split.virtual_stages < 1 || split.micro_batches < 1 ||
      static_cast<int64_t>(stages.size()) != split.pp) {
    return InvalidInput(fmt::format("pipeline {}: {} stages given; give one for each of pp {}",
                                    ShortName(split), stages.size(), split.pp));
  }
  // Passes, messages and ends are numbered in 32 bits.
  const double nodes = 6.0 * D(split.pp) * D(split.virtual_stages) * D(split.micro_batches);
  if (nodes > D(std::numeric_limits<int32_t>::max())) {
    return InvalidInput(fmt::format("pipeline {}: {:.0f} tasks; at most {} can be simulated",
                                    ShortName(split), nodes, std::numeric_limits<int32_t>::max()));
  }
  if (split.virtual_stages > 1 && split.micro_batches % split.pp != 0) {
    return InvalidInput(fmt::format("pipeline {}: interleaving needs micro-batches in groups of {}",
                                    ShortName(split), split.pp));
  }
  for (const StagePasses& s : stages) {
    bool good = static_cast<int64_t>(s.chunks.size()) == split.virtual_stages && seconds(s.end_s);
    for (const ChunkPasses& c : s.chunks) {
      good = good && seconds(c.forward_s) && seconds(c.backward_s) && seconds(c.weight_s);
    }
    if (!good || !seconds(message_s)) {
      return InvalidInput(fmt::format(
          "pipeline {}: each stage has {} chunks, and times are finite and not negative",
          ShortName(split), split.virtual_stages));
    }
  }
  return Status::Ok();
}

}  // namespace

StagePasses PassesOf(const Split& split, const ItemTable& table, const StageContent& content,
                     double end_s) {
  const double v = D(split.virtual_stages);
  StageContent layers = content;
  layers.embedding = layers.head = false;
  const StageSums sums = SumOf(layers, table);
  const double exposed = table.exposed_message_s / 2;
  StagePasses stage;
  stage.chunks.assign(S(split.virtual_stages),
                      {sums.forward_s / v + exposed,
                       (sums.backward_s - sums.weight_s) / v + exposed, sums.weight_s / v});
  const auto add = [](ChunkPasses& chunk, const ItemCost& cost) {
    chunk.forward_s += cost.forward_s;
    chunk.backward_s += cost.backward_s - cost.weight_s;
    chunk.weight_s += cost.weight_s;
  };
  if (content.embedding) add(stage.chunks.front(), table.embedding);
  if (content.head) add(stage.chunks.back(), table.head);
  stage.end_s = end_s;
  return stage;
}

std::vector<Pass> PassOrder(const Split& split, int64_t stage) {
  std::vector<Pass> order;
  const auto m = static_cast<int32_t>(split.micro_batches);
  if (split.schedule != Schedule::kZeroBubbleH1) {
    for (const lower::ScheduleStep& step :
         lower::StageSchedule(split.pp, split.virtual_stages, split.micro_batches, stage)) {
      const PassKind kind = step.forward ? PassKind::kForward : PassKind::kBackward;
      order.push_back({kind, step.chunk, step.micro_batch});
    }
    return order;
  }
  const auto delay = static_cast<int32_t>(stage);
  const auto warm = static_cast<int32_t>(std::min(split.pp - stage, split.micro_batches));
  for (int32_t i = 0; i < warm; ++i) order.push_back({PassKind::kForward, 0, i});
  for (int32_t i = 0; i < m; ++i) {
    order.push_back({PassKind::kBackward, 0, i});
    if (i >= delay) order.push_back({PassKind::kWeight, 0, i - delay});
    if (i + warm < m) order.push_back({PassKind::kForward, 0, i + warm});
  }
  for (int32_t i = std::max(0, m - delay); i < m; ++i) {
    order.push_back({PassKind::kWeight, 0, i});
  }
  return order;
}

Result<PipelineTimeline> SimulatePipeline(const Split& split,
                                          const std::vector<StagePasses>& stages,
                                          double message_s) {
  MW_RETURN_IF_ERROR(CheckPipeline(split, stages, message_s));
  return PipelineGraph(split, stages, message_s).Run();
}

}  // namespace meshwright::planner::stack
