#include "cost_models/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cost_models/task_graphs.h"

namespace meshwright::cost {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Nanoseconds Ns(int64_t n) {
  return Nanoseconds(n);
}

Timeline Simulated(const TaskGraph& graph, SimulateOptions options = {}) {
  Result<Timeline> result = Simulate(graph, options);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : Timeline{};
}

// `tasks` equal nodes, a queue each, every one wanting `milli` of one resource.
TaskGraph Sharing(int tasks, int64_t duration, int32_t milli, int32_t capacity) {
  TaskGraph graph;
  const ResourceId resource = graph.AddResource(capacity);
  for (int i = 0; i < tasks; ++i) {
    const NodeId node = graph.AddNode(Ns(duration));
    graph.Enqueue(graph.AddQueue(), node);
    graph.AddDemand(node, resource, milli);
  }
  return graph;
}

TEST(Simulate, EmptyGraphTakesNoTime) {
  TaskGraph graph;
  graph.AddQueue();
  graph.AddPool();
  const Timeline t = Simulated(graph);
  EXPECT_EQ(t.makespan, Ns(0));
  EXPECT_THAT(t.busy_ns, ElementsAre(0));
  EXPECT_THAT(t.peak_bytes, ElementsAre(0));
}

TEST(Simulate, QueueRunsInOrderOfEnqueueing) {
  TaskGraph graph;
  const QueueId queue = graph.AddQueue();
  const NodeId a = graph.AddNode(Ns(5));
  const NodeId b = graph.AddNode(Ns(7));
  graph.Enqueue(queue, b);
  graph.Enqueue(queue, a);
  const Timeline t = Simulated(graph);
  EXPECT_THAT(t.start_ns, ElementsAre(7, 0));
  EXPECT_THAT(t.end_ns, ElementsAre(12, 7));
  EXPECT_THAT(t.busy_ns, ElementsAre(12));
}

TEST(Simulate, RendezvousWaitsForTheLastAndFreesAll) {
  TaskGraph graph;
  const QueueId p = graph.AddQueue();
  const QueueId q = graph.AddQueue();
  const NodeId slow = graph.AddNode(Ns(10));
  const NodeId fast = graph.AddNode(Ns(3));
  const NodeId both = graph.AddNode(Ns(4));
  const NodeId after_p = graph.AddNode(Ns(1));
  const NodeId after_q = graph.AddNode(Ns(2));
  graph.Enqueue(p, slow);
  graph.Enqueue(q, fast);
  for (const QueueId queue : {p, q}) graph.Enqueue(queue, both);
  graph.Enqueue(p, after_p);
  graph.Enqueue(q, after_q);
  const Timeline t = Simulated(graph);
  EXPECT_THAT(t.start_ns, ElementsAre(0, 0, 10, 14, 14));
  EXPECT_EQ(t.makespan, Ns(16));
  EXPECT_THAT(t.busy_ns, ElementsAre(15, 9));  // waiting is not busy
  EXPECT_FALSE(t.shared);
}

TEST(Simulate, DependencyAcrossQueuesAndOnNodesWithoutQueue) {
  TaskGraph graph;
  const NodeId a = graph.AddNode(Ns(6));
  const NodeId b = graph.AddNode(Ns(2));
  graph.AddDependency(b, a);  // against the order of ids
  const Timeline t = Simulated(graph);
  EXPECT_THAT(t.start_ns, ElementsAre(2, 0));
}

TEST(Simulate, Pipeline1F1BHasTheExactLength) {
  for (const auto& [stages, micro_batches] :
       {std::pair{1, 1}, {1, 5}, {2, 2}, {2, 7}, {4, 4}, {4, 9}, {8, 8}, {8, 31}, {5, 64}}) {
    const int64_t f = 13;
    const int64_t g = 29;
    const Timeline t = Simulated(Pipeline1F1B(stages, micro_batches, Ns(f), Ns(g)));
    EXPECT_EQ(t.makespan, Ns((micro_batches + stages - 1) * (f + g)))
        << stages << " stages, " << micro_batches << " micro-batches";
    for (const int64_t busy : t.busy_ns) EXPECT_EQ(busy, micro_batches * (f + g));
  }
}

TEST(Simulate, EightTasksOnTwoCoresTakeFourTimesAsLong) {
  const Timeline t = Simulated(Sharing(8, 1000, 1000, 2000));
  EXPECT_TRUE(t.shared);
  for (const int64_t end : t.end_ns) EXPECT_EQ(end, 4000);
}

TEST(Simulate, EnoughCapacityIsALongestPath) {
  EXPECT_FALSE(Simulated(Sharing(8, 1000, 250, 2000)).shared);
  EXPECT_TRUE(Simulated(Sharing(8, 1000, 251, 2000)).shared);
  EXPECT_EQ(Simulated(Sharing(8, 1000, 250, 2000)).makespan, Ns(1000));
}

TEST(Simulate, TasksOfOneQueueDoNotCompete) {
  TaskGraph graph;
  const ResourceId core = graph.AddResource(1000);
  const QueueId queue = graph.AddQueue();
  for (int i = 0; i < 4; ++i) {
    const NodeId node = graph.AddNode(Ns(10));
    graph.Enqueue(queue, node);
    graph.AddDemand(node, core, 1000);
  }
  const Timeline t = Simulated(graph);
  EXPECT_FALSE(t.shared);
  EXPECT_EQ(t.makespan, Ns(40));
}

TEST(Simulate, SharingEndsWhenTheShorterTaskEnds) {
  // Both at half rate until the short one is done at 200; then 300 - 100 = 200 at full rate.
  TaskGraph graph;
  const ResourceId core = graph.AddResource(1000);
  for (const int64_t duration : {100, 300}) {
    graph.AddDemand(graph.AddNode(Ns(duration)), core, 1000);
  }
  EXPECT_THAT(Simulated(graph).end_ns, ElementsAre(200, 400));
}

TEST(Simulate, UnequalDemandsSlowDownAlike) {
  // 1500 wanted of 1000: both at 2/3. After 150 ns 100 ns of work are done.
  TaskGraph graph;
  const ResourceId link = graph.AddResource(1000);
  graph.AddDemand(graph.AddNode(Ns(100)), link, 1000);
  graph.AddDemand(graph.AddNode(Ns(400)), link, 500);
  EXPECT_THAT(Simulated(graph).end_ns, ElementsAre(150, 450));
}

TEST(Simulate, SlowestOfSeveralResourcesSetsTheRate) {
  // `both` shares the core two ways and the link four ways, so it runs at 1/4 like the link users;
  // the other core user still gets 1/2.
  TaskGraph graph;
  const ResourceId core = graph.AddResource(1000);
  const ResourceId link = graph.AddResource(1000);
  const NodeId both = graph.AddNode(Ns(100));
  graph.AddDemand(both, core, 1000);
  graph.AddDemand(both, link, 1000);
  graph.AddDemand(graph.AddNode(Ns(50)), core, 1000);
  for (int i = 0; i < 3; ++i) graph.AddDemand(graph.AddNode(Ns(100)), link, 1000);
  EXPECT_THAT(Simulated(graph).end_ns, ElementsAre(400, 100, 400, 400, 400));
}

TEST(Simulate, OneTaskThatWantsMoreThanThereIsRunsSlower) {
  TaskGraph graph;
  const ResourceId cores = graph.AddResource(2000);
  const NodeId node = graph.AddNode(Ns(90));
  graph.AddDemand(node, cores, 2000);
  graph.AddDemand(node, cores, 1000);  // adds up to three cores
  EXPECT_THAT(Simulated(graph).end_ns, ElementsAre(135));
}

TEST(Simulate, EndsRoundUpToWholeNanoseconds) {
  EXPECT_EQ(Simulated(Sharing(3, 1, 1000, 2000)).makespan, Ns(2));  // 1.5
  EXPECT_EQ(Simulated(Sharing(3, 2, 1000, 2000)).makespan, Ns(3));  // exactly 3
}

TEST(Simulate, ZeroLengthTasksPassThrough) {
  TaskGraph graph;
  const ResourceId core = graph.AddResource(1000);
  const NodeId a = graph.AddNode(Ns(0));
  const NodeId b = graph.AddNode(Ns(10));
  const NodeId c = graph.AddNode(Ns(0));
  const NodeId d = graph.AddNode(Ns(10));
  for (const NodeId node : {a, b, c, d}) graph.AddDemand(node, core, 1000);
  graph.AddDependency(a, b);
  graph.AddDependency(b, c);
  const Timeline t = Simulated(graph);
  EXPECT_THAT(t.end_ns, ElementsAre(0, 20, 20, 20));
}

TEST(Simulate, MemoryPeakAndCurve) {
  TaskGraph graph;
  const QueueId queue = graph.AddQueue();
  const PoolId pool = graph.AddPool();
  const PoolId other = graph.AddPool();
  for (int i = 0; i < 3; ++i) {
    const NodeId node = graph.AddNode(Ns(10));
    graph.Enqueue(queue, node);
    graph.AddMemory(node, pool, Bytes(100), Bytes(i == 1 ? -150 : -25));
  }
  SimulateOptions options;
  options.memory_curves = true;
  const Timeline t = Simulated(graph, options);
  EXPECT_THAT(t.peak_bytes, ElementsAre(175, 0));
  EXPECT_THAT(t.memory_curves[static_cast<size_t>(pool)],
              ElementsAre(MemoryPoint{0, 100}, MemoryPoint{10, 175}, MemoryPoint{20, 125},
                          MemoryPoint{30, 100}));
  EXPECT_TRUE(t.memory_curves[static_cast<size_t>(other)].empty());
}

TEST(Simulate, WhatEndsFreesBeforeWhatStartsTakes) {
  TaskGraph graph;
  const PoolId pool = graph.AddPool();
  const NodeId late = graph.AddNode(Ns(10));
  const NodeId early = graph.AddNode(Ns(10));
  const NodeId hand_over = graph.AddNode(Ns(0));
  graph.AddDependency(early, hand_over);
  graph.AddDependency(hand_over, late);
  graph.AddMemory(early, pool, Bytes(60), Bytes(0));
  graph.AddMemory(hand_over, pool, Bytes(0), Bytes(-60));
  graph.AddMemory(late, pool, Bytes(70), Bytes(-70));
  EXPECT_THAT(Simulated(graph).peak_bytes, ElementsAre(70));
}

TEST(Simulate, DeadlockOfCrossedRendezvousIsNamed) {
  TaskGraph graph;
  const QueueId p = graph.AddQueue();
  const QueueId q = graph.AddQueue();
  const NodeId fine = graph.AddNode(Ns(1));
  const NodeId x = graph.AddNode(Ns(1));
  const NodeId y = graph.AddNode(Ns(1));
  const NodeId after = graph.AddNode(Ns(1));
  graph.Enqueue(p, fine);
  graph.Enqueue(p, x);
  graph.Enqueue(p, y);
  graph.Enqueue(q, y);
  graph.Enqueue(q, x);
  graph.Enqueue(q, after);
  SimulateOptions options;
  options.node_label = [](NodeId n) { return std::string(1, "fxya"[n]); };
  options.queue_label = [](QueueId n) { return n == 0 ? "rank 0 nccl" : "rank 1 nccl"; };
  const Result<Timeline> result = Simulate(graph, options);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kInfeasible);
  const std::string& message = result.status().message();
  EXPECT_THAT(message, HasSubstr("3 of 4 tasks can never start"));
  EXPECT_THAT(message, HasSubstr("waits for 'x' (ahead of it in 'rank 0 nccl')"));
  EXPECT_THAT(message, HasSubstr("waits for 'y' (ahead of it in 'rank 1 nccl')"));
  EXPECT_THAT(message, ::testing::Not(HasSubstr("'f'")));
}

TEST(Simulate, DeadlockWithSharedResourcesAndDependencies) {
  TaskGraph graph = Sharing(4, 10, 1000, 1000);
  graph.AddDependency(0, 2);
  graph.AddDependency(2, 3);
  graph.AddDependency(3, 0);
  const Result<Timeline> result = Simulate(graph);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kInfeasible);
  EXPECT_THAT(result.status().message(), HasSubstr("waits for node 0 (dependency)"));
}

TEST(Simulate, SelfWaitAndLongCyclesAreReported) {
  TaskGraph self;
  const QueueId queue = self.AddQueue();
  const NodeId node = self.AddNode(Ns(1));
  self.Enqueue(queue, node);
  self.Enqueue(queue, node);
  EXPECT_THAT(Simulate(self).status().message(), HasSubstr("node 0 waits for node 0"));

  TaskGraph ring;
  for (int i = 0; i < 1000; ++i) ring.AddNode(Ns(1));
  for (int i = 0; i < 1000; ++i) ring.AddDependency(i, (i + 1) % 1000);
  const std::string message = Simulate(ring).status().message();
  EXPECT_THAT(message, HasSubstr("975 more"));
  EXPECT_LT(message.size(), 2000u);
}

TEST(Simulate, TimesThatMightNotFitTheClockAreRefused) {
  TaskGraph graph;
  graph.AddNode(Ns(INT64_MAX));
  graph.AddNode(Ns(INT64_MAX));
  EXPECT_EQ(Simulate(graph).status().code(), StatusCode::kInvalidInput);
  EXPECT_EQ(Simulate(Sharing(2, int64_t{1} << 59, INT32_MAX, 1)).status().code(),
            StatusCode::kInvalidInput);
  const int64_t day = int64_t{86'400'000'000'000};
  EXPECT_EQ(Simulated(Sharing(3, day, 1000, 1000)).makespan, Ns(3 * day));
}

}  // namespace
}  // namespace meshwright::cost
