#include "runtime/diagnose.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace meshwright::runtime {
namespace {

/// Records of one member of a group, by sequence number.
using Member = std::map<int64_t, const FlightEntry*>;
using Members = std::map<int, Member>;  // by rank

/// A finding and when its victim began to wait.
struct Candidate {
  Diagnosis diagnosis;
  bool mismatch = false;
  int64_t since_ns = 0;
  int victim = -1;                      ///< of a missing rank: who waits for it
  std::pair<int64_t, int64_t> place{};  ///< where: step and number of the op in it
};

/// Whether `a` says more of the cause than `b`. Two ranks that miss each other: the one that waits
/// further on in the step has passed the place of the other and left out what is done there.
bool NearerTheCause(const Candidate& a, const Candidate& b) {
  if (a.mismatch != b.mismatch) return a.mismatch;
  const bool each_other =
      a.victim >= 0 && a.victim == b.diagnosis.culprit && b.victim == a.diagnosis.culprit;
  if (each_other && a.place != b.place) return a.place < b.place;
  return a.since_ns < b.since_ns;
}

bool IsMessage(CommOp op) {
  return op == CommOp::kSend || op == CommOp::kRecv;
}

/// Whether two members' operations can meet.
bool Meet(const FlightEntry& a, const FlightEntry& b) {
  const FlightRecord& x = a.record;
  const FlightRecord& y = b.record;
  const bool ops = IsMessage(x.op) && IsMessage(y.op) ? x.op != y.op : x.op == y.op;
  return ops && x.bytes == y.bytes && x.dtype == y.dtype;
}

bool SamePlace(const FlightEntry& a, const FlightEntry& b) {
  return a.record.step == b.record.step && a.item == b.item;
}

bool Same(const FlightEntry& a, const FlightEntry& b) {
  return Meet(a, b) && SamePlace(a, b);
}

/// When the first operation at or behind `sequence` that is not done was put on its stream.
std::optional<int64_t> WaitingSince(const Members& members, int64_t sequence) {
  std::optional<int64_t> since;
  for (const auto& [rank, member] : members) {
    for (auto at = member.lower_bound(sequence); at != member.end(); ++at) {
      const FlightRecord& record = at->second->record;
      if (record.done_ns != 0) continue;
      since = std::min(since.value_or(record.enqueued_ns), record.enqueued_ns);
      break;
    }
  }
  return since;
}

/// Of two that differ at `sequence`: the one whose operation the other does next has left out one.
int WhoLeftOut(const Members& members, int a, int b, int64_t sequence) {
  const auto next_is = [&](int waits, int ahead) {
    const auto next = members.at(waits).find(sequence + 1);
    return next != members.at(waits).end() && Same(*next->second, *members.at(ahead).at(sequence));
  };
  const bool b_ahead = next_is(a, b);
  const bool a_ahead = next_is(b, a);
  if (b_ahead != a_ahead) return b_ahead ? b : a;
  return -1;
}

std::optional<Candidate> FindMismatch(const planner::Group& group, const Members& members) {
  int64_t begin = 1;
  int64_t end = INT64_MAX;
  for (const auto& [rank, member] : members) {
    if (member.empty()) return std::nullopt;
    begin = std::max(begin, member.begin()->first);
    end = std::min(end, member.rbegin()->first + 1);
  }
  bool places_agree = false;  // at all sequence numbers so far, and there was one
  for (int64_t s = begin; s < end; ++s) {
    const auto& [first_rank, first_member] = *members.begin();
    const auto mine = first_member.find(s);
    if (mine == first_member.end()) return std::nullopt;
    bool all_places = true;
    for (const auto& [rank, member] : members) {
      const auto theirs = member.find(s);
      if (theirs == member.end()) return std::nullopt;
      if (rank == first_rank) continue;
      const bool place = SamePlace(*mine->second, *theirs->second);
      all_places = all_places && place;
      if (Meet(*mine->second, *theirs->second) && (place || !places_agree)) continue;
      Candidate found;
      found.mismatch = true;
      found.diagnosis.sequence = s;
      found.diagnosis.culprit = WhoLeftOut(members, first_rank, rank, s);
      found.diagnosis.text =
          fmt::format("communicator '{}': rank {} does {}, rank {} does {}", group.name, first_rank,
                      ToText(*mine->second), rank, ToText(*theirs->second));
      if (found.diagnosis.culprit >= 0) {
        const int victim = found.diagnosis.culprit == rank ? first_rank : rank;
        found.diagnosis.text += fmt::format(": rank {} has left out what rank {} waits for",
                                            found.diagnosis.culprit, victim);
      }
      return found;
    }
    places_agree = all_places && (places_agree || s == begin);
  }
  return std::nullopt;
}

std::optional<Candidate> FindMissing(const planner::Group& group, const Members& members) {
  const auto last = [](const Member& m) { return m.empty() ? 0 : m.rbegin()->first; };
  const auto behind = std::min_element(members.begin(), members.end(), [&](auto& a, auto& b) {
    return last(a.second) < last(b.second);
  });
  const int64_t done = last(behind->second);
  for (const auto& [rank, member] : members) {
    const auto waits = member.find(done + 1);
    if (waits == member.end() || waits->second->record.done_ns != 0) continue;
    Candidate found;
    found.diagnosis.sequence = done + 1;
    found.diagnosis.culprit = behind->first;
    found.victim = rank;
    found.place = {waits->second->record.step, waits->second->record.item};
    found.diagnosis.text =
        fmt::format("communicator '{}': rank {} waits in {}, rank {} has not come there; {}",
                    group.name, rank, ToText(*waits->second), behind->first,
                    done == 0 ? "it has done nothing on it"
                              : "its last there was " + ToText(*behind->second.at(done)));
    return found;
  }
  return std::nullopt;
}

}  // namespace

std::string ToText(const FlightEntry& entry) {
  const FlightRecord& r = entry.record;
  std::string text = fmt::format("operation {} ({} of {} bytes {})", r.sequence, ToString(r.op),
                                 r.bytes, planner::ToString(r.dtype));
  if (r.step >= 0) text += fmt::format(", step {}", r.step);
  if (!entry.item.empty()) text += ", " + entry.item;
  return text;
}

std::optional<Diagnosis> Diagnose(const std::vector<FlightEntry>& entries,
                                  const std::vector<planner::Group>& groups) {
  std::set<int> answered;
  for (const FlightEntry& entry : entries) answered.insert(entry.rank);
  std::optional<Candidate> best;
  for (size_t g = 0; g < groups.size(); ++g) {
    Members members;
    for (const int32_t rank : groups[g].ranks) {
      if (answered.count(rank) > 0) members[rank];
    }
    for (const FlightEntry& entry : entries) {
      if (entry.record.group != static_cast<int32_t>(g)) continue;
      const auto at = members.find(entry.rank);
      if (at != members.end()) at->second[entry.record.sequence] = &entry;
    }
    if (members.size() < 2 || !WaitingSince(members, 0)) continue;
    auto found = FindMismatch(groups[g], members);
    if (!found) found = FindMissing(groups[g], members);
    if (!found) continue;
    found->diagnosis.group = static_cast<int32_t>(g);
    found->since_ns = WaitingSince(members, found->diagnosis.sequence).value_or(INT64_MAX);
    if (!best || NearerTheCause(*found, *best)) best = std::move(found);
  }
  if (!best) return std::nullopt;
  return best->diagnosis;
}

}  // namespace meshwright::runtime
