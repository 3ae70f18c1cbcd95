// The planned edges of a program against the order in which its ops were seen to run.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>

#include "planner/ir/op_schema.h"
#include "runtime/shadow.h"

namespace meshwright::runtime {
namespace {

using planner::OpKind;

/// One rank's orders, planned and seen.
struct RankOrder {
  int rank = 0;
  IssueOrder order;
  const std::vector<OpRecord>* records = nullptr;
  int64_t steps = 0;

  const OpRecord& At(int64_t step, int32_t op) const {
    return (*records)[static_cast<size_t>(step) * order.ops.size() + static_cast<size_t>(op)];
  }
  std::string Name(int64_t step, int32_t op) const {
    const IssuedOp& issued = order.ops[static_cast<size_t>(op)];
    return fmt::format("rank {} step {} op {} ({} of {})", rank, step, op,
                       planner::ToString(issued.op->kind), Label(*issued.task_ptr));
  }
};

Status CheckEdge(const RankOrder& r, int64_t from_step, int32_t from, int64_t step, int32_t to,
                 const char* why) {
  if (from_step < 0 || r.At(from_step, from).end < r.At(step, to).start) return Status::Ok();
  return RunFailed(fmt::format("{} must be done before {} ({}), but was not",
                               r.Name(from_step, from), r.Name(step, to), why));
}

Status CheckWithinRank(const RankOrder& r) {
  std::map<planner::StreamId, std::pair<int64_t, int32_t>> last;  // stream -> (step, op)
  for (int64_t step = 0; step < r.steps; ++step) {
    for (const IssuedOp& op : r.order.ops) {
      const OpRecord& record = r.At(step, op.index);
      if (record.step != step || record.op != op.index || record.end <= record.start) {
        return RunFailed(r.Name(step, op.index) + " did not run");
      }
      const auto before = last.find(op.op->stream);
      if (before != last.end()) {
        MW_RETURN_IF_ERROR(CheckEdge(r, before->second.first, before->second.second, step, op.index,
                                     "same stream"));
      }
      last[op.op->stream] = {step, op.index};
      for (const Dependency& d : op.waits) {
        MW_RETURN_IF_ERROR(CheckEdge(r, d.previous_step ? step - 1 : step, d.op, step, op.index,
                                     "waits for its event"));
      }
    }
  }
  return Status::Ok();
}

/// One meeting: (group, sender or -1, receiver or -1, step, how many before it).
using Meeting = std::tuple<int32_t, int32_t, int32_t, int64_t, int64_t>;
struct Members {
  std::vector<std::string> names;
  int64_t last_start = -1;
  int64_t first_end = INT64_MAX;
};

void AddMeetings(const planner::Programs& programs, const RankOrder& r,
                 std::map<Meeting, Members>* meetings) {
  const planner::RankBinding& binding = programs.ranks[static_cast<size_t>(r.rank)];
  for (int64_t step = 0; step < r.steps; ++step) {
    std::map<std::tuple<int32_t, int32_t, int32_t>, int64_t> counts;
    for (const IssuedOp& op : r.order.ops) {
      const OpKind kind = op.op->kind;
      if (!planner::IsCollective(kind) && !planner::IsMessage(kind)) continue;
      const planner::OpAttributes& a = op.op->attributes;
      const int32_t group = binding.groups[static_cast<size_t>(a.communicator)];
      const auto& ranks = programs.groups[static_cast<size_t>(group)].ranks;
      int32_t from = -1;
      int32_t to = -1;
      if (planner::IsMessage(kind)) {
        const int32_t peer = ranks[static_cast<size_t>(a.peer)];
        from = kind == OpKind::kSend ? r.rank : peer;
        to = kind == OpKind::kSend ? peer : r.rank;
      }
      const int64_t number = counts[{group, from, to}]++;
      Members& members = (*meetings)[{group, from, to, step, number}];
      members.names.push_back(r.Name(step, op.index));
      members.last_start = std::max(members.last_start, r.At(step, op.index).start);
      members.first_end = std::min(members.first_end, r.At(step, op.index).end);
    }
  }
}

}  // namespace

Status CheckHappensBefore(const planner::Programs& programs,
                          const std::vector<ShadowReport>& reports) {
  if (reports.size() != programs.ranks.size()) {
    return InvalidInput(
        fmt::format("{} reports for {} ranks", reports.size(), programs.ranks.size()));
  }
  std::map<Meeting, Members> meetings;
  for (size_t i = 0; i < reports.size(); ++i) {
    RankOrder r;
    r.rank = static_cast<int>(i);
    const auto program = static_cast<size_t>(programs.ranks[i].program);
    MW_ASSIGN_OR_RETURN(r.order, MakeIssueOrder(programs.programs[program]));
    r.records = &reports[i].records;
    const size_t ops = std::max<size_t>(r.order.ops.size(), 1);
    if (r.records->size() % ops != 0) {
      return InvalidInput(fmt::format("rank {}: {} records are no whole number of steps of {} ops",
                                      i, r.records->size(), ops));
    }
    r.steps = static_cast<int64_t>(r.records->size() / ops);
    MW_RETURN_IF_ERROR(CheckWithinRank(r));
    AddMeetings(programs, r, &meetings);
  }
  for (const auto& [key, members] : meetings) {
    const bool collective = std::get<1>(key) < 0;
    const auto& group = programs.groups[static_cast<size_t>(std::get<0>(key))];
    const size_t expected = collective ? group.ranks.size() : 2;
    if (members.names.size() != expected) {
      return RunFailed(fmt::format("group {}: {} of {} partners met, among them {}", group.name,
                                   members.names.size(), expected, members.names.front()));
    }
    if (members.last_start >= members.first_end) {
      return RunFailed(fmt::format("group {}: {} and its partners did not overlap in time",
                                   group.name, members.names.front()));
    }
  }
  return Status::Ok();
}

}  // namespace meshwright::runtime
