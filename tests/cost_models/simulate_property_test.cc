// Random graphs against properties and against a slow simulator that shares no code or method.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "cost_models/simulate.h"

namespace meshwright::cost {
namespace {

struct Shape {
  int nodes = 0;
  int queues = 0;
  int resources = 0;
  int64_t longest = 0;
};

// A random graph without deadlock: edges and queue orders follow a random order of the ids.
TaskGraph RandomGraph(const Shape& shape, int64_t scale = 1, uint64_t seed = 0) {
  uint64_t state = seed * 6364136223846793005u + 1442695040888963407u;
  auto below = [&](int64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(n));
  };
  TaskGraph graph;
  for (int q = 0; q < shape.queues; ++q) graph.AddQueue();
  for (int r = 0; r < shape.resources; ++r) {
    graph.AddResource(static_cast<int32_t>(1000 * (1 + below(3))));
  }
  const PoolId pool = graph.AddPool();
  for (int n = 0; n < shape.nodes; ++n) {
    const int64_t duration = below(8) == 0 ? 0 : 1 + below(shape.longest);
    const NodeId node = graph.AddNode(Nanoseconds(scale * duration));
    const int64_t bytes = below(100);
    graph.AddMemory(node, pool, Bytes(bytes), Bytes(-bytes));
    for (int64_t d = shape.resources > 0 ? below(3) : 0; d > 0; --d) {
      graph.AddDemand(node, static_cast<ResourceId>(below(shape.resources)),
                      static_cast<int32_t>(1000 * (1 + below(2))));
    }
  }
  std::vector<NodeId> order(static_cast<size_t>(shape.nodes));
  std::iota(order.begin(), order.end(), 0);
  for (int n = shape.nodes - 1; n > 0; --n)
    std::swap(order[static_cast<size_t>(n)], order[static_cast<size_t>(below(n + 1))]);
  for (int i = 0; i < shape.nodes; ++i) {
    const NodeId node = order[static_cast<size_t>(i)];
    std::set<QueueId> mine;
    for (int64_t k = below(3); k > 0; --k) mine.insert(static_cast<QueueId>(below(shape.queues)));
    for (const QueueId queue : mine) graph.Enqueue(queue, node);
    for (int64_t k = i > 0 ? below(3) : 0; k > 0; --k) {
      graph.AddDependency(order[static_cast<size_t>(below(i))], node);
    }
  }
  return graph;
}

Shape AnyShape(bool shared) {
  Shape shape;
  shape.nodes = *rc::gen::inRange(1, 40);
  shape.queues = *rc::gen::inRange(1, 6);
  shape.resources = shared ? *rc::gen::inRange(1, 4) : 0;
  shape.longest = *rc::gen::inRange(1, 60);
  return shape;
}

Timeline Simulated(const TaskGraph& graph) {
  Result<Timeline> result = Simulate(graph);
  RC_ASSERT(result.ok());
  return *result;
}

// Nanosecond by nanosecond, with work in units of 1/lcm(1..12) ns, so that every rate capacity/sum
// with at most 12 units in demand is a whole number of units a nanosecond. Nodes end at ticks.
class TickSimulator {
 public:
  static constexpr int64_t kUnit = 27720;

  explicit TickSimulator(const TaskGraph& graph)
      : graph_(graph), start_(Size(), -1), end_(Size(), -1), left_(Size(), 0) {}

  // False where a sum of demands leaves the range in which rates are whole numbers.
  bool Run() {
    for (int64_t now = 0; !AllDone(); ++now) {
      if (now > 0 && !Advance()) return false;
      while (Settle(now)) {
      }
    }
    return true;
  }
  const std::vector<int64_t>& start() const { return start_; }
  const std::vector<int64_t>& end() const { return end_; }

 private:
  size_t Size() const { return static_cast<size_t>(graph_.node_count()); }
  bool Running(size_t n) const { return start_[n] >= 0 && end_[n] < 0; }
  bool AllDone() const {
    return std::all_of(end_.begin(), end_.end(), [](int64_t t) { return t >= 0; });
  }

  // Ends what is done and starts what may start; true when anything changed.
  bool Settle(int64_t now) {
    bool changed = false;
    for (size_t n = 0; n < Size(); ++n) {
      if (Running(n) && left_[n] <= 0) {
        end_[n] = now;
        changed = true;
      } else if (start_[n] < 0 && MayStart(static_cast<NodeId>(n))) {
        start_[n] = now;
        left_[n] = graph_.durations()[n] * kUnit;
        changed = true;
      }
    }
    return changed;
  }

  bool MayStart(NodeId node) const {
    return std::all_of(graph_.edges().begin(), graph_.edges().end(), [&](const TaskEdge& edge) {
      return edge.to != node || end_[static_cast<size_t>(edge.from)] >= 0;
    });
  }

  bool Advance() {
    std::vector<int64_t> sum(static_cast<size_t>(graph_.resource_count()), 0);
    for (const TaskDemand& demand : graph_.demands()) {
      if (Running(static_cast<size_t>(demand.node))) {
        sum[static_cast<size_t>(demand.resource)] += demand.milli / 1000;
      }
    }
    std::vector<int64_t> step(Size(), kUnit);
    for (const TaskDemand& demand : graph_.demands()) {
      const auto r = static_cast<size_t>(demand.resource);
      const int64_t capacity = graph_.capacities()[r] / 1000;
      if (sum[r] > 12) return false;
      if (sum[r] > capacity) {
        int64_t& mine = step[static_cast<size_t>(demand.node)];
        mine = std::min(mine, kUnit * capacity / sum[r]);
      }
    }
    for (size_t n = 0; n < Size(); ++n) {
      if (Running(n)) left_[n] -= step[n];
    }
    return true;
  }

  const TaskGraph& graph_;
  std::vector<int64_t> start_;
  std::vector<int64_t> end_;
  std::vector<int64_t> left_;
};

RC_GTEST_PROP(SimulateProperty, EqualsTickSimulatorWithResources, ()) {
  const TaskGraph graph = RandomGraph(AnyShape(true), 1, *rc::gen::arbitrary<uint64_t>());
  TickSimulator reference(graph);
  RC_PRE(reference.Run());
  const Timeline t = Simulated(graph);
  RC_CLASSIFY(t.shared, "shared");
  RC_ASSERT(t.start_ns == reference.start());
  RC_ASSERT(t.end_ns == reference.end());
}

// RapidCheck favours small graphs; these are all of the larger sort.
TEST(SimulateAgainstTicks, LargerGraphsWithFixedSeeds) {
  int compared = 0;
  for (uint64_t seed = 0; seed < 160; ++seed) {
    const Shape shape{20 + static_cast<int>(seed % 40), 2 + static_cast<int>(seed % 5),
                      1 + static_cast<int>(seed % 3), 40};
    const TaskGraph graph = RandomGraph(shape, 1, seed);
    TickSimulator reference(graph);
    if (!reference.Run()) continue;
    const Result<Timeline> t = Simulate(graph);
    ASSERT_TRUE(t.ok()) << t.status().message();
    ASSERT_EQ(t->start_ns, reference.start()) << "seed " << seed;
    ASSERT_EQ(t->end_ns, reference.end()) << "seed " << seed;
    ++compared;
  }
  EXPECT_GE(compared, 60);
}

RC_GTEST_PROP(SimulateProperty, EqualsTickSimulatorWithoutResources, ()) {
  const TaskGraph graph = RandomGraph(AnyShape(false), 1, *rc::gen::arbitrary<uint64_t>());
  TickSimulator reference(graph);
  RC_ASSERT(reference.Run());
  const Timeline t = Simulated(graph);
  RC_ASSERT(t.start_ns == reference.start());
  RC_ASSERT(t.end_ns == reference.end());
}

RC_GTEST_PROP(SimulateProperty, NoShorterThanCriticalPathAndBusiestQueue, ()) {
  const TaskGraph graph =
      RandomGraph(AnyShape(*rc::gen::arbitrary<bool>()), 1, *rc::gen::arbitrary<uint64_t>());
  const Timeline t = Simulated(graph);
  // Longest chain of stated dependencies alone, by relaxation until nothing moves.
  std::vector<int64_t> path = graph.durations();
  for (bool moved = true; moved;) {
    moved = false;
    for (const TaskEdge& edge : graph.edges()) {
      int64_t& to = path[static_cast<size_t>(edge.to)];
      const int64_t through =
          path[static_cast<size_t>(edge.from)] + graph.durations()[static_cast<size_t>(edge.to)];
      if (edge.queue < 0 && through > to) {
        to = through;
        moved = true;
      }
    }
  }
  RC_ASSERT(t.makespan.value() >= *std::max_element(path.begin(), path.end()));
  std::vector<int64_t> work(static_cast<size_t>(graph.queue_count()), 0);
  for (const TaskPlace& place : graph.places()) {
    work[static_cast<size_t>(place.queue)] += graph.durations()[static_cast<size_t>(place.node)];
  }
  for (size_t q = 0; q < work.size(); ++q) {
    RC_ASSERT(t.makespan.value() >= t.busy_ns[q]);
    RC_ASSERT(t.busy_ns[q] >= work[q]);
  }
}

RC_GTEST_PROP(SimulateProperty, ScalesWithDurations, ()) {
  const Shape shape = AnyShape(false);
  const auto seed = *rc::gen::arbitrary<uint64_t>();
  const int64_t k = *rc::gen::inRange(1, 1000);
  const Timeline one = Simulated(RandomGraph(shape, 1, seed));
  const Timeline scaled = Simulated(RandomGraph(shape, k, seed));
  RC_ASSERT(scaled.makespan == k * one.makespan);
}

RC_GTEST_PROP(SimulateProperty, SharedWorkIsConserved, ()) {
  // One resource, every node wants one unit of it, all start at 0: the last end is
  // max(longest, total / capacity), rounded up, for processor sharing ends shorter ones first.
  const auto durations = *rc::gen::nonEmpty(
      rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(1, 1000)));
  TaskGraph graph;
  const ResourceId resource = graph.AddResource(1000);
  int64_t total = 0;
  for (const int64_t duration : durations) {
    graph.AddDemand(graph.AddNode(Nanoseconds(duration)), resource, 1000);
    total += duration;
  }
  const Timeline t = Simulated(graph);
  // Each distinct end may wait up to 1 ns for the clock.
  const auto slack = static_cast<int64_t>(durations.size());
  RC_ASSERT(t.makespan.value() >= total);
  RC_ASSERT(t.makespan.value() <= total + slack);
}

RC_GTEST_PROP(SimulateProperty, SameGraphSameTimeline, ()) {
  const Shape shape = AnyShape(*rc::gen::arbitrary<bool>());
  const auto seed = *rc::gen::arbitrary<uint64_t>();
  RC_ASSERT(Simulated(RandomGraph(shape, 1, seed)) == Simulated(RandomGraph(shape, 1, seed)));
}

RC_GTEST_PROP(SimulateProperty, ExtraResourceThatNobodyExhaustsChangesNothing, ()) {
  // Forces the event path over a graph that the longest path solves: same times.
  const auto seed = *rc::gen::arbitrary<uint64_t>();
  const Shape shape = AnyShape(false);
  const Timeline plain = Simulated(RandomGraph(shape, 1, seed));
  TaskGraph graph = RandomGraph(shape, 1, seed);
  const ResourceId resource = graph.AddResource(1000);
  std::vector<NodeId> alone;  // two nodes after all others, one after the other: never both
  for (int i = 0; i < 2; ++i) {
    alone.push_back(graph.AddNode(Nanoseconds(5)));
    graph.AddDemand(alone.back(), resource, 1000);
    for (NodeId n = 0; n < alone.back(); ++n) graph.AddDependency(n, alone.back());
  }
  const Timeline evented = Simulated(graph);
  RC_ASSERT(evented.shared);
  RC_ASSERT(std::equal(plain.end_ns.begin(), plain.end_ns.end(), evented.end_ns.begin()));
  RC_ASSERT(evented.makespan == plain.makespan + Nanoseconds(10));
}

RC_GTEST_PROP(SimulateProperty, CyclesAreAlwaysFound, ()) {
  const Shape shape = AnyShape(*rc::gen::arbitrary<bool>());
  TaskGraph graph = RandomGraph(shape, 1, *rc::gen::arbitrary<uint64_t>());
  const auto a = *rc::gen::inRange<NodeId>(0, graph.node_count());
  const auto b = *rc::gen::inRange<NodeId>(0, graph.node_count());
  graph.AddDependency(a, b);
  graph.AddDependency(b, a);
  RC_ASSERT(Simulate(graph).status().code() == StatusCode::kInfeasible);
}

}  // namespace
}  // namespace meshwright::cost
