#include "planner/verify/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "planner/verify/rendezvous_graph.h"

namespace meshwright::planner {
namespace {

struct Posted {
  int32_t rank = 0;
  size_t step = 0;
  const RendezvousOp* op = nullptr;
};

std::string Name(const Posted& p) {
  return fmt::format("rank {} step {} {}", p.rank, p.step, p.op->label);
}

Status CheckReferences(const RendezvousProgram& program) {
  const auto ranks = static_cast<int32_t>(program.ranks.size());
  const auto exists = [&](int32_t rank) { return rank >= 0 && rank < ranks; };
  for (size_t c = 0; c < program.communicators.size(); ++c) {
    for (int32_t member : program.communicators[c]) {
      if (exists(member)) continue;
      return InvalidInput(fmt::format("communicator {}: rank {} of {}", c, member, ranks));
    }
  }
  for (int32_t r = 0; r < ranks; ++r) {
    for (const RendezvousStep& step : program.ranks[static_cast<size_t>(r)]) {
      for (const RendezvousOp& op : step.ops) {
        if (op.kind != RendezvousOp::Kind::kCollective) {
          if (exists(op.peer) && op.peer != r) continue;
          return InvalidInput(
              fmt::format("rank {}, {}: its partner is rank {}; allowed are the "
                          "other ranks of 0..{}",
                          r, op.label, op.peer, ranks - 1));
        }
        if (op.communicator >= 0 &&
            op.communicator < static_cast<int32_t>(program.communicators.size())) {
          const auto& members = program.communicators[static_cast<size_t>(op.communicator)];
          if (std::find(members.begin(), members.end(), r) != members.end()) continue;
        }
        return InvalidInput(
            fmt::format("rank {}, {}: it is not in communicator {}", r, op.label, op.communicator));
      }
    }
  }
  return Status::Ok();
}

/// Which ops meet: messages by (sender, receiver, tag), collectives by (communicator, tag), in
/// order.
class Matcher {
 public:
  Matcher(const RendezvousProgram& program, verify::RendezvousGraph& graph)
      : program_(program), graph_(graph) {}

  int32_t Post(const Posted& posted) {
    const int32_t id = graph_.AddOp();
    posted_.push_back(posted);
    const RendezvousOp& op = *posted.op;
    switch (op.kind) {
      case RendezvousOp::Kind::kSend:
        queues_[{0, posted.rank, op.peer, op.tag}][posted.rank].push_back(id);
        break;
      case RendezvousOp::Kind::kRecv:
        queues_[{0, op.peer, posted.rank, op.tag}][posted.rank].push_back(id);
        break;
      case RendezvousOp::Kind::kCollective:
        queues_[{1, op.communicator, 0, op.tag}][posted.rank].push_back(id);
        break;
    }
    return id;
  }

  Status Match() {
    for (const auto& [key, queue] : queues_) {
      const bool collective = std::get<0>(key) == 1;
      const size_t partners =
          collective ? program_.communicators[static_cast<size_t>(std::get<1>(key))].size() : 2;
      size_t longest = 0;
      for (const auto& [rank, ids] : queue) longest = std::max(longest, ids.size());
      for (size_t k = 0; k < longest; ++k) {
        std::vector<int32_t> met;
        for (const auto& [rank, ids] : queue) {
          if (k < ids.size()) met.push_back(ids[k]);
        }
        for (int32_t id : met) {
          const Posted& a = posted_[static_cast<size_t>(met.front())];
          const Posted& b = posted_[static_cast<size_t>(id)];
          if (a.op->bytes == b.op->bytes) continue;
          return Infeasible(fmt::format("{} has {} bytes, its partner {} has {}; make them equal",
                                        Name(a), a.op->bytes, Name(b), b.op->bytes));
        }
        if (met.size() < partners) graph_.Lonely(met.front());
        graph_.Meet(met);
      }
    }
    return Status::Ok();
  }

  const Posted& At(int32_t id) const { return posted_[static_cast<size_t>(id)]; }

 private:
  using Key = std::tuple<int, int32_t, int32_t, int32_t>;
  const RendezvousProgram& program_;
  verify::RendezvousGraph& graph_;
  std::vector<Posted> posted_;
  std::map<Key, std::map<int32_t, std::vector<int32_t>>> queues_;
};

}  // namespace

Status CheckRendezvous(const RendezvousProgram& program) {
  MW_RETURN_IF_ERROR(CheckReferences(program));
  verify::RendezvousGraph graph;
  Matcher matcher(program, graph);
  for (size_t r = 0; r < program.ranks.size(); ++r) {
    std::vector<int32_t> before;
    for (size_t s = 0; s < program.ranks[r].size(); ++s) {
      const RendezvousStep& step = program.ranks[r][s];
      if (step.ops.empty()) continue;
      std::vector<int32_t> now;
      for (const RendezvousOp& op : step.ops) {
        now.push_back(matcher.Post({static_cast<int32_t>(r), s, &op}));
        for (int32_t earlier : before) graph.After(now.back(), earlier);
      }
      before = std::move(now);
    }
  }
  MW_RETURN_IF_ERROR(matcher.Match());
  const auto stop = graph.Run();
  if (!stop) return Status::Ok();
  std::string text = stop->lonely >= 0 ? "stops for want of a partner" : "deadlock";
  for (const auto& link : stop->links) {
    text +=
        fmt::format("; {} waits for {}", Name(matcher.At(link.op)), Name(matcher.At(link.earlier)));
  }
  if (stop->lonely >= 0) {
    text +=
        fmt::format("; {} waits for a partner that never comes", Name(matcher.At(stop->lonely)));
  } else {
    text += "; and so on round. Post operations together or in one order on all ranks";
  }
  return Infeasible(text);
}

}  // namespace meshwright::planner
