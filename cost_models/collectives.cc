#include "cost_models/collectives.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

namespace meshwright::cost {
namespace {

constexpr std::array<std::pair<CollectiveKind, std::string_view>, 6> kKinds = {{
    {CollectiveKind::kAllReduce, "all_reduce"},
    {CollectiveKind::kAllGather, "all_gather"},
    {CollectiveKind::kReduceScatter, "reduce_scatter"},
    {CollectiveKind::kAllToAll, "all_to_all"},
    {CollectiveKind::kBroadcast, "broadcast"},
    {CollectiveKind::kSend, "send"},
}};

constexpr std::array<std::pair<Fabric, std::string_view>, 4> kFabrics = {{
    {Fabric::kUsual, "usual"},
    {Fabric::kInfiniBand, "infiniband"},
    {Fabric::kEthernet, "ethernet"},
    {Fabric::kEfa, "efa"},
}};

constexpr std::array<std::pair<Traffic, std::string_view>, 3> kTraffic = {{
    {Traffic::kTensor, "tensor"},
    {Traffic::kData, "data"},
    {Traffic::kEdge, "edge"},
}};

constexpr std::array<std::pair<Carrier, std::string_view>, 3> kCarriers = {{
    {Carrier::kNccl, "nccl"},
    {Carrier::kKernels, "kernels"},
    {Carrier::kCopyEngines, "copy_engines"},
}};

template <typename Names, typename Value>
std::string_view NameIn(const Names& names, Value wanted) {
  for (const auto& [value, name] : names) {
    if (value == wanted) return name;
  }
  return "?";
}

template <typename T, size_t kCount>
std::optional<T> FindIn(const std::array<std::pair<T, std::string_view>, kCount>& names,
                        std::string_view text) {
  for (const auto& [value, name] : names) {
    if (name == text) return value;
  }
  return std::nullopt;
}

__extension__ typedef __int128 Int128;

// bytes * numerator / denominator, rounded up.
Bytes Share(Bytes bytes, int64_t numerator, int64_t denominator) {
  const Int128 product = Int128{bytes.value()} * numerator;
  return Bytes(static_cast<int64_t>((product + denominator - 1) / denominator));
}

int64_t CeilLog2(int64_t n) {
  return std::bit_width(static_cast<uint64_t>(n - 1));
}

// A ring through all ranks, or pairwise exchange for the all-to-all.
WireCost Ring(const CollectiveWork& work, const PathFacts& path) {
  const int64_t n = path.ranks;
  int64_t steps = n - 1;
  Bytes sent;
  switch (work.kind) {
    case CollectiveKind::kAllReduce:
      steps = 2 * (n - 1);
      sent = Share(work.bytes, 2 * (n - 1), n);
      break;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      sent = Share(work.bytes, n - 1, n);
      break;
    case CollectiveKind::kBroadcast:
      sent = work.bytes;
      break;
    case CollectiveKind::kSend:
      steps = 1;
      sent = work.bytes;
      break;
  }
  if (path.hosts == 1) return {steps, 0, sent, Bytes(0)};
  WireCost wire{0, 0, sent, sent};
  const int64_t g = path.ranks_per_host;
  if (work.kind == CollectiveKind::kAllToAll) {
    wire.network_steps = n - g;
    wire.local_bytes = Share(work.bytes, g - 1, n);
    wire.network_bytes = Share(work.bytes, g * (n - g), n);
  } else {
    // Every host is entered once a round, so hosts / ranks of the steps cross the network.
    wire.network_steps = std::max<int64_t>(1, steps * path.hosts / n);
  }
  wire.local_steps = steps - wire.network_steps;
  if (g == 1) wire.local_bytes = Bytes(0);
  return wire;
}

}  // namespace

std::string_view ToString(CollectiveKind kind) {
  return NameIn(kKinds, kind);
}

std::optional<CollectiveKind> ParseCollectiveKind(std::string_view text) {
  return FindIn(kKinds, text);
}

std::string_view ToString(Fabric fabric) {
  return NameIn(kFabrics, fabric);
}

std::optional<Fabric> ParseFabric(std::string_view text) {
  return FindIn(kFabrics, text);
}

Fabric FabricOf(std::string_view cluster_fabric) {
  for (const auto& [value, name] : kFabrics) {
    if (cluster_fabric.starts_with(name)) return value;
  }
  return Fabric::kUsual;
}

std::string_view ToString(Traffic traffic) {
  return NameIn(kTraffic, traffic);
}

std::optional<Traffic> ParseTraffic(std::string_view text) {
  return FindIn(kTraffic, text);
}

std::string_view ToString(Carrier carrier) {
  return NameIn(kCarriers, carrier);
}

std::optional<Carrier> ParseCarrier(std::string_view text) {
  return FindIn(kCarriers, text);
}

std::string_view ToString(CollectiveAlgorithm algorithm) {
  switch (algorithm) {
    case CollectiveAlgorithm::kRing:
      return "ring";
    case CollectiveAlgorithm::kHierarchical:
      return "hierarchical";
    case CollectiveAlgorithm::kInSwitch:
      return "in-switch";
  }
  return "?";
}

Status Validate(const PathFacts& path) {
  if (path.ranks < 1 || path.hosts < 1 || path.ranks_per_host < 1 || path.hosts > path.ranks ||
      path.ranks_per_host > path.ranks - path.hosts + 1 || path.ranks > (int64_t{1} << 30)) {
    return InvalidInput(
        fmt::format("path of a group: {} ranks on {} hosts with at most {} on one; allowed: 1 <= "
                    "hosts <= ranks "
                    "<= 2^30 and ranks per host <= ranks - hosts + 1",
                    path.ranks, path.hosts, path.ranks_per_host));
  }
  const bool needs_local = path.ranks_per_host > 1;
  const bool needs_network = path.hosts > 1;
  // Written so that NaN fails.
  const bool local_ok = needs_local ? path.local_bandwidth.value() > 0 : true;
  const bool network_ok = needs_network ? path.network_bandwidth.value() > 0 : true;
  if (!local_ok || !network_ok) {
    return InvalidInput(fmt::format(
        "path of a group of {} ranks on {} hosts: the {} bandwidth is {} B/s; allowed: > 0; the "
        "cluster description must join these devices",
        path.ranks, path.hosts, local_ok ? "network" : "local",
        (local_ok ? path.network_bandwidth : path.local_bandwidth).value()));
  }
  if (!(path.local_latency.value() >= 0) || !(path.network_latency.value() >= 0)) {
    return InvalidInput(fmt::format("path of a group: latencies of {} s and {} s; allowed: >= 0",
                                    path.local_latency.value(), path.network_latency.value()));
  }
  return Status::Ok();
}

WireCost CountWire(CollectiveAlgorithm algorithm, const CollectiveWork& work,
                   const PathFacts& path) {
  if (path.ranks == 1) return {};
  const int64_t h = path.hosts;
  const int64_t g = path.ranks_per_host;
  switch (algorithm) {
    case CollectiveAlgorithm::kRing:
      return Ring(work, path);
    case CollectiveAlgorithm::kHierarchical:
      MW_CHECK(work.kind == CollectiveKind::kAllReduce && h > 1);
      // The rails' all-reduce of short shards is a tree: its depth counts, not the ring's length.
      return {2 * (g - 1), 2 * CeilLog2(h), Share(work.bytes, 2 * (g - 1), g),
              Share(work.bytes, 2 * (h - 1), h)};
    case CollectiveAlgorithm::kInSwitch:
      MW_CHECK(work.kind == CollectiveKind::kAllReduce && h == 1);
      // Up once and down once. Counted as the ring's bytes, so that an efficiency above 1 is what
      // the switch gains over the ring (the convention of the usual "bus bandwidth").
      return {2, 0, Share(work.bytes, 2 * (path.ranks - 1), path.ranks), Bytes(0)};
  }
  return {};
}

}  // namespace meshwright::cost
