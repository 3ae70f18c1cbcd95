#include "cost_models/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace meshwright::cost {
namespace {

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce,     CollectiveKind::kAllGather,
                                     CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll,
                                     CollectiveKind::kBroadcast,     CollectiveKind::kSend};

PathFacts OneHost(int64_t ranks) {
  PathFacts path;
  path.ranks = ranks;
  path.ranks_per_host = ranks;
  path.local_bandwidth = BytesPerSecond(1e9);
  return path;
}

PathFacts Hosts(int64_t hosts, int64_t per_host) {
  PathFacts path = OneHost(hosts * per_host);
  path.hosts = hosts;
  path.ranks_per_host = per_host;
  path.network_bandwidth = BytesPerSecond(1e9);
  return path;
}

WireCost Ring(CollectiveKind kind, int64_t bytes, const PathFacts& path) {
  return CountWire(CollectiveAlgorithm::kRing, {kind, Bytes(bytes)}, path);
}

TEST(Collectives, NamesGoBothWays) {
  for (const CollectiveKind kind : kKinds) EXPECT_EQ(ParseCollectiveKind(ToString(kind)), kind);
  EXPECT_EQ(ParseCollectiveKind("allreduce"), std::nullopt);
}

TEST(Collectives, OneRankMovesNothing) {
  for (const CollectiveKind kind : kKinds) {
    EXPECT_EQ(Ring(kind, 1 << 20, OneHost(1)), WireCost{}) << ToString(kind);
  }
}

TEST(Collectives, RingStepsAndBytes) {
  for (const int64_t n : {2, 3, 4, 5, 7, 8, 16, 31, 64}) {
    const int64_t s = n * 1000;  // so that shares are whole
    const struct {
      CollectiveKind kind;
      int64_t steps;
      int64_t bytes;
    } rows[] = {{CollectiveKind::kAllReduce, 2 * (n - 1), 2 * (n - 1) * 1000},
                {CollectiveKind::kAllGather, n - 1, (n - 1) * 1000},
                {CollectiveKind::kReduceScatter, n - 1, (n - 1) * 1000},
                {CollectiveKind::kAllToAll, n - 1, (n - 1) * 1000},
                {CollectiveKind::kBroadcast, n - 1, s},
                {CollectiveKind::kSend, 1, s}};
    for (const auto& row : rows) {
      const WireCost wire = Ring(row.kind, s, OneHost(n));
      EXPECT_EQ(wire.local_steps, row.steps) << ToString(row.kind) << " of " << n;
      EXPECT_EQ(wire.local_bytes, Bytes(row.bytes)) << ToString(row.kind) << " of " << n;
      EXPECT_EQ(wire.network_steps, 0);
      EXPECT_EQ(wire.network_bytes, Bytes(0));
    }
  }
}

TEST(Collectives, BytesRoundUpAndDoNotOverflow) {
  EXPECT_EQ(Ring(CollectiveKind::kAllReduce, 1, OneHost(3)).local_bytes, Bytes(2));  // 4/3
  EXPECT_EQ(Ring(CollectiveKind::kAllGather, 0, OneHost(3)).local_bytes, Bytes(0));
  const int64_t large = int64_t{1} << 61;
  EXPECT_EQ(Ring(CollectiveKind::kAllReduce, large, OneHost(2)).local_bytes, Bytes(large));
  EXPECT_EQ(Ring(CollectiveKind::kAllGather, large, OneHost(1 << 20)).local_bytes,
            Bytes(large - (large >> 20)));
}

TEST(Collectives, ReduceScatterAndAllGatherMakeAnAllReduce) {
  for (const int64_t n : {2, 5, 8}) {
    const int64_t s = n * 77;
    EXPECT_EQ(Ring(CollectiveKind::kReduceScatter, s, OneHost(n)).local_bytes +
                  Ring(CollectiveKind::kAllGather, s, OneHost(n)).local_bytes,
              Ring(CollectiveKind::kAllReduce, s, OneHost(n)).local_bytes);
  }
}

TEST(Collectives, FlatRingEntersEveryHostOnce) {
  const WireCost wire = Ring(CollectiveKind::kAllGather, 16'000, Hosts(2, 8));
  EXPECT_EQ(wire.network_bytes, Bytes(15'000));  // one member's share of the ring
  EXPECT_EQ(wire.local_bytes, Bytes(15'000));
  EXPECT_EQ(wire.network_steps + wire.local_steps, 15);
  EXPECT_EQ(wire.network_steps, 1);
}

TEST(Collectives, HierarchicalAllReduceSendsLessOverTheNetwork) {
  const CollectiveWork work{CollectiveKind::kAllReduce, Bytes(32'000)};
  const WireCost wire = CountWire(CollectiveAlgorithm::kHierarchical, work, Hosts(4, 8));
  EXPECT_EQ(wire.local_bytes, Bytes(2 * 7 * 4'000));    // 2 (g-1)/g S
  EXPECT_EQ(wire.network_bytes, Bytes(2 * 3 * 8'000));  // 2 (h-1)/h S
  EXPECT_EQ(wire.local_steps, 14);
  EXPECT_EQ(wire.network_steps, 4);
  EXPECT_EQ(CountWire(CollectiveAlgorithm::kRing, work, Hosts(4, 8)).network_bytes,
            Bytes(2 * 31 * 1'000));
}

TEST(Collectives, AllToAllBetweenHosts) {
  // Each of 8 ranks gives 1000 bytes to each: 3 in its host, 4 outside, from 4 ranks a host.
  const WireCost wire = Ring(CollectiveKind::kAllToAll, 8'000, Hosts(2, 4));
  EXPECT_EQ(wire.local_bytes, Bytes(3'000));
  EXPECT_EQ(wire.network_bytes, Bytes(16'000));
  EXPECT_EQ(wire.local_steps, 3);
  EXPECT_EQ(wire.network_steps, 4);
}

TEST(Collectives, OneRankAHostHasNoLocalPart) {
  for (const CollectiveKind kind : kKinds) {
    const WireCost wire = Ring(kind, 4'000, Hosts(2, 1));
    EXPECT_EQ(wire.local_bytes, Bytes(0)) << ToString(kind);
    EXPECT_EQ(wire.local_steps, 0) << ToString(kind);
    EXPECT_GT(wire.network_bytes, Bytes(0)) << ToString(kind);
  }
}

TEST(Collectives, PathsThatCannotBeAreRefused) {
  EXPECT_TRUE(Validate(PathFacts{}).ok());
  EXPECT_TRUE(Validate(Hosts(2, 8)).ok());
  PathFacts path = Hosts(2, 8);
  path.network_bandwidth = BytesPerSecond(0);
  EXPECT_THAT(Validate(path).message(), ::testing::HasSubstr("network bandwidth"));
  path = OneHost(4);
  path.local_bandwidth = BytesPerSecond(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(Validate(path).code(), StatusCode::kInvalidInput);
  path = OneHost(4);
  path.hosts = 5;
  EXPECT_EQ(Validate(path).code(), StatusCode::kInvalidInput);
  path = Hosts(2, 2);
  path.ranks_per_host = 4;
  EXPECT_EQ(Validate(path).code(), StatusCode::kInvalidInput);
  path = OneHost(4);
  path.local_latency = Seconds(-1);
  EXPECT_EQ(Validate(path).code(), StatusCode::kInvalidInput);
}

}  // namespace
}  // namespace meshwright::cost
