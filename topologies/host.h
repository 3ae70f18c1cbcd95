// What one machine and the network between machines are, as plain values with a source for every
// number. `Cluster` (cluster.h) compiles them to a graph and answers questions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::topologies {

/// How a number came to be known.
enum class Origin { kDatasheet, kNvidiaSmi, kMeasured, kAssumed };

/// Where a number comes from: kind of origin, and a sentence that lets a reader check it.
struct Source {
  Origin origin = Origin::kAssumed;
  std::string text;
  friend bool operator==(const Source&, const Source&) = default;
};

enum class NodeKind {
  kHost,        ///< root of a host: the socket interconnect joins NUMA nodes here
  kNumaNode,    ///< memory and host bridges of one NUMA node
  kHostBridge,  ///< where PCIe leaves a socket
  kPcieSwitch,
  kNvlinkSwitch,  ///< all NVSwitches of a host (or rack), as one crossbar
  kDevice,        ///< a GPU, or a CPU rank's share of a host
  kNic,
  kNetworkSwitch,  ///< a leaf switch (rail) of the network; the same one for all hosts
};

enum class LinkKind {
  kNvlink,
  kPcie,
  kChipToChip,    ///< CPU and GPU of one module (NVLink-C2C)
  kSocket,        ///< between NUMA nodes (UPI, xGMI, ...)
  kSharedMemory,  ///< between CPU ranks of a host
  kNetwork,
};

enum class DeviceKind { kGpu, kCpu };

/// The device behind a rank.
struct DeviceInfo {
  DeviceKind kind = DeviceKind::kGpu;
  std::string name;     ///< "H100-SXM"
  std::string profile;  ///< name of the device profile that prices its work, "h100-sxm"
  Bytes memory;         ///< of one device (of one rank's share for CPU devices)
  Source memory_source;
  int cores = 0;  ///< CPU devices: cores of the host, which its ranks share; 0 for GPUs
  friend bool operator==(const DeviceInfo&, const DeviceInfo&) = default;
};

struct Node {
  NodeKind kind = NodeKind::kHost;
  int index = 0;     ///< within its kind and host, from 0
  std::string name;  ///< as the machine calls it ("mlx5_0"); may be empty
  friend bool operator==(const Node&, const Node&) = default;
};

/// An edge between two nodes of a host. `forward` is from `a` to `b`, `backward` from `b` to `a`.
struct Link {
  int a = 0;  ///< positions in HostSpec::nodes
  int b = 0;
  LinkKind kind = LinkKind::kPcie;
  std::string label;  ///< "NV18", "PIX", ...; may be empty
  BytesPerSecond forward;
  BytesPerSecond backward;
  Seconds latency;
  Source bandwidth_source;
  Source latency_source;
  friend bool operator==(const Link&, const Link&) = default;
};

/// One kind of host. All its devices are of one kind; nodes of kind kDevice stand in the order of
/// local device ids.
struct HostSpec {
  std::string name;
  DeviceInfo device;
  std::vector<Node> nodes;
  std::vector<Link> links;
  /// Hosts that share one NVLink switch domain (18 for GB200 NVL72, 1 where NVLink ends at the
  /// host).
  int nvlink_domain_hosts = 1;
  friend bool operator==(const HostSpec&, const HostSpec&) = default;

  int device_count() const;
  int nic_count() const;
};

/// The network between hosts: leaf switches (rails), which the NICs' network links name, joined by
/// a spine. A NIC without network link (storage, management) carries no traffic here.
struct FabricSpec {
  std::string name;               ///< "infiniband-ndr", "efa", ...; empty: hosts are not joined
  double oversubscription = 1.0;  ///< leaf to spine, ≥ 1; 1 = non-blocking
  Seconds spine_latency;          ///< added where a path leaves its rail
  Source source;                  ///< of the oversubscription
  Source latency_source;
  friend bool operator==(const FabricSpec&, const FabricSpec&) = default;
};

/// A host description and how many of them there are.
struct HostGroup {
  HostSpec host;
  int count = 1;
  friend bool operator==(const HostGroup&, const HostGroup&) = default;
};

/// A whole cluster as a value: what YAML files hold.
struct ClusterSpec {
  std::string name;
  std::string description;
  std::vector<HostGroup> hosts;  ///< global device ids count through them in order
  FabricSpec fabric;
  std::vector<std::string> warnings;  ///< found when it was made; not saved, not compared
  friend bool operator==(const ClusterSpec& a, const ClusterSpec& b) {
    return a.name == b.name && a.description == b.description && a.hosts == b.hosts &&
           a.fabric == b.fabric;
  }
};

std::string_view ToString(Origin origin);    ///< "datasheet"
std::string_view ToString(NodeKind kind);    ///< "nvlink_switch"
std::string_view ToString(LinkKind kind);    ///< "nvlink"
std::string_view ToString(DeviceKind kind);  ///< "gpu"
std::optional<Origin> ParseOrigin(std::string_view text);
std::optional<NodeKind> ParseNodeKind(std::string_view text);
std::optional<LinkKind> ParseLinkKind(std::string_view text);
std::optional<DeviceKind> ParseDeviceKind(std::string_view text);

/// "gpu3", "nvlink_switch0", "rail1": how YAML files and messages name a node.
std::string NodeId(const Node& node, DeviceKind device_kind);

/// Checks sizes, indices, positive bandwidths, counts of devices; messages name host and link.
Status Validate(const ClusterSpec& spec);

}  // namespace meshwright::topologies
