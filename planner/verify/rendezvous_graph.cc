#include "planner/verify/rendezvous_graph.h"

#include <algorithm>

namespace meshwright::planner::verify {

int32_t RendezvousGraph::AddOp() { return ops_++; }
void RendezvousGraph::After(int32_t op, int32_t earlier) { orders_.push_back({op, earlier}); }
void RendezvousGraph::Meet(const std::vector<int32_t>& ops) { meets_.push_back(ops); }
void RendezvousGraph::Lonely(int32_t op) { lonely_.push_back(op); }

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
  // One reason for each stuck meeting, the first given; a lonely op is a reason of its own.
  std::vector<int32_t> reason(done.size(), -1);
  std::vector<int32_t> lonely(done.size(), -1);
  const auto at = [&](int32_t op) { return static_cast<size_t>(meeting[static_cast<size_t>(op)]); };
  for (size_t i = 0; i < orders_.size(); ++i) {
    if (!done[at(orders_[i].op)] && !done[at(orders_[i].earlier)] && reason[at(orders_[i].op)] < 0) {
      reason[at(orders_[i].op)] = static_cast<int32_t>(i);
    }
  }
  for (int32_t op : lonely_) lonely[at(op)] = op;

  Stop stop;
  std::vector<int32_t> seen_at(done.size(), -1);
  auto m = static_cast<size_t>(std::find(done.begin(), done.end(), false) - done.begin());
  while (seen_at[m] < 0) {
    seen_at[m] = static_cast<int32_t>(stop.links.size());
    if (reason[m] < 0) {
      stop.lonely = lonely[m];
      return stop;
    }
    const Order& o = orders_[static_cast<size_t>(reason[m])];
    stop.links.push_back({o.op, o.earlier});
    m = at(o.earlier);
  }
  stop.links.erase(stop.links.begin(), stop.links.begin() + seen_at[m]);
  return stop;
}

}  // namespace meshwright::planner::verify
