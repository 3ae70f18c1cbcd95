#include "planner/verify/rendezvous_graph.h"

#include <algorithm>

namespace meshwright::planner::verify {

int32_t RendezvousGraph::AddOp() {
  return ops_++;
}
void RendezvousGraph::After(int32_t op, int32_t earlier) {
  orders_.push_back({op, earlier});
}
void RendezvousGraph::Meet(const std::vector<int32_t>& ops) {
  meets_.push_back(ops);
}
void RendezvousGraph::Lonely(int32_t op) {
  lonely_.push_back(op);
}

std::vector<int32_t> RendezvousGraph::MeetingsOf() const {
  std::vector<int32_t> meeting(static_cast<size_t>(ops_), -1);
  int32_t count = 0;
  for (const auto& ops : meets_) {
    for (int32_t op : ops) meeting[static_cast<size_t>(op)] = count;
    ++count;
  }
  for (int32_t& m : meeting) {
    if (m < 0) m = count++;
  }
  return meeting;
}

std::optional<RendezvousGraph::Stop> RendezvousGraph::Run() const {
  const std::vector<int32_t> meeting = MeetingsOf();
  const auto at = [&](int32_t op) { return static_cast<size_t>(meeting[static_cast<size_t>(op)]); };
  const auto count = static_cast<size_t>(
      meeting.empty() ? 0 : *std::max_element(meeting.begin(), meeting.end()) + 1);
  std::vector<int32_t> missing(count, 0);
  std::vector<int32_t> first(count + 1, 0);  // meeting -> its followers, as one array
  for (const Order& o : orders_) {
    ++missing[at(o.op)];
    ++first[at(o.earlier) + 1];
  }
  for (size_t i = 0; i < count; ++i) first[i + 1] += first[i];
  std::vector<size_t> followers(orders_.size());
  std::vector<int32_t> fill = first;
  for (const Order& o : orders_) {
    followers[static_cast<size_t>(fill[at(o.earlier)]++)] = at(o.op);
  }
  for (int32_t op : lonely_) ++missing[at(op)];  // a partner that never comes

  std::vector<size_t> ready;
  for (size_t m = 0; m < count; ++m) {
    if (missing[m] == 0) ready.push_back(m);
  }
  std::vector<bool> done(count, false);
  size_t completed = 0;
  while (!ready.empty()) {
    const size_t m = ready.back();
    ready.pop_back();
    done[m] = true;
    ++completed;
    for (auto i = static_cast<size_t>(first[m]); i < static_cast<size_t>(first[m + 1]); ++i) {
      if (--missing[followers[i]] == 0) ready.push_back(followers[i]);
    }
  }
  if (completed == count) return std::nullopt;
  return Explain(meeting, done);
}

RendezvousGraph::Stop RendezvousGraph::Explain(const std::vector<int32_t>& meeting,
                                               const std::vector<bool>& done) const {
  const auto at = [&](int32_t op) { return static_cast<size_t>(meeting[static_cast<size_t>(op)]); };
  // What a stuck op waits for (the first given), and an op of each stuck meeting that waits.
  std::vector<int32_t> waits_for(static_cast<size_t>(ops_), -1);
  std::vector<int32_t> waiting(done.size(), -1);
  std::vector<int32_t> lonely(done.size(), -1);
  for (const Order& o : orders_) {
    if (done[at(o.op)] || done[at(o.earlier)]) continue;
    if (waits_for[static_cast<size_t>(o.op)] < 0) waits_for[static_cast<size_t>(o.op)] = o.earlier;
    if (waiting[at(o.op)] < 0) waiting[at(o.op)] = o.op;
  }
  for (int32_t op : lonely_) lonely[at(op)] = op;

  // Go from op to what it waits for, on the same participant as long as that one waits, until a
  // meeting comes again.
  std::vector<Stop::Link> path;
  std::vector<int32_t> seen_at(done.size(), -1);
  Stop stop;
  int32_t op =
      static_cast<int32_t>(std::find_if(meeting.begin(), meeting.end(),
                                        [&](int32_t m) { return !done[static_cast<size_t>(m)]; }) -
                           meeting.begin());
  while (seen_at[at(op)] < 0) {
    const size_t m = at(op);
    seen_at[m] = static_cast<int32_t>(path.size());
    if (lonely[m] >= 0) {
      stop.lonely = lonely[m];
      break;
    }
    if (waits_for[static_cast<size_t>(op)] < 0) op = waiting[m];
    path.push_back({op, waits_for[static_cast<size_t>(op)]});
    op = path.back().earlier;
  }
  if (stop.lonely < 0) path.erase(path.begin(), path.begin() + seen_at[at(op)]);
  for (const Stop::Link& link : path) {
    if (!stop.links.empty() && stop.links.back().earlier == link.op) {
      stop.links.back().earlier = link.earlier;
    } else {
      stop.links.push_back(link);
    }
  }
  if (stop.lonely < 0 && stop.links.size() > 1 &&
      stop.links.back().earlier == stop.links.front().op) {
    stop.links.front().op = stop.links.back().op;
    stop.links.pop_back();
  }
  return stop;
}

}  // namespace meshwright::planner::verify
