// Which device each rank uses: nested blocks of ranks on the widest links, innermost blocks first.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

#include "topologies/cluster_impl.h"
#include "topologies/text.h"

namespace meshwright::topologies {
namespace {

constexpr int64_t kMaxPartitions = 20'000;  // tried one by one; more are built greedily
constexpr size_t kMaxTied = 500;            // equally good partitions carried to the next level
constexpr int kMaxSearched = 32;            // devices of a host; beyond, islands in order

using Block = std::vector<int>;  // local device ids
using Blocks = std::vector<Block>;

// Smaller is worse: the narrowest block counts first, then all of them, then latencies.
struct Score {
  double min_bandwidth = 0;
  double sum_bandwidth = 0;
  double max_latency = 0;
  double sum_latency = 0;

  bool BetterThan(const Score& other) const {
    return std::tuple(min_bandwidth, sum_bandwidth, -max_latency, -sum_latency) >
           std::tuple(other.min_bandwidth, other.sum_bandwidth, -other.max_latency,
                      -other.sum_latency);
  }
  bool SameAs(const Score& other) const { return !BetterThan(other) && !other.BetterThan(*this); }
};

Score ScoreOf(const HostGraph& graph, const Blocks& blocks) {
  Score score;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto group = blocks[i].size() > 1 ? graph.Group(blocks[i]) : std::nullopt;
    const double bandwidth = group ? group->bandwidth.value() : 0;
    const double latency = group ? group->latency.value() : 0;
    score.min_bandwidth = i == 0 ? bandwidth : std::min(score.min_bandwidth, bandwidth);
    score.sum_bandwidth += bandwidth;
    score.max_latency = std::max(score.max_latency, latency);
    score.sum_latency += latency;
  }
  return score;
}

Block Union(const Block& a, const Block& b) {
  Block all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

// Ways to part `items` things into sets of `size`, up to kMaxPartitions + 1.
int64_t PartitionCount(int64_t items, int64_t size) {
  int64_t count = 1;
  for (; items > size; items -= size) {
    for (int64_t k = 1; k < size; ++k) {
      count = count * (items - k) / k;  // choose(items - 1, size - 1), exact at each step
      if (count > kMaxPartitions * 1000) return kMaxPartitions + 1;
    }
  }
  return std::min(count, kMaxPartitions + 1);
}

// Calls `visit` with every way to merge `items` into sets of `size`; the first free item starts a
// set.
void ForEachPartition(const Blocks& items, size_t size,
                      const std::function<void(const Blocks&)>& visit) {
  std::vector<bool> taken(items.size(), false);
  Blocks merged;
  const std::function<void(size_t, size_t)> grow = [&](size_t in_block, size_t from) {
    if (in_block == size || in_block == 0) {
      const auto free = std::find(taken.begin(), taken.end(), false);
      if (free == taken.end()) return visit(merged);
      const auto first = static_cast<size_t>(free - taken.begin());
      taken[first] = true;
      merged.push_back(items[first]);
      size == 1 ? grow(0, 0) : grow(1, first + 1);
      merged.pop_back();
      taken[first] = false;
      return;
    }
    for (size_t i = from; i < items.size(); ++i) {
      if (taken[i]) continue;
      taken[i] = true;
      const Block before = merged.back();
      merged.back() = Union(before, items[i]);
      grow(in_block + 1, i + 1);
      merged.back() = before;
      taken[i] = false;
    }
  };
  grow(0, 0);
}

// Each set starts with the first free item and takes what keeps it widest.
Blocks GreedyPartition(const HostGraph& graph, const Blocks& items, size_t size) {
  std::vector<bool> taken(items.size(), false);
  Blocks merged;
  for (size_t first = 0; first < items.size(); ++first) {
    if (taken[first]) continue;
    taken[first] = true;
    Block block = items[first];
    for (size_t k = 1; k < size; ++k) {
      size_t best = items.size();
      Score best_score;
      for (size_t i = first + 1; i < items.size(); ++i) {
        if (taken[i]) continue;
        const Score score = ScoreOf(graph, {Union(block, items[i])});
        if (best < items.size() && !score.BetterThan(best_score)) continue;
        best = i;
        best_score = score;
      }
      taken[best] = true;
      block = Union(block, items[best]);
    }
    merged.push_back(std::move(block));
  }
  return merged;
}

bool IsUniform(const HostGraph& graph) {
  for (int a = 0; a < graph.devices(); ++a) {
    for (int b = 0; b < graph.devices(); ++b) {
      if (a != b && !(graph.Pair(a, b) == graph.Pair(0, 1))) return false;
    }
  }
  return true;
}

// All equally best ways to merge each of `starts` (themselves equally good) into sets of `size`.
std::vector<Blocks> BestPartitions(const HostGraph& graph, const std::vector<Blocks>& starts,
                                   size_t size) {
  std::vector<Blocks> best;
  Score best_score;
  const auto consider = [&](const Blocks& blocks) {
    const Score score = ScoreOf(graph, blocks);
    if (best.empty() || score.BetterThan(best_score)) {
      best = {blocks};
      best_score = score;
    } else if (score.SameAs(best_score) && best.size() < kMaxTied) {
      best.push_back(blocks);
    }
  };
  for (const Blocks& start : starts) {
    if (PartitionCount(static_cast<int64_t>(start.size()), static_cast<int64_t>(size)) <=
        kMaxPartitions) {
      ForEachPartition(start, size, consider);
    } else {
      consider(GreedyPartition(graph, start, size));
    }
  }
  return best;
}

// Order of a host's devices for nested blocks of the given sizes (each divides the next). Devices
// that fill no block of the largest size come last.
Block OrderOfHost(const HostGraph& graph, const std::vector<int>& sizes) {
  Block natural(static_cast<size_t>(graph.devices()));
  std::iota(natural.begin(), natural.end(), 0);
  const auto largest = static_cast<size_t>(sizes.back());
  if (largest <= 1 || IsUniform(graph)) return natural;
  if (graph.devices() > kMaxSearched) {
    Block order;
    for (const Block& island : graph.islands()) order = Union(order, island);
    return order;
  }
  Blocks singles;
  for (const int device : natural) singles.push_back({device});
  // Rest devices: give up those that join least; the largest block is grown greedily around all.
  Block rest;
  while (singles.size() % largest != 0) {
    const Blocks grown = GreedyPartition(graph, Blocks(singles), singles.size());
    rest.insert(rest.begin(), grown[0].back());
    singles.erase(std::find(singles.begin(), singles.end(), Block{grown[0].back()}));
  }
  std::vector<Blocks> levels{singles};
  size_t before = 1;
  for (const int size : sizes) {
    levels = BestPartitions(graph, levels, static_cast<size_t>(size) / before);
    before = static_cast<size_t>(size);
  }
  Blocks blocks = levels.front();
  std::stable_sort(blocks.begin(), blocks.end(), [&](const Block& a, const Block& b) {
    return ScoreOf(graph, {a}).BetterThan(ScoreOf(graph, {b}));
  });
  Block order;
  for (const Block& block : blocks) order.insert(order.end(), block.begin(), block.end());
  order.insert(order.end(), rest.begin(), rest.end());
  return order;
}

std::vector<std::string> Explain(const Cluster& cluster, const std::vector<int>& ranks,
                                 const std::vector<int64_t>& sizes) {
  std::vector<std::string> reasons;
  for (const int64_t size : sizes) {
    if (size < 2) continue;
    std::optional<GroupPath> worst;
    std::span<const int> where;
    const auto count = static_cast<int64_t>(ranks.size()) / size;
    for (int64_t block = 0; block < std::min<int64_t>(count, 64); ++block) {
      const auto members =
          std::span(ranks).subspan(static_cast<size_t>(block * size), static_cast<size_t>(size));
      const auto group = cluster.Group(members);
      if (!group.ok()) {
        reasons.push_back(fmt::format("blocks of {}: {}", size, group.status().message()));
        worst.reset();
        break;
      }
      if (worst && group->bandwidth >= worst->bandwidth) continue;
      worst = *group;
      where = members;
    }
    if (!worst) continue;
    const auto shown = where.first(std::min<size_t>(where.size(), 8));
    reasons.push_back(
        fmt::format("blocks of {}: {:.4g} GB/s each way by {} in the narrowest, devices {{{}{}}}",
                    size, worst->bandwidth.value() * 1e-9,
                    worst->hosts > 1 ? fmt::format("network over {} hosts", worst->hosts)
                                     : std::string(ToString(worst->local_kind)),
                    fmt::join(shown, ", "), where.size() > 8 ? ", ..." : ""));
  }
  return reasons;
}

}  // namespace

Result<Placement> Cluster::BestOrder(std::span<const int> group_sizes) const {
  std::vector<int64_t> sizes;
  int64_t total = 1;
  for (const int size : group_sizes) {
    if (size < 1) return InvalidInput(fmt::format("group size {}; at least 1", size));
    total *= size;
    if (total > device_count()) {
      return InvalidInput(fmt::format("{} ranks or more for the {} devices of cluster '{}'", total,
                                      device_count(), name()));
    }
    sizes.push_back(total);
  }
  if (sizes.empty()) sizes.push_back(1);
  std::vector<Unit> units;
  for (int device = 0; device < impl_->total_devices(); device += units.back().devices) {
    units.push_back(impl_->UnitOf(device));
  }
  // The largest level of which every block can stay inside a unit.
  const auto room = [&](int64_t block) {
    int64_t devices = 0;
    for (const Unit& unit : units) devices += unit.devices / block * block;
    return devices;
  };
  size_t inside = sizes.size();
  while (inside > 0 && room(sizes[inside - 1]) < total) --inside;
  Placement placement;
  if (inside == 0) {
    placement.reasons.push_back(
        fmt::format("blocks of {} do not fit inside the hosts: they cross the network", sizes[0]));
  }
  std::vector<int> local_sizes;
  for (size_t i = 0; i < inside; ++i) local_sizes.push_back(static_cast<int>(sizes[i]));
  if (local_sizes.empty()) local_sizes.push_back(1);
  std::vector<Block> orders(impl_->graphs.size());
  for (const Unit& unit : units) {
    Block& order = orders[unit.group];
    if (order.empty() && unit.hosts == 1)
      order = OrderOfHost(*impl_->graphs[unit.group], local_sizes);
    const int usable = unit.devices / local_sizes.back() * local_sizes.back();
    for (int i = 0; i < usable; ++i) {
      if (static_cast<int64_t>(placement.device_of_rank.size()) == total) break;
      const int local = unit.hosts == 1 ? order[static_cast<size_t>(i)] : i;
      placement.device_of_rank.push_back(unit.first_device + local);
    }
  }
  MW_CHECK(static_cast<int64_t>(placement.device_of_rank.size()) == total);
  const auto reasons = Explain(*this, placement.device_of_rank, sizes);
  placement.reasons.insert(placement.reasons.end(), reasons.begin(), reasons.end());
  return placement;
}

}  // namespace meshwright::topologies
