#include "cost_models/processor_sharing.h"

#include <algorithm>
#include <utility>

#include "cost_models/event_heap.h"

namespace meshwright::cost::internal {
namespace {

constexpr int kFractionBits = 32;                            // work unit: 2^-32 ns
constexpr Int128 kDone = Int128{1} << (kFractionBits - 16);  // no more work left counts as none

Int128 ToWork(int64_t ns) {
  return Int128{ns} << kFractionBits;
}

// Rate at which work advances; at most 1.
struct Rate {
  int64_t capacity = 1;
  int64_t demand = 1;  // >= capacity
  friend bool operator==(const Rate&, const Rate&) = default;
};

bool Slower(const Rate& a, const Rate& b) {
  return Int128{a.capacity} * b.demand < Int128{b.capacity} * a.demand;
}

Int128 WorkDone(int64_t elapsed_ns, const Rate& rate) {
  const Int128 work = ToWork(elapsed_ns);
  return rate.capacity == rate.demand ? work : work * rate.capacity / rate.demand;
}

// First whole nanosecond after `now` at which `work` (or a hair less) has been done.
int64_t TimeOf(int64_t now, Int128 work, const Rate& rate) {
  work -= kDone;
  if (work <= 0) return now;
  const Int128 unit = Int128{rate.capacity} << kFractionBits;
  return now + static_cast<int64_t>((work * rate.demand + unit - 1) / unit);
}

class Simulation {
 public:
  Simulation(const TaskGraph& graph, const Successors& successors, const SharedDemands& shared,
             std::vector<int64_t>* start_ns, std::vector<int64_t>* end_ns)
      : graph_(graph),
        successors_(successors),
        shared_(shared),
        start_(*start_ns),
        end_(*end_ns),
        waiting_(CountPredecessors(graph)),
        resources_(static_cast<size_t>(graph.resource_count())),
        calendar_(static_cast<size_t>(graph.node_count()) +
                  static_cast<size_t>(graph.resource_count())) {
    for (size_t r = 0; r < resources_.size(); ++r) {
      resources_[r].capacity = graph.capacities()[r];
      resources_[r].rate = {1, 1};
    }
    multi_of_.assign(static_cast<size_t>(graph.node_count()), -1);
  }

  void Run() {
    for (NodeId n = 0; n < graph_.node_count(); ++n) {
      if (waiting_[static_cast<size_t>(n)] == 0) ready_.push_back(n);
    }
    CloseInstant();
    while (!calendar_.empty()) {
      now_ = calendar_.top_time();
      while (!calendar_.empty() && calendar_.top_time() == now_) {
        const int32_t id = calendar_.top_id();
        calendar_.Pop();
        if (id < graph_.node_count()) {
          Finish(id);
        } else {
          FinishSingles(id - graph_.node_count());
        }
      }
      CloseInstant();
    }
  }

 private:
  // A running node with one shared resource: ends when the resource's virtual time gets to `ends`.
  struct Single {
    Int128 ends = 0;
    NodeId node = 0;
    friend bool operator<(const Single& a, const Single& b) {
      return a.ends != b.ends ? a.ends > b.ends
                              : a.node > b.node;  // std heaps put the greatest first
    }
  };

  struct Resource {
    int64_t capacity = 0;
    int64_t demand = 0;       // of the running nodes
    Rate rate;                // since `touched`
    int64_t touched = 0;      // ns
    Int128 virtual_time = 0;  // at `touched`: work that a node running from 0 on would have done
    bool dirty = false;
    std::vector<Single> singles;  // heap
    std::vector<int32_t> multis;  // running nodes with several shared resources (index in multis_)
  };

  // A running node with several shared resources.
  struct Multi {
    NodeId node = 0;
    Int128 left = 0;  // work at `touched`
    int64_t touched = 0;
    Rate rate;
    bool dirty = false;
  };

  int32_t DemandCount(NodeId node) const {
    const auto n = static_cast<size_t>(node);
    return shared_.begin[n + 1] - shared_.begin[n];
  }
  const TaskDemand* Demands(NodeId node) const {
    return shared_.demands.data() + shared_.begin[static_cast<size_t>(node)];
  }

  // Brings the virtual time up to now; its demand is about to change.
  Resource& Touch(ResourceId id) {
    Resource& resource = resources_[static_cast<size_t>(id)];
    if (now_ > resource.touched) {
      resource.virtual_time += WorkDone(now_ - resource.touched, resource.rate);
      resource.touched = now_;
    }
    if (!resource.dirty) {
      resource.dirty = true;
      dirty_.push_back(id);
    }
    return resource;
  }

  void Start(NodeId node) {
    const auto n = static_cast<size_t>(node);
    start_[n] = now_;
    const int64_t duration = graph_.durations()[n];
    const int32_t count = DemandCount(node);
    if (duration == 0) {
      Release(node);
    } else if (count == 0) {
      calendar_.Set(node, now_ + duration);
    } else if (count == 1) {
      const TaskDemand& demand = *Demands(node);
      Resource& resource = Touch(demand.resource);
      resource.demand += demand.milli;
      resource.singles.push_back({resource.virtual_time + ToWork(duration), node});
      std::push_heap(resource.singles.begin(), resource.singles.end());
    } else {
      StartMulti(node, duration);
    }
  }

  void StartMulti(NodeId node, int64_t duration) {
    int32_t index = static_cast<int32_t>(multis_.size());
    if (free_multis_.empty()) {
      multis_.emplace_back();
    } else {
      index = free_multis_.back();
      free_multis_.pop_back();
    }
    multis_[static_cast<size_t>(index)] = {node, ToWork(duration), now_, {1, 1}, false};
    multi_of_[static_cast<size_t>(node)] = index;
    for (int32_t i = 0; i < DemandCount(node); ++i) {
      const TaskDemand& demand = Demands(node)[i];
      Resource& resource = Touch(demand.resource);
      resource.demand += demand.milli;
      resource.multis.push_back(index);
    }
  }

  // The calendar says that this node is done.
  void Finish(NodeId node) {
    const int32_t index = multi_of_[static_cast<size_t>(node)];
    if (index >= 0) {
      for (int32_t i = 0; i < DemandCount(node); ++i) {
        const TaskDemand& demand = Demands(node)[i];
        Resource& resource = Touch(demand.resource);
        resource.demand -= demand.milli;
        resource.multis.erase(std::find(resource.multis.begin(), resource.multis.end(), index));
      }
      free_multis_.push_back(index);
    }
    Release(node);
  }

  // The calendar says that the first of the resource's single nodes is done.
  void FinishSingles(ResourceId id) {
    Resource& resource = Touch(id);
    while (!resource.singles.empty() &&
           resource.singles.front().ends - resource.virtual_time <= kDone) {
      const NodeId node = resource.singles.front().node;
      std::pop_heap(resource.singles.begin(), resource.singles.end());
      resource.singles.pop_back();
      resource.demand -= Demands(node)->milli;
      Release(node);
    }
  }

  // The node has ended now: its successors lose one wait each.
  void Release(NodeId node) {
    const auto n = static_cast<size_t>(node);
    end_[n] = now_;
    for (int32_t s = successors_.begin[n]; s < successors_.begin[n + 1]; ++s) {
      const NodeId to = successors_.to[static_cast<size_t>(s)];
      if (--waiting_[static_cast<size_t>(to)] == 0) ready_.push_back(to);
    }
  }

  // Starts what can start now, then sets new rates once, when all demands of the instant are known.
  void CloseInstant() {
    while (!ready_.empty()) {
      const NodeId node = ready_.back();
      ready_.pop_back();
      Start(node);
    }
    changed_.clear();
    for (const ResourceId id : dirty_) SetRate(id);
    for (const int32_t index : changed_) SetMultiRate(&multis_[static_cast<size_t>(index)]);
    dirty_.clear();
  }

  void SetRate(ResourceId id) {
    Resource& resource = resources_[static_cast<size_t>(id)];
    resource.dirty = false;
    resource.rate =
        resource.demand > resource.capacity ? Rate{resource.capacity, resource.demand} : Rate{1, 1};
    if (resource.singles.empty()) {
      calendar_.Remove(graph_.node_count() + id);
    } else {
      calendar_.Set(
          graph_.node_count() + id,
          TimeOf(now_, resource.singles.front().ends - resource.virtual_time, resource.rate));
    }
    for (const int32_t index : resource.multis) {
      Multi& multi = multis_[static_cast<size_t>(index)];
      if (!multi.dirty) changed_.push_back(index);
      multi.dirty = true;
    }
  }

  void SetMultiRate(Multi* multi) {
    multi->dirty = false;
    Rate rate{1, 1};
    for (int32_t i = 0; i < DemandCount(multi->node); ++i) {
      const Rate& other = resources_[static_cast<size_t>(Demands(multi->node)[i].resource)].rate;
      if (Slower(other, rate)) rate = other;
    }
    const bool fresh = multi->touched == now_;
    if (!fresh && rate == multi->rate) return;
    if (!fresh) multi->left -= WorkDone(now_ - multi->touched, multi->rate);
    multi->touched = now_;
    multi->rate = rate;
    calendar_.Set(multi->node, TimeOf(now_, multi->left, rate));
  }

  const TaskGraph& graph_;
  const Successors& successors_;
  const SharedDemands& shared_;
  std::vector<int64_t>& start_;
  std::vector<int64_t>& end_;
  std::vector<int32_t> waiting_;
  std::vector<Resource> resources_;
  EventHeap calendar_;  // ids: nodes, then resources (the first end among their single nodes)
  std::vector<Multi> multis_;
  std::vector<int32_t> multi_of_;  // per node: index in multis_ once started; -1: not such a node
  std::vector<int32_t> free_multis_;
  std::vector<NodeId> ready_;
  std::vector<ResourceId> dirty_;  // touched in this instant
  std::vector<int32_t> changed_;   // multis_ with a dirty resource
  int64_t now_ = 0;
};

// Per resource: the most that can be demanded at once. A queue runs one node at a time, and each
// node is counted in its first queue only.
std::vector<int64_t> MostAtOnce(const TaskGraph& graph, const std::vector<TaskDemand>& demands) {
  std::vector<QueueId> first_queue(static_cast<size_t>(graph.node_count()), -1);
  for (const TaskPlace& place : graph.places()) {
    QueueId& queue = first_queue[static_cast<size_t>(place.node)];
    if (queue < 0) queue = place.queue;
  }
  struct Item {
    ResourceId resource;
    QueueId queue;
    int32_t milli;
  };
  std::vector<int64_t> most(static_cast<size_t>(graph.resource_count()), 0);
  std::vector<Item> items;
  for (const TaskDemand& demand : demands) {
    const QueueId queue = first_queue[static_cast<size_t>(demand.node)];
    if (queue < 0) {
      most[static_cast<size_t>(demand.resource)] += demand.milli;
    } else {
      items.push_back({demand.resource, queue, demand.milli});
    }
  }
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    if (a.resource != b.resource) return a.resource < b.resource;
    return a.queue != b.queue ? a.queue < b.queue : a.milli > b.milli;
  });
  for (size_t i = 0; i < items.size(); ++i) {
    const bool largest = i == 0 || items[i].resource != items[i - 1].resource ||
                         items[i].queue != items[i - 1].queue;
    if (largest) most[static_cast<size_t>(items[i].resource)] += items[i].milli;
  }
  return most;
}

}  // namespace

SharedDemands FindSharedDemands(const TaskGraph& graph) {
  if (graph.demands().empty()) return {};
  // Rows of one pair merge by addition; a sum above INT32_MAX saturates, which is above any
  // capacity that it could be compared with and keeps the arithmetic in range.
  std::vector<TaskDemand> demands = graph.demands();
  auto by_node = [](const TaskDemand& a, const TaskDemand& b) {
    return a.node != b.node ? a.node < b.node : a.resource < b.resource;
  };
  if (!std::is_sorted(demands.begin(), demands.end(), by_node)) {
    std::sort(demands.begin(), demands.end(), by_node);
  }
  size_t kept = 0;
  for (const TaskDemand& demand : demands) {
    if (graph.durations()[static_cast<size_t>(demand.node)] == 0) continue;
    TaskDemand* last = kept > 0 ? &demands[kept - 1] : nullptr;
    if (last != nullptr && last->node == demand.node && last->resource == demand.resource) {
      last->milli =
          static_cast<int32_t>(std::min<int64_t>(int64_t{last->milli} + demand.milli, INT32_MAX));
    } else {
      demands[kept++] = demand;
    }
  }
  demands.resize(kept);

  SharedDemands shared;
  shared.most_at_once = MostAtOnce(graph, demands);
  std::erase_if(demands, [&](const TaskDemand& demand) {
    const auto r = static_cast<size_t>(demand.resource);
    return shared.most_at_once[r] <= graph.capacities()[r];
  });
  shared.begin.assign(static_cast<size_t>(graph.node_count()) + 1, 0);
  for (const TaskDemand& demand : demands) ++shared.begin[static_cast<size_t>(demand.node) + 1];
  for (size_t n = 1; n < shared.begin.size(); ++n) shared.begin[n] += shared.begin[n - 1];
  shared.demands = std::move(demands);
  return shared;
}

void SimulateShared(const TaskGraph& graph, const Successors& successors,
                    const SharedDemands& shared, std::vector<int64_t>* start_ns,
                    std::vector<int64_t>* end_ns) {
  Simulation(graph, successors, shared, start_ns, end_ns).Run();
}

}  // namespace meshwright::cost::internal
