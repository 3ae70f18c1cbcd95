// Steps and bytes of the collectives, and the path that they take.
//
// `S` is the message: all-reduce: the buffer of one rank; all-gather: the gathered buffer;
// reduce-scatter: the buffer before scattering; all-to-all: all that one rank gives away and keeps;
// broadcast, send: the payload. With n ranks on h hosts:
//
//   ring on one link class     steps        bytes that each rank sends
//   all-reduce                 2 (n-1)      2 (n-1)/n S
//   all-gather                 n-1          (n-1)/n S
//   reduce-scatter             n-1          (n-1)/n S
//   all-to-all (pairwise)      n-1          (n-1)/n S
//   broadcast (pipelined)      n-1          S          (each rank but the last passes it on)
//   send                       1            S
//
// Over several hosts of g = n/h ranks, bytes that leave each host (and as many enter it):
//   flat ring                  as one rank of the ring sends: every host is one link of it
//   hierarchical all-reduce    2 (h-1)/h S: reduce-scatter inside, all-reduce of the shards along
//                              rails (all NICs at once), all-gather inside; inside: 2 (g-1)/g S a
//                              rank
//   all-to-all                 g S (n-g)/n
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::cost {

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kSend,
};
/// "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send".
std::string_view ToString(CollectiveKind kind);
std::optional<CollectiveKind> ParseCollectiveKind(std::string_view text);

/// Networks that libraries use differently. kUsual: whatever the profile was measured on.
enum class Fabric : uint8_t { kUsual, kInfiniBand, kEthernet, kEfa };
/// "usual", "infiniband", "ethernet", "efa".
std::string_view ToString(Fabric fabric);
std::optional<Fabric> ParseFabric(std::string_view text);
/// The fabric that a cluster's name for it begins with ("infiniband-ndr"); kUsual for other names.
Fabric FabricOf(std::string_view cluster_fabric);

/// Classes of traffic of our own runtime, which limits NCCL's thread blocks by class.
enum class Traffic : uint8_t { kTensor, kData, kEdge };
/// "tensor", "data", "edge".
std::string_view ToString(Traffic traffic);
std::optional<Traffic> ParseTraffic(std::string_view text);

/// What moves the bytes between the GPUs of a host.
enum class Carrier : uint8_t { kNccl, kKernels, kCopyEngines };
/// "nccl", "kernels", "copy_engines".
std::string_view ToString(Carrier carrier);
std::optional<Carrier> ParseCarrier(std::string_view text);

struct CollectiveWork {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Bytes bytes;  ///< S above
  /// Set: our own runtime's, as measured by class where the profile has it (TrafficFit).
  std::optional<Traffic> traffic = std::nullopt;
  Carrier carrier = Carrier::kNccl;  ///< counts with `traffic` only
  friend bool operator==(const CollectiveWork&, const CollectiveWork&) = default;
};

/// What the members have between them; the caller takes it from the cluster's graph. Bandwidths are
/// per direction and as wired: the profile's measured efficiency is applied to them.
struct PathFacts {
  int64_t ranks = 1;
  int64_t hosts = 1;           ///< that hold members
  int64_t ranks_per_host = 1;  ///< on the host with the most
  BytesPerSecond
      local_bandwidth;  ///< in and out of one member inside a host; 0: at most one a host
  Seconds local_latency;
  BytesPerSecond network_bandwidth;  ///< in and out of one host for all its members; 0 on one host
  Seconds network_latency;
  bool in_switch_reduction = false;  ///< the switch adds (NVLink SHARP), and the runtime uses it
  Fabric fabric = Fabric::kUsual;    ///< the network between the hosts
  friend bool operator==(const PathFacts&, const PathFacts&) = default;
};

/// Sizes and bandwidths >= 0, hosts <= ranks, a bandwidth wherever members have to cross.
Status Validate(const PathFacts& path);

enum class CollectiveAlgorithm : uint8_t { kRing, kHierarchical, kInSwitch };
std::string_view ToString(CollectiveAlgorithm algorithm);

/// What an algorithm moves. Bytes are rounded up to whole ones.
struct WireCost {
  int64_t local_steps = 0;    ///< messages one after another inside a host
  int64_t network_steps = 0;  ///< ... that cross hosts
  Bytes local_bytes;          ///< that each rank sends inside its host
  Bytes network_bytes;        ///< that leave each host
  friend bool operator==(const WireCost&, const WireCost&) = default;
};

/// Nothing for one rank. Hierarchical and in-switch are for all-reduce; in-switch inside one host
/// (or NVLink domain), hierarchical over several.
WireCost CountWire(CollectiveAlgorithm algorithm, const CollectiveWork& work,
                   const PathFacts& path);

}  // namespace meshwright::cost
