#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "planner/verify/channel_ops.h"
#include "planner/verify/checks.h"
#include "planner/verify/clocks.h"
#include "planner/verify/names.h"
#include "planner/verify/rendezvous_graph.h"

namespace meshwright::planner {
namespace {

using verify::BlockOrder;
using verify::ClockWalk;
using verify::OpPlace;
using verify::RendezvousGraph;

/// One rendezvous op of a class.
struct Posted {
  int32_t rank = 0;
  OpPlace place;
};

bool Earlier(const OpPlace& a, const OpPlace& b) {
  return std::tie(a.task, a.instance, a.op) < std::tie(b.task, b.instance, b.op);
}

class DeadlockCheck {
 public:
  DeadlockCheck(const Programs& programs, const RankClasses& classes)
      : programs_(programs), classes_(classes), orders_(programs.programs.size()) {}

  Status Check() {
    const Channels channels = ChannelsOf(programs_, classes_);
    const verify::ChannelOps ops = verify::ListChannelOps(programs_, classes_, channels);
    of_class_.resize(static_cast<size_t>(classes_.size()));
    for (size_t c = 0; c < channels.channels.size(); ++c) {
      AddChannel(channels.channels[c], ops[c]);
    }
    for (int32_t k = 0; k < classes_.size(); ++k) OrderClass(k);
    const auto stop = graph_.Run();
    return stop ? Report(*stop) : Status::Ok();
  }

 private:
  void AddChannel(const Channel& channel, const std::vector<std::vector<OpPlace>>& ops) {
    size_t longest = 0;
    for (const auto& list : ops) longest = std::max(longest, list.size());
    for (size_t k = 0; k < longest; ++k) {
      std::vector<int32_t> met;
      for (size_t p = 0; p < ops.size(); ++p) {
        if (k >= ops[p].size()) continue;
        const int32_t rank_class = channel.participants[p].rank_class;
        const int32_t id = graph_.AddOp();
        posted_.push_back({classes_.representative(rank_class), ops[p][k]});
        of_class_[static_cast<size_t>(rank_class)].push_back(id);
        met.push_back(id);
      }
      if (met.size() < ops.size()) graph_.Lonely(met.front());
      graph_.Meet(met);
    }
  }

  const std::vector<BlockOrder>& OrdersOf(int32_t index) {
    std::vector<BlockOrder>& orders = orders_[static_cast<size_t>(index)];
    if (orders.empty()) {
      for (const Block& b : programs_.programs[static_cast<size_t>(index)].blocks) {
        orders.push_back(verify::OrderOf(b));
      }
    }
    return orders;
  }

  /// Each rendezvous op after the last one of every stream that it is known to follow.
  void OrderClass(int32_t k) {
    std::vector<int32_t>& ids = of_class_[static_cast<size_t>(k)];
    if (ids.empty()) return;
    const auto place = [&](int32_t id) -> const OpPlace& {
      return posted_[static_cast<size_t>(id)].place;
    };
    std::sort(ids.begin(), ids.end(),
              [&](int32_t a, int32_t b) { return Earlier(place(a), place(b)); });
    const int32_t index = programs_.ranks[static_cast<size_t>(classes_.representative(k))].program;
    const RankProgram& program = programs_.programs[static_cast<size_t>(index)];
    ClockWalk walk(program, OrdersOf(index));
    struct Mark {
      int32_t position, id;
    };
    std::vector<std::vector<Mark>> marks(program.streams.size());
    std::vector<int32_t> clock(walk.width());
    size_t next = 0;
    for (size_t t = 0; t < program.tasks.size(); ++t) {
      const auto& instances = program.tasks[t].instances;
      for (size_t i = 0; i < instances.size(); ++i) {
        walk.Enter(instances[i]);
        for (; next < ids.size() && place(ids[next]).task == static_cast<int32_t>(t) &&
               place(ids[next]).instance == static_cast<int32_t>(i);
             ++next) {
          const int32_t op = place(ids[next]).op;
          walk.ClockOf(op, clock.data());
          const StreamId own = verify::OpAt(program, place(ids[next])).stream;
          for (size_t s = 0; s < marks.size(); ++s) {
            // This op is not in `marks` yet, so its own position does not find itself.
            const auto last = std::upper_bound(
                marks[s].begin(), marks[s].end(), clock[s],
                [](int32_t position, const Mark& m) { return position < m.position; });
            if (last != marks[s].begin()) graph_.After(ids[next], std::prev(last)->id);
          }
          marks[static_cast<size_t>(own)].push_back({clock[static_cast<size_t>(own)], ids[next]});
        }
        walk.Leave(instances[i]);
      }
    }
  }

  std::string Name(int32_t id) const {
    const Posted& p = posted_[static_cast<size_t>(id)];
    const RankProgram& program =
        programs_
            .programs[static_cast<size_t>(programs_.ranks[static_cast<size_t>(p.rank)].program)];
    return fmt::format("{}, {}", verify::NameRank(programs_, p.rank),
                       verify::NameOp(program, p.place));
  }

  Status Report(const RendezvousGraph::Stop& stop) const {
    constexpr size_t kMaxLinks = 12;
    std::string text =
        stop.lonely >= 0 ? "the step stops for want of a partner" : "the step deadlocks in a cycle";
    for (size_t i = 0; i < std::min(stop.links.size(), kMaxLinks); ++i) {
      text += fmt::format("; {} waits (stream order or events) for {}, which meets",
                          Name(stop.links[i].op), Name(stop.links[i].earlier));
    }
    if (stop.links.size() > kMaxLinks) {
      text += fmt::format("; ... {} more", stop.links.size() - kMaxLinks);
    }
    text += stop.lonely >= 0 ? fmt::format("; {}, whose partner never comes", Name(stop.lonely))
                             : fmt::format("; {} again. Change the order of tasks or drop the wait",
                                           Name(stop.links[0].op));
    return Infeasible("deadlock: " + text);
  }

  const Programs& programs_;
  const RankClasses& classes_;
  std::vector<std::vector<BlockOrder>> orders_;  ///< per program, made when asked for
  std::vector<Posted> posted_;                   ///< per op of graph_
  std::vector<std::vector<int32_t>> of_class_;   ///< class -> its ops
  RendezvousGraph graph_;
};

}  // namespace

Status CheckDeadlock(const Programs& programs, const RankClasses& classes) {
  MW_RETURN_IF_ERROR(CheckIndices(programs));
  return DeadlockCheck(programs, classes).Check();
}

}  // namespace meshwright::planner
