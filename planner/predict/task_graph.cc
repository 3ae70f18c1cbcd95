#include "planner/predict/task_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "planner/ir/op_schema.h"
#include "planner/predict/shared_resources.h"

namespace meshwright::planner {
namespace {

using cost::NodeId;

/// FoldRanks with the paths of a rank's groups as part of its color.
Result<RankClasses> FoldByPaths(const Programs& programs, const Prices& prices) {
  std::vector<int32_t> path_of_group;
  std::vector<cost::PathFacts> paths;
  for (const Group& group : programs.groups) {
    MW_ASSIGN_OR_RETURN(const cost::PathFacts path, prices.PathOf(group.ranks));
    const auto known = std::find(paths.begin(), paths.end(), path);
    path_of_group.push_back(static_cast<int32_t>(known - paths.begin()));
    if (known == paths.end()) paths.push_back(path);
  }
  const std::vector<int32_t> alike = AlikePrograms(programs);
  std::map<std::vector<int32_t>, int32_t> colors;
  std::vector<int32_t> color;
  for (const RankBinding& rank : programs.ranks) {
    std::vector<int32_t> key = {alike[static_cast<size_t>(rank.program)]};
    for (const int32_t g : rank.groups) key.push_back(path_of_group[static_cast<size_t>(g)]);
    color.push_back(
        colors.emplace(std::move(key), static_cast<int32_t>(colors.size())).first->second);
  }
  return FoldColors(programs, std::move(color));
}

/// Walks the programs of all classes and adds nodes.
class Builder {
 public:
  Builder(const Programs& programs, const Prices& prices, const TaskGraphOptions& options)
      : programs_(programs), prices_(prices), options_(options) {}

  Result<TaskGraphOfStep> Run() {
    if (options_.steps < 1 || options_.steps > kMostSteps) {
      return InvalidInput(
          fmt::format("steps: found {}, allowed 1 to {}", options_.steps, kMostSteps));
    }
    if (options_.fold) {
      MW_ASSIGN_OR_RETURN(out_.classes, FoldByPaths(programs_, prices_));
    } else {
      out_.classes = SeparateRanks(programs_);
    }
    out_.steps = options_.steps;
    channels_ = ChannelsOf(programs_, out_.classes);
    MW_ASSIGN_OR_RETURN(
        shared_, AddSharedResources(programs_, out_.classes, channels_, prices_, &out_.graph));
    MW_RETURN_IF_ERROR(CheckSize());
    rendezvous_.resize(channels_.channels.size());
    for (const RankProgram& program : programs_.programs) {
      prices_of_program_.push_back(prices_.PriceBlocks(program));
    }
    for (int32_t c = 0; c < out_.classes.size(); ++c) MW_RETURN_IF_ERROR(AddClass(c));
    return std::move(out_);
  }

 private:
  static constexpr int64_t kMostSteps = 16;
  /// About 100 bytes each, in graph and timeline.
  static constexpr int64_t kMostOps = 32'000'000;

  /// The record that an event register holds.
  struct Record {
    NodeId node = -1;
    StreamId stream = -1;
  };
  /// Ops of a stream that will be one node; nobody refers to it before it is closed.
  struct OpenRun {
    int32_t entry = -1;  ///< -1: none
    NodePrice price;     ///< of the first op; time of all
    std::vector<NodeId> waits;
  };
  /// What a class has issued so far.
  struct ClassState {
    int32_t index = 0;
    const RankProgram* program = nullptr;
    const RankBinding* binding = nullptr;
    const std::vector<std::vector<NodePrice>>* prices = nullptr;
    std::vector<Record> events;
    std::vector<NodeId> tails;    ///< last node of each stream
    std::vector<OpenRun> open;    ///< of each stream
    std::vector<size_t> arrived;  ///< by communicator: rendezvous begun
  };

  Status CheckSize() const {
    int64_t ops = 0;
    for (const auto& members : out_.classes.members) {
      const RankBinding& binding = programs_.ranks[static_cast<size_t>(members.front())];
      const RankProgram& program = programs_.programs[static_cast<size_t>(binding.program)];
      for (const Task& task : program.tasks) {
        for (const Instance& i : task.instances) {
          ops += static_cast<int64_t>(program.blocks[static_cast<size_t>(i.block)].ops.size());
        }
      }
    }
    if (ops <= kMostOps / options_.steps) return Status::Ok();
    return Unsupported(
        fmt::format("{} ops in {} classes of ranks and {} steps are too many to simulate; "
                    "allowed: {}; use fewer micro-batches or steps",
                    ops, out_.classes.size(), options_.steps, kMostOps));
  }

  Status AddClass(int32_t c) {
    ClassState state;
    state.index = c;
    state.binding = &programs_.ranks[static_cast<size_t>(out_.classes.representative(c))];
    const auto program = static_cast<size_t>(state.binding->program);
    state.program = &programs_.programs[program];
    state.prices = &prices_of_program_[program];
    state.events.resize(static_cast<size_t>(state.program->events));
    state.tails.assign(state.program->streams.size(), -1);
    state.open.resize(state.program->streams.size());
    state.arrived.assign(state.program->communicators.size(), 0);
    out_.queues.emplace_back();
    for (size_t s = 0; s < state.program->streams.size(); ++s) {
      out_.queues.back().push_back(out_.graph.AddQueue());
    }
    out_.saved_pools.push_back(out_.graph.AddPool());
    for (int32_t step = 0; step < static_cast<int32_t>(options_.steps); ++step) {
      for (size_t t = 0; t < state.program->tasks.size(); ++t) {
        MW_RETURN_IF_ERROR(AddTask(state, step, static_cast<int32_t>(t)));
      }
    }
    return Status::Ok();
  }

  Status AddTask(ClassState& state, int32_t step, int32_t index) {
    const Task& task = state.program->tasks[static_cast<size_t>(index)];
    const size_t first = out_.entries.size();
    for (size_t i = 0; i < task.instances.size(); ++i) {
      const Instance& instance = task.instances[i];
      const Block& block = state.program->blocks[static_cast<size_t>(instance.block)];
      for (size_t o = 0; o < block.ops.size(); ++o) {
        TaskGraphEntry at;
        at.rank_class = state.index;
        at.step = step;
        at.task = index;
        at.instance = static_cast<int32_t>(i);
        at.op = static_cast<int32_t>(o);
        MW_RETURN_IF_ERROR(AddOp(state, instance, block, at));
      }
    }
    for (size_t s = 0; s < state.open.size(); ++s) Close(state, s);
    if (out_.entries.size() == first) return Status::Ok();
    const cost::PoolId pool = out_.saved_pools.back();
    const Bytes slot(state.program->arena.slot_bytes);
    if (task.kind == TaskKind::kForward) {
      out_.graph.AddMemory(out_.entries[first].node, pool, slot, Bytes(0));
    } else if (task.kind == TaskKind::kBackward) {
      out_.graph.AddMemory(out_.entries.back().node, pool, Bytes(0), Bytes(0) - slot);
    }
    return Status::Ok();
  }

  /// Nodes of other streams that the op waits for.
  void CollectWaits(const ClassState& state, const Op& op, bool first) {
    waits_.clear();
    const auto wait = [&](const Record& record) {
      if (record.node < 0 || record.stream == op.stream) return;
      if (std::find(waits_.begin(), waits_.end(), record.node) == waits_.end()) {
        waits_.push_back(record.node);
      }
    };
    if (first) std::for_each(gate_.begin(), gate_.end(), wait);
    for (const EventId e : op.waits) wait(state.events[static_cast<size_t>(e)]);
  }

  Status AddOp(ClassState& state, const Instance& instance, const Block& block, TaskGraphEntry at) {
    const Op& op = block.ops[static_cast<size_t>(at.op)];
    const auto stream = static_cast<size_t>(op.stream);
    if (at.op == 0) {
      gate_.clear();
      for (const EventId e : instance.waits) {
        gate_.push_back(state.events[static_cast<size_t>(e)]);
      }
    }
    const bool first = !gate_.empty() && FirstOnStream(block, static_cast<size_t>(at.op));
    const bool last = &op == &block.ops.back();
    CollectWaits(state, op, first);
    const bool records = op.signal >= 0 || (last && !instance.signals.empty());
    const bool communicates = IsCollective(op.kind) || IsMessage(op.kind);
    if (communicates) {
      Close(state, stream);
      MW_RETURN_IF_ERROR(AddRendezvous(state, block, op, at));
    } else {
      AddCompute(state, instance, op, at);
    }
    if (!records) return Status::Ok();
    Close(state, stream);  // others wait for this op, not for what follows
    const Record record = {state.tails[stream], op.stream};
    if (op.signal >= 0) state.events[static_cast<size_t>(op.signal)] = record;
    if (last) {
      for (const EventId e : instance.signals) state.events[static_cast<size_t>(e)] = record;
    }
    return Status::Ok();
  }

  void Enqueue(ClassState& state, size_t stream, NodeId node, const std::vector<NodeId>& waits) {
    out_.graph.Enqueue(out_.queues.back()[stream], node);
    for (const NodeId before : waits) out_.graph.AddDependency(before, node);
    state.tails[stream] = node;
  }

  void Close(ClassState& state, size_t stream) {
    OpenRun& run = state.open[stream];
    if (run.entry < 0) return;
    const NodeId node = out_.graph.AddNode(run.price.time);
    out_.entries[static_cast<size_t>(run.entry)].node = node;
    Enqueue(state, stream, node, run.waits);
    AddDemands(shared_.of_class[static_cast<size_t>(state.index)], run.price, node, &out_.graph);
    run.entry = -1;
  }

  void AddCompute(ClassState& state, const Instance& instance, const Op& op,
                  const TaskGraphEntry& at) {
    const auto stream = static_cast<size_t>(op.stream);
    const NodePrice& price =
        (*state.prices)[static_cast<size_t>(instance.block)][static_cast<size_t>(at.op)];
    const bool mergeable = options_.merge && shared_.AlikeForOps(static_cast<size_t>(state.index));
    OpenRun& run = state.open[stream];
    if (run.entry >= 0 && mergeable && waits_.empty()) {
      ++out_.entries[static_cast<size_t>(run.entry)].ops;
      run.price.time += price.time;
      return;
    }
    Close(state, stream);
    run.entry = static_cast<int32_t>(out_.entries.size());
    run.price = price;
    run.waits = waits_;
    out_.entries.push_back(at);
    if (!mergeable) Close(state, stream);
  }

  /// The node of the class's next rendezvous on the op's communicator; the first to come adds it.
  Status AddRendezvous(ClassState& state, const Block& block, const Op& op, TaskGraphEntry at) {
    const auto communicator = static_cast<size_t>(op.attributes.communicator);
    const auto channel =
        static_cast<size_t>(channels_.of[static_cast<size_t>(state.index)][communicator]);
    std::vector<NodeId>& nodes = rendezvous_[channel];
    const size_t turn = state.arrived[communicator]++;
    if (turn == nodes.size()) {
      const Group& group =
          programs_.groups[static_cast<size_t>(state.binding->groups[communicator])];
      MW_ASSIGN_OR_RETURN(const cost::PathFacts path, PathOf(channel, group));
      const NodePrice price =
          prices_.PriceCommunication(*state.program, group.kind, block, op, path);
      nodes.push_back(out_.graph.AddNode(price.time));
      AddDemands(shared_.of_channel[channel], price, nodes.back(), &out_.graph);
    }
    at.node = nodes[turn];
    at.rendezvous = true;
    at.arrivals_begin = static_cast<int32_t>(out_.arrivals.size());
    const auto stream = static_cast<size_t>(op.stream);
    if (state.tails[stream] >= 0) out_.arrivals.push_back(state.tails[stream]);
    out_.arrivals.insert(out_.arrivals.end(), waits_.begin(), waits_.end());
    at.arrivals_end = static_cast<int32_t>(out_.arrivals.size());
    Enqueue(state, stream, at.node, waits_);
    out_.entries.push_back(at);
    return Status::Ok();
  }

  Result<cost::PathFacts> PathOf(size_t channel, const Group& group) {
    const auto known = paths_.find(channel);
    if (known != paths_.end()) return known->second;
    MW_ASSIGN_OR_RETURN(const cost::PathFacts path, prices_.PathOf(group.ranks));
    return paths_.emplace(channel, path).first->second;
  }

  const Programs& programs_;
  const Prices& prices_;
  const TaskGraphOptions options_;
  TaskGraphOfStep out_;
  Channels channels_;
  SharedResources shared_;
  std::vector<std::vector<std::vector<NodePrice>>> prices_of_program_;
  std::vector<std::vector<NodeId>> rendezvous_;  ///< channel -> nodes in order
  std::map<size_t, cost::PathFacts> paths_;      ///< by channel
  std::vector<Record> gate_;                     ///< what the instance at hand waits for
  std::vector<NodeId> waits_;                    ///< of the op at hand
};

}  // namespace

Result<TaskGraphOfStep> ToTaskGraph(const Programs& programs, const Prices& prices,
                                    const TaskGraphOptions& options) {
  return Builder(programs, prices, options).Run();
}

std::vector<TraceRow> ToTrace(const Programs& programs, const TaskGraphOfStep& step,
                              const cost::Timeline& timeline) {
  // Per class: rows of all steps and tasks.
  std::vector<std::vector<TraceRow>> rows(static_cast<size_t>(step.classes.size()));
  const auto program_of = [&](size_t rank) -> const RankProgram& {
    return programs.programs[static_cast<size_t>(programs.ranks[rank].program)];
  };
  for (size_t c = 0; c < rows.size(); ++c) {
    const auto rank = static_cast<size_t>(step.classes.representative(static_cast<int32_t>(c)));
    const RankProgram& program = program_of(rank);
    for (int64_t s = 0; s < step.steps; ++s) {
      for (size_t t = 0; t < program.tasks.size(); ++t) {
        rows[c].push_back(MakeTraceRow(0, s, static_cast<int32_t>(t), program.tasks[t], program));
        rows[c].back().start_ns = std::numeric_limits<int64_t>::max();
      }
    }
  }
  for (const TaskGraphEntry& entry : step.entries) {
    auto& own = rows[static_cast<size_t>(entry.rank_class)];
    const size_t tasks = own.size() / static_cast<size_t>(step.steps);
    TraceRow& row = own[static_cast<size_t>(entry.step) * tasks + static_cast<size_t>(entry.task)];
    int64_t start = timeline.start_ns[static_cast<size_t>(entry.node)];
    if (entry.rendezvous) {
      start = 0;
      for (int32_t a = entry.arrivals_begin; a < entry.arrivals_end; ++a) {
        const auto before = static_cast<size_t>(step.arrivals[static_cast<size_t>(a)]);
        start = std::max(start, timeline.end_ns[before]);
      }
    }
    row.start_ns = std::min(row.start_ns, start);
    row.end_ns = std::max(row.end_ns, timeline.end_ns[static_cast<size_t>(entry.node)]);
  }
  for (auto& own : rows) {
    for (TraceRow& row : own) {
      if (row.start_ns == std::numeric_limits<int64_t>::max()) row.start_ns = 0;  // no ops
    }
  }
  std::vector<TraceRow> trace;
  for (size_t rank = 0; rank < programs.ranks.size(); ++rank) {
    const auto& own = rows[static_cast<size_t>(step.classes.class_of[rank])];
    for (const TraceRow& row : own) {
      trace.push_back(row);
      trace.back().rank = static_cast<int32_t>(rank);
    }
  }
  return trace;
}

cost::SimulateOptions SimulateLabels(const Programs& programs, const TaskGraphOfStep& step) {
  cost::SimulateOptions options;
  const auto program_of = [&programs, &step](int32_t c) -> const RankProgram& {
    const auto rank = static_cast<size_t>(step.classes.representative(c));
    return programs.programs[static_cast<size_t>(programs.ranks[rank].program)];
  };
  options.node_label = [&step, program_of](cost::NodeId node) {
    for (const TaskGraphEntry& e : step.entries) {
      if (e.node != node) continue;
      const RankProgram& program = program_of(e.rank_class);
      const Task& task = program.tasks[static_cast<size_t>(e.task)];
      const Instance& instance = task.instances[static_cast<size_t>(e.instance)];
      const Block& block = program.blocks[static_cast<size_t>(instance.block)];
      return fmt::format("rank {}, {}, {}", step.classes.representative(e.rank_class), Label(task),
                         ToString(block.ops[static_cast<size_t>(e.op)].kind));
    }
    return fmt::format("node {}", node);
  };
  options.queue_label = [&step, program_of](cost::QueueId queue) {
    for (size_t c = 0; c < step.queues.size(); ++c) {
      for (size_t s = 0; s < step.queues[c].size(); ++s) {
        if (step.queues[c][s] != queue) continue;
        const auto cls = static_cast<int32_t>(c);
        return fmt::format("rank {}, stream {}", step.classes.representative(cls),
                           program_of(cls).streams[s].name);
      }
    }
    return fmt::format("queue {}", queue);
  };
  return options;
}

}  // namespace meshwright::planner
