// Task graphs of programs and their timelines.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <vector>

#include "cost_models/simulate.h"
#include "planner/predict/task_graph.h"
#include "tests/cost_models/cpu_profile.h"
#include "tests/planner/predict_fixtures.h"

namespace meshwright::planner {
namespace {

struct Simulated {
  TaskGraphOfStep step;
  cost::Timeline timeline;
};
Simulated RunOf(const Programs& programs, const Prices& prices, const TaskGraphOptions& options) {
  auto step = ToTaskGraph(programs, prices, options);
  EXPECT_TRUE(step.ok()) << step.status().message();
  auto timeline = cost::Simulate(step->graph, SimulateLabels(programs, *step));
  EXPECT_TRUE(timeline.ok()) << timeline.status().message();
  return {std::move(step).value(), std::move(timeline).value()};
}

void ExpectFoldedEqualsUnfolded(const Plan& plan, const Prices& prices) {
  const Programs programs = Lowered(plan);
  TaskGraphOptions folded;
  folded.steps = 2;
  TaskGraphOptions whole = folded;
  whole.fold = false;
  const Simulated a = RunOf(programs, prices, folded);
  const Simulated b = RunOf(programs, prices, whole);
  EXPECT_LE(a.step.classes.size(), b.step.classes.size());
  EXPECT_EQ(a.timeline.makespan, b.timeline.makespan) << ShortName(plan);
  EXPECT_EQ(ToTrace(programs, a.step, a.timeline), ToTrace(programs, b.step, b.timeline))
      << ShortName(plan);
}

TEST(Folding, GivesTheSameTimesOnGpus) {
  const cost::CostModel costs = ShippedCosts("h100-sxm");
  for (const auto& [tp, pp, dp, vpp] : std::vector<std::array<int64_t, 4>>{
           {1, 1, 1, 1}, {4, 1, 2, 1}, {2, 4, 1, 1}, {2, 2, 2, 2}, {4, 2, 4, 1}, {4, 4, 4, 1}}) {
    const Plan plan = PlanOf(TinyGpt(), Tiny(tp, pp, dp, vpp));
    for (const char* name : {"dgx-h100", "aws-p4d"}) {
      const auto cluster = ShippedCluster(name, plan.world_size());
      ExpectFoldedEqualsUnfolded(plan, PricesOf(plan, cluster, costs));
    }
  }
}

TEST(Folding, GivesTheSameTimesOnCpuRanksThatShareCores) {
  const cost::CostModel costs = InventedCpuCosts();
  for (const auto& [tp, pp, dp, vpp] : std::vector<std::array<int64_t, 4>>{
           {1, 1, 1, 1}, {2, 2, 2, 1}, {4, 1, 2, 1}, {1, 2, 4, 2}, {1, 1, 8, 1}}) {
    const Plan plan = PlanOf(TinyGpt(), Tiny(tp, pp, dp, vpp));
    const auto cluster = CpuRanks(static_cast<int>(plan.world_size()), 2);
    ExpectFoldedEqualsUnfolded(plan, PricesOf(plan, cluster, costs));
  }
}

TEST(Folding, KeepsRanksApartWhoseGroupsTakeOtherPaths) {
  // Ranks 0 and 1 of the tensor pairs share a host in some pairs and not in others.
  Plan plan = PlanOf(TinyGpt(), Tiny(2, 1, 4));
  const auto cluster = ShippedCluster("dgx-h100", 16);
  plan.placement = {0, 1, 2, 3, 4, 8, 5, 9};
  const Programs programs = Lowered(plan);
  const Prices prices = PricesOf(plan, cluster, ShippedCosts("h100-sxm"));
  auto step = ToTaskGraph(programs, prices, {});
  ASSERT_TRUE(step.ok()) << step.status().message();
  EXPECT_NE(step->classes.class_of[0], step->classes.class_of[4]);
  EXPECT_EQ(step->classes.class_of[0], step->classes.class_of[2]);
}

TEST(Merging, ChangesNoTimesWhereNothingIsShared) {
  cost::DeviceProfile profile = cost::LoadDeviceProfile("h100-sxm").value();
  profile.gpu->beside_communication = {};  // each stream has the GPU to itself
  const cost::CostModel costs = ModelOf(profile, {cost::Precision::kBf16, cost::Precision::kFp32});
  for (const auto& [tp, pp, dp, vpp] : std::vector<std::array<int64_t, 4>>{
           {1, 1, 1, 1}, {1, 4, 1, 1}, {2, 2, 2, 2}, {4, 2, 1, 1}, {1, 1, 8, 1}}) {
    const Plan plan = PlanOf(TinyGpt(), Tiny(tp, pp, dp, vpp));
    const Programs programs = Lowered(plan);
    const auto cluster = ShippedCluster("dgx-h100", plan.world_size());
    const Prices prices = PricesOf(plan, cluster, costs);
    TaskGraphOptions merged;
    merged.steps = 2;
    TaskGraphOptions single = merged;
    single.merge = false;
    const Simulated a = RunOf(programs, prices, merged);
    const Simulated b = RunOf(programs, prices, single);
    EXPECT_LT(a.step.graph.node_count(), b.step.graph.node_count());
    EXPECT_EQ(ToTrace(programs, a.step, a.timeline), ToTrace(programs, b.step, b.timeline))
        << ShortName(plan);
    int64_t ops = 0;
    for (const TaskGraphEntry& e : a.step.entries) ops += e.ops;
    EXPECT_EQ(ops, static_cast<int64_t>(b.step.entries.size()));
  }
}

TEST(Merging, KeepsOpsApartThatShareCores) {
  const Plan plan = PlanOf(TinyGpt(), Tiny(1, 2, 1));
  const Programs programs = Lowered(plan);
  const Prices prices = PricesOf(plan, CpuRanks(2, 1), InventedCpuCosts());
  TaskGraphOptions single;
  single.merge = false;
  EXPECT_EQ(RunOf(programs, prices, {}).step.graph.node_count(),
            RunOf(programs, prices, single).step.graph.node_count());
}

/// A profile on which only launches cost anything: every op takes 1 us, messages nothing to speak
/// of.
cost::DeviceProfile LaunchOnly() {
  cost::DeviceProfile profile = cost::InventedCpu();
  const auto fast = cost::Invented(BytesPerSecond(1e18));
  profile.memory_bandwidth = profile.cpu->core_memory_bandwidth = fast;
  profile.cpu->collective_bandwidth = fast;
  profile.cpu->kernels.clear();
  profile.cpu->arithmetic.clear();
  profile.cpu->gemm = {{cost::Precision::kFp32, 1, 1, 1, cost::Invented(FlopsPerSecond(1e18))},
                       {cost::Precision::kFp64, 1, 1, 1, cost::Invented(FlopsPerSecond(1e18))}};
  profile.cpu->collective_latency = cost::Invented(Seconds(0));
  profile.cpu->collective_step = cost::Invented(Seconds(0));
  return profile;
}

TEST(Schedule, OneForwardOneBackwardWithEqualStagesTakesAsLongAsItsFormula) {
  constexpr int64_t kStages = 4;
  for (const int64_t micro_batches : {4, 8, 13}) {
    SplitRequest request = Tiny(1, kStages, 1);
    request.global_batch = micro_batches;
    const Plan plan = PlanOf(TinyGpt(8), request);
    const Programs programs = Lowered(plan);
    const Prices prices =
        PricesOf(plan, CpuRanks(kStages, 64), ModelOf(LaunchOnly(), {cost::Precision::kFp32}));
    Simulated run = RunOf(programs, prices, {});
    // Equal stages and free messages: forward takes f, backward g on every stage, all else nothing.
    constexpr int64_t kForward = 1000, kBackward = 2300;
    cost::TaskGraph equal;
    const cost::TaskGraph& from = run.step.graph;
    std::vector<int64_t> ops(static_cast<size_t>(from.node_count()), 0);
    std::vector<int64_t> duration(static_cast<size_t>(from.node_count()), 0);
    std::map<std::tuple<int32_t, int32_t>, bool> begun;
    for (const TaskGraphEntry& e : run.step.entries) {
      const auto rank = static_cast<size_t>(run.step.classes.representative(e.rank_class));
      const RankProgram& p = programs.programs[static_cast<size_t>(programs.ranks[rank].program)];
      const TaskKind kind = p.tasks[static_cast<size_t>(e.task)].kind;
      if (kind != TaskKind::kForward && kind != TaskKind::kBackward) continue;
      bool& done = begun[{e.rank_class, e.task}];
      if (!done)
        duration[static_cast<size_t>(e.node)] = kind == TaskKind::kForward ? kForward : kBackward;
      done = true;
    }
    for (size_t q = 0; q < static_cast<size_t>(from.queue_count()); ++q) equal.AddQueue();
    for (const int64_t d : duration) equal.AddNode(Nanoseconds(d));
    for (const cost::TaskPlace& place : from.places()) equal.Enqueue(place.queue, place.node);
    for (const cost::TaskEdge& edge : from.edges()) {
      if (edge.queue < 0) equal.AddDependency(edge.from, edge.to);
    }
    const auto timeline = cost::Simulate(equal);
    ASSERT_TRUE(timeline.ok()) << timeline.status().message();
    EXPECT_EQ(timeline->makespan.value(), (micro_batches + kStages - 1) * (kForward + kBackward));
  }
}

TEST(Schedule, OneRankTakesTheSumOfItsOps) {
  const Plan plan = PlanOf(TinyGpt(4), Tiny(1, 1, 1));
  const Programs programs = Lowered(plan);
  const Prices prices =
      PricesOf(plan, CpuRanks(1, 2), ModelOf(LaunchOnly(), {cost::Precision::kFp32}));
  const Simulated run = RunOf(programs, prices, {});
  int64_t sum = 0;
  for (const int64_t d : run.step.graph.durations()) sum += d;
  EXPECT_EQ(run.timeline.makespan.value(), sum);
  EXPECT_GE(sum, run.step.graph.node_count() * 1000);  // 1 us a launch
}

TEST(Schedule, RanksThatShareCoresTakeTheirTurns) {
  // Two independent halves of the batch on one core take as long as both after each other.
  const Plan plan = PlanOf(TinyGpt(4), Tiny(1, 1, 2));
  const Programs programs = Lowered(plan);
  const cost::CostModel costs = InventedCpuCosts();
  const Simulated two = RunOf(programs, PricesOf(plan, CpuRanks(2, 2), costs), {});
  const Simulated one = RunOf(programs, PricesOf(plan, CpuRanks(2, 1), costs), {});
  const double ratio = static_cast<double>(one.timeline.makespan.value()) /
                       static_cast<double>(two.timeline.makespan.value());
  EXPECT_GT(ratio, 1.9);
  EXPECT_LT(ratio, 2.0 + 1e-6);
}

TEST(Trace, HasTheRowsOfTheTaskLists) {
  const Plan plan = PlanOf(TinyGpt(), Tiny(2, 2, 2, 2));
  const Programs programs = Lowered(plan);
  const Prices prices = PricesOf(plan, ShippedCluster("dgx-h100", 8), ShippedCosts("h100-sxm"));
  TaskGraphOptions options;
  options.steps = 2;
  const Simulated run = RunOf(programs, prices, options);
  const std::vector<TraceRow> rows = ToTrace(programs, run.step, run.timeline);
  size_t at = 0;
  for (size_t rank = 0; rank < programs.ranks.size(); ++rank) {
    const RankProgram& program =
        programs.programs[static_cast<size_t>(programs.ranks[rank].program)];
    for (int64_t step = 0; step < 2; ++step) {
      for (size_t t = 0; t < program.tasks.size(); ++t, ++at) {
        ASSERT_LT(at, rows.size());
        TraceRow expected = MakeTraceRow(static_cast<int32_t>(rank), step, static_cast<int32_t>(t),
                                         program.tasks[t], program);
        expected.start_ns = rows[at].start_ns;
        expected.end_ns = rows[at].end_ns;
        EXPECT_EQ(rows[at], expected);
        EXPECT_GE(rows[at].start_ns, 0);
        EXPECT_GT(rows[at].end_ns, rows[at].start_ns) << rows[at].label;
      }
    }
  }
  EXPECT_EQ(at, rows.size());
}

TEST(Trace, MessageStartsWhenItsStreamReachesIt) {
  const Plan plan = PlanOf(TinyGpt(4), Tiny(1, 2, 1));
  const Programs programs = Lowered(plan);
  const Prices prices = PricesOf(plan, ShippedCluster("dgx-h100", 8), ShippedCosts("h100-sxm"));
  const Simulated run = RunOf(programs, prices, {});
  const std::vector<TraceRow> rows = ToTrace(programs, run.step, run.timeline);
  const auto find = [&](int32_t rank, TaskKind kind) {
    return *std::find_if(rows.begin(), rows.end(),
                         [&](const TraceRow& r) { return r.rank == rank && r.kind == kind; });
  };
  const TraceRow recv = find(1, TaskKind::kRecv);
  const TraceRow send = find(0, TaskKind::kSend);
  EXPECT_EQ(recv.start_ns, 0) << "the receiver waits from the start";
  EXPECT_EQ(send.start_ns, find(0, TaskKind::kForward).end_ns);
  EXPECT_EQ(recv.end_ns, send.end_ns);
}

TEST(Trace, SavedSlotsInUseAreThoseOfThePlan) {
  for (const auto& [pp, vpp, batch] :
       std::vector<std::array<int64_t, 3>>{{4, 1, 8}, {2, 2, 8}, {1, 1, 4}}) {
    SplitRequest request = Tiny(1, pp, 1, vpp);
    request.global_batch = batch;
    const Plan plan = PlanOf(TinyGpt(), request);
    const Programs programs = Lowered(plan);
    const Prices prices = PricesOf(plan, ShippedCluster("dgx-h100", 8), ShippedCosts("h100-sxm"));
    TaskGraphOptions options;
    options.fold = false;
    const Simulated run = RunOf(programs, prices, options);
    for (size_t rank = 0; rank < programs.ranks.size(); ++rank) {
      const ArenaLayout& arena =
          programs.programs[static_cast<size_t>(programs.ranks[rank].program)].arena;
      EXPECT_EQ(run.timeline.peak_bytes[static_cast<size_t>(run.step.saved_pools[rank])],
                arena.slots * arena.slot_bytes)
          << ShortName(plan) << " rank " << rank;
    }
  }
}

TEST(Contention, CommunicationSlowsProductsBesideIt) {
  // Buckets of gradients are reduced while backward goes on.
  SplitRequest request = Tiny(1, 1, 2, 1);
  request.bucket_elements = 1000;
  const Plan plan = PlanOf(TinyGpt(), request);
  const Programs programs = Lowered(plan);
  const auto cluster = ShippedCluster("dgx-h100", plan.world_size());
  const auto step = [&](double beside) {
    cost::DeviceProfile profile = cost::LoadDeviceProfile("h100-sxm").value();
    profile.gpu->beside_communication.value = beside;
    const cost::CostModel costs =
        ModelOf(profile, {cost::Precision::kBf16, cost::Precision::kFp32});
    return RunOf(programs, PricesOf(plan, cluster, costs), {}).timeline.makespan.value();
  };
  EXPECT_GT(step(0.5), step(1.0));
}

TEST(Contention, GroupsThatShareANicHalveEachOther) {
  // Two data-parallel groups over two hosts: on GPUs 0 and 1 (one NIC on p4d) or on 0 and 2 (two
  // NICs).
  SplitRequest request = Tiny(2, 1, 2);
  request.global_batch = 2;
  request.dtype = DType::kBf16;
  request.sequence = 512;
  Plan plan = PlanOf(ShippedModel("gpt2"), request);
  const Programs programs = Lowered(plan);
  const auto cluster = ShippedCluster("aws-p4d", 16);
  const cost::CostModel costs = ShippedCosts("a100-40");
  ASSERT_EQ(cluster.NearestNic(0)->nic, cluster.NearestNic(1)->nic);
  const auto reduction_ns = [&](const std::vector<int64_t>& placement) {
    plan.placement = placement;
    const Simulated run = RunOf(programs, PricesOf(plan, cluster, costs), {});
    int64_t longest = 0;
    for (const TraceRow& row : ToTrace(programs, run.step, run.timeline)) {
      if (row.kind == TaskKind::kGatherParams)
        longest = std::max(longest, row.end_ns - row.start_ns);
    }
    return static_cast<double>(longest);
  };
  ASSERT_NE(cluster.NearestNic(0)->nic, cluster.NearestNic(2)->nic);
  const double ratio = reduction_ns({0, 1, 8, 9}) / reduction_ns({0, 2, 8, 10});
  EXPECT_GT(ratio, 1.8);
  EXPECT_LT(ratio, 2.05);
}

}  // namespace
}  // namespace meshwright::planner
