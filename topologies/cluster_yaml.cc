// Reads clusters in YAML; the format is described in README.md of this folder.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "topologies/cluster_io.h"
#include "topologies/text.h"
#include "topologies/yaml_guard.h"

namespace meshwright::topologies {
namespace {

constexpr int kVersion = 1;
constexpr int kMaxNodes = 2048;  // of a host, as Validate has it
constexpr int kMaxLinks = 16384;

// A mapping whose fields are read by name; remembers where it stands for messages.
class Fields {
 public:
  static Result<Fields> Read(const YAML::Node& node, std::string_view file, std::string path,
                             const std::vector<std::string>& allowed) {
    Fields fields(node, file, std::move(path));
    if (!node.IsMap()) return fields.Error("", "a mapping is needed here");
    std::set<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) return fields.Error("", "field names are plain text");
      const std::string& key = entry.first.Scalar();
      if (std::find(allowed.begin(), allowed.end(), key) == allowed.end()) {
        const auto close = ClosestNames(key, allowed);
        return fields.Error(
            "", fmt::format("unknown field '{}'{}; fields are {}", Quoted(key),
                            close.empty() ? "" : fmt::format(", did you mean '{}'?", close[0]),
                            fmt::join(allowed, ", ")));
      }
      if (!seen.insert(key).second) return fields.Error(key, "stands twice");
    }
    return fields;
  }

  Status Error(std::string_view key, const std::string& message) const {
    const YAML::Node at = Has(key) ? node_[std::string(key)] : node_;
    const int line = at.Mark().line >= 0 ? at.Mark().line + 1 : 0;
    return InvalidInput(fmt::format("{}:{}: {}{}{}: {}", file_, line, path_,
                                    path_.empty() || key.empty() ? "" : ".", key, message));
  }

  bool Has(std::string_view key) const {
    return !key.empty() && node_[std::string(key)].IsDefined();
  }
  YAML::Node At(std::string_view key) const { return node_[std::string(key)]; }
  std::string Path(std::string_view key) const {
    return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  }
  std::string_view file() const { return file_; }

  Result<std::string> Text(std::string_view key, bool may_be_missing = false) const {
    if (!Has(key)) {
      if (may_be_missing) return std::string();
      return Error("", fmt::format("field '{}' is missing", key));
    }
    if (!At(key).IsScalar()) return Error(key, "a text is needed here");
    return At(key).Scalar();
  }

  Result<int> Integer(std::string_view key, int low, int high,
                      std::optional<int> missing = {}) const {
    if (!Has(key) && missing) return *missing;
    MW_ASSIGN_OR_RETURN(const std::string text, Text(key));
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
      return Error(key,
                   fmt::format("'{}' is no whole number from {} to {}", Quoted(text), low, high));
    }
    return value;
  }

  Result<double> Real(std::string_view key, double missing) const {
    if (!Has(key)) return missing;
    MW_ASSIGN_OR_RETURN(const std::string text, Text(key));
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      return Error(key, fmt::format("'{}' is no number", Quoted(text)));
    }
    return value;
  }

  // A quantity by its parser ("450 GB/s").
  template <typename T>
  Result<T> Quantity(std::string_view key, Result<T> (*parse)(std::string_view)) const {
    MW_ASSIGN_OR_RETURN(const std::string text, Text(key));
    Result<T> value = parse(text);
    if (!value.ok()) return Error(key, value.status().message());
    return value;
  }

  template <typename Enum>
  Result<Enum> Choice(std::string_view key, std::optional<Enum> (*parse)(std::string_view),
                      std::string_view allowed) const {
    MW_ASSIGN_OR_RETURN(const std::string text, Text(key));
    const std::optional<Enum> value = parse(text);
    if (!value) return Error(key, fmt::format("'{}' is none of {}", Quoted(text), allowed));
    return *value;
  }

 private:
  Fields(const YAML::Node& node, std::string_view file, std::string path)
      : node_(node), file_(file), path_(std::move(path)) {}
  YAML::Node node_;
  std::string_view file_;
  std::string path_;
};

using Sources = std::map<std::string, Source>;

Result<Source> SourceOf(const Fields& fields, std::string_view key, const Sources& sources) {
  MW_ASSIGN_OR_RETURN(const std::string id, fields.Text(key));
  const auto it = sources.find(id);
  if (it != sources.end()) return it->second;
  std::vector<std::string> known;
  for (const auto& [name, unused] : sources) known.push_back(name);
  return fields.Error(key, fmt::format("no source '{}' in the file's sources: {}", Quoted(id),
                                       fmt::join(known, ", ")));
}

Result<Sources> ReadSources(const Fields& root) {
  Sources sources;
  if (!root.Has("sources"))
    return root.Error("", "field 'sources' is missing: every number names its source");
  const YAML::Node list = root.At("sources");
  if (!list.IsMap())
    return root.Error("sources", "a mapping from names to {origin, text} is needed here");
  for (const auto& entry : list) {
    if (!entry.first.IsScalar()) return root.Error("sources", "names of sources are plain text");
    const std::string& id = entry.first.Scalar();
    MW_ASSIGN_OR_RETURN(
        const Fields fields,
        Fields::Read(entry.second, root.file(), "sources." + Quoted(id), {"origin", "text"}));
    Source source;
    MW_ASSIGN_OR_RETURN(source.origin, fields.Choice("origin", ParseOrigin,
                                                     "datasheet, nvidia-smi, measured, assumed"));
    MW_ASSIGN_OR_RETURN(source.text, fields.Text("text"));
    if (IsBlank(source.text))
      return fields.Error("text", "is empty; say where the number can be checked");
    if (!sources.emplace(id, source).second) return fields.Error("", "stands twice");
  }
  return sources;
}

struct NodeRange {
  NodeKind kind = NodeKind::kHost;
  int first = 0;
  int last = 0;
};

// "gpu3" or "gpu[0-7]".
std::optional<NodeRange> ParseNodeRange(std::string_view text) {
  const size_t digits = text.find_first_of("[0123456789");
  if (digits == std::string_view::npos) return std::nullopt;
  const std::string_view name = text.substr(0, digits);
  NodeRange range;
  if (ParseDeviceKind(name)) {
    range.kind = NodeKind::kDevice;
  } else if (const auto kind = ParseNodeKind(name); kind && *kind != NodeKind::kDevice) {
    range.kind = *kind;
  } else {
    return std::nullopt;
  }
  std::string_view numbers = text.substr(digits);
  const bool bracketed = numbers[0] == '[';
  if (bracketed && numbers.back() != ']') return std::nullopt;
  if (bracketed) numbers = numbers.substr(1, numbers.size() - 2);
  const char* end = numbers.data() + numbers.size();
  std::from_chars_result read = std::from_chars(numbers.data(), end, range.first);
  range.last = range.first;
  if (bracketed && read.ec == std::errc()) {
    if (read.ptr == end || *read.ptr != '-') return std::nullopt;
    read = std::from_chars(read.ptr + 1, end, range.last);
  }
  if (read.ec != std::errc()) return std::nullopt;
  if (read.ptr != end || range.first < 0 || range.last < range.first ||
      range.last - range.first >= kMaxNodes) {
    return std::nullopt;
  }
  return range;
}

constexpr std::string_view kNodeHelp =
    "is no node: write kind and index (gpu0) or a range (gpu[0-7]); kinds are host, numa, "
    "host_bridge, "
    "pcie_switch, nvlink_switch, gpu, cpu, nic, rail";

Status ReadNodes(const Fields& host, HostSpec& spec) {
  if (!host.Has("nodes") || !host.At("nodes").IsSequence())
    return host.Error("nodes", "a list of nodes is needed");
  for (const YAML::Node& item : host.At("nodes")) {
    std::string id;
    std::string name;
    if (item.IsMap()) {
      MW_ASSIGN_OR_RETURN(const Fields fields,
                          Fields::Read(item, host.file(), host.Path("nodes"), {"id", "name"}));
      MW_ASSIGN_OR_RETURN(id, fields.Text("id"));
      MW_ASSIGN_OR_RETURN(name, fields.Text("name"));
    } else if (item.IsScalar()) {
      id = item.Scalar();
    }
    const auto range = ParseNodeRange(id);
    if (!range) return host.Error("nodes", fmt::format("'{}' {}", Quoted(id), kNodeHelp));
    for (int i = range->first; i <= range->last; ++i) spec.nodes.push_back({range->kind, i, name});
    if (spec.nodes.size() > static_cast<size_t>(kMaxNodes)) {
      return host.Error("nodes", fmt::format("more than {} nodes", kMaxNodes));
    }
  }
  return Status::Ok();
}

using NodeIndex = std::map<std::pair<NodeKind, int>, int>;

Result<std::vector<int>> FindNodes(const Fields& link, std::string_view key,
                                   const NodeIndex& index) {
  MW_ASSIGN_OR_RETURN(const std::string text, link.Text(key));
  const auto range = ParseNodeRange(text);
  if (!range) return link.Error(key, fmt::format("'{}' {}", Quoted(text), kNodeHelp));
  std::vector<int> nodes;
  for (int i = range->first; i <= range->last; ++i) {
    const auto it = index.find({range->kind, i});
    if (it == index.end())
      return link.Error(key, fmt::format("'{}' names a node that is not in nodes", Quoted(text)));
    nodes.push_back(it->second);
  }
  return nodes;
}

Status ReadLink(const Fields& fields, const Sources& sources, const NodeIndex& index,
                HostSpec& spec) {
  MW_ASSIGN_OR_RETURN(const std::vector<int> from, FindNodes(fields, "from", index));
  MW_ASSIGN_OR_RETURN(const std::vector<int> to, FindNodes(fields, "to", index));
  if (from.size() != to.size() && from.size() != 1 && to.size() != 1) {
    return fields.Error(
        "", fmt::format("joins {} nodes with {}: write equally many (pairwise) or one on a side",
                        from.size(), to.size()));
  }
  Link link;
  MW_ASSIGN_OR_RETURN(
      link.kind,
      fields.Choice("kind", ParseLinkKind, "nvlink, pcie, c2c, socket, shared_memory, network"));
  MW_ASSIGN_OR_RETURN(link.label, fields.Text("label", true));
  if (fields.Has("each_way") == (fields.Has("forward") || fields.Has("backward"))) {
    return fields.Error("", "give each_way, or forward and backward");
  }
  const bool each_way = fields.Has("each_way");
  MW_ASSIGN_OR_RETURN(link.forward,
                      fields.Quantity(each_way ? "each_way" : "forward", ParseBandwidth));
  MW_ASSIGN_OR_RETURN(link.backward,
                      fields.Quantity(each_way ? "each_way" : "backward", ParseBandwidth));
  MW_ASSIGN_OR_RETURN(link.latency, fields.Quantity("latency", ParseDuration));
  MW_ASSIGN_OR_RETURN(link.bandwidth_source, SourceOf(fields, "source", sources));
  MW_ASSIGN_OR_RETURN(link.latency_source, SourceOf(fields, "latency_source", sources));
  for (size_t i = 0; i < std::max(from.size(), to.size()); ++i) {
    link.a = from[from.size() == 1 ? 0 : i];
    link.b = to[to.size() == 1 ? 0 : i];
    spec.links.push_back(link);
  }
  if (spec.links.size() > static_cast<size_t>(kMaxLinks))
    return fields.Error("", fmt::format("more than {} links", kMaxLinks));
  return Status::Ok();
}

Status ReadLinks(const Fields& host, const Sources& sources, HostSpec& spec) {
  NodeIndex index;
  for (size_t i = 0; i < spec.nodes.size(); ++i) {
    if (!index.emplace(std::pair(spec.nodes[i].kind, spec.nodes[i].index), static_cast<int>(i))
             .second) {
      return host.Error("nodes",
                        fmt::format("{} is listed twice", NodeId(spec.nodes[i], spec.device.kind)));
    }
  }
  if (!host.Has("links")) return Status::Ok();
  if (!host.At("links").IsSequence()) return host.Error("links", "a list of links is needed");
  int number = 0;
  for (const YAML::Node& item : host.At("links")) {
    MW_ASSIGN_OR_RETURN(
        const Fields fields,
        Fields::Read(item, host.file(), fmt::format("{}[{}]", host.Path("links"), number++),
                     {"from", "to", "kind", "label", "each_way", "forward", "backward", "latency",
                      "source", "latency_source"}));
    MW_RETURN_IF_ERROR(ReadLink(fields, sources, index, spec));
  }
  return Status::Ok();
}

Result<DeviceInfo> ReadDevice(const Fields& host, const Sources& sources) {
  if (!host.Has("device")) return host.Error("", "field 'device' is missing");
  MW_ASSIGN_OR_RETURN(const Fields fields,
                      Fields::Read(host.At("device"), host.file(), host.Path("device"),
                                   {"kind", "name", "profile", "memory", "source", "cores"}));
  DeviceInfo device;
  MW_ASSIGN_OR_RETURN(device.kind, fields.Choice("kind", ParseDeviceKind, "gpu, cpu"));
  MW_ASSIGN_OR_RETURN(device.name, fields.Text("name"));
  MW_ASSIGN_OR_RETURN(device.profile, fields.Text("profile"));
  MW_ASSIGN_OR_RETURN(device.memory, fields.Quantity("memory", ParseBytes));
  MW_ASSIGN_OR_RETURN(device.memory_source, SourceOf(fields, "source", sources));
  MW_ASSIGN_OR_RETURN(device.cores, fields.Integer("cores", 0, 1'000'000, 0));
  return device;
}

Result<HostGroup> ReadHost(const YAML::Node& node, const Fields& root, int number,
                           const Sources& sources) {
  MW_ASSIGN_OR_RETURN(
      const Fields fields,
      Fields::Read(node, root.file(), fmt::format("hosts[{}]", number),
                   {"name", "count", "nvlink_domain_hosts", "device", "nodes", "links"}));
  HostGroup group;
  MW_ASSIGN_OR_RETURN(group.host.name, fields.Text("name"));
  MW_ASSIGN_OR_RETURN(group.count, fields.Integer("count", 1, 1 << 24, 1));
  MW_ASSIGN_OR_RETURN(group.host.nvlink_domain_hosts,
                      fields.Integer("nvlink_domain_hosts", 1, 1 << 16, 1));
  MW_ASSIGN_OR_RETURN(group.host.device, ReadDevice(fields, sources));
  MW_RETURN_IF_ERROR(ReadNodes(fields, group.host));
  MW_RETURN_IF_ERROR(ReadLinks(fields, sources, group.host));
  return group;
}

Result<FabricSpec> ReadFabric(const Fields& root, const Sources& sources) {
  FabricSpec fabric;
  if (!root.Has("fabric")) return fabric;
  MW_ASSIGN_OR_RETURN(const Fields fields, Fields::Read(root.At("fabric"), root.file(), "fabric",
                                                        {"name", "oversubscription", "source",
                                                         "spine_latency", "latency_source"}));
  MW_ASSIGN_OR_RETURN(fabric.name, fields.Text("name"));
  MW_ASSIGN_OR_RETURN(fabric.oversubscription, fields.Real("oversubscription", 1.0));
  MW_ASSIGN_OR_RETURN(fabric.source, SourceOf(fields, "source", sources));
  MW_ASSIGN_OR_RETURN(fabric.spine_latency, fields.Quantity("spine_latency", ParseDuration));
  MW_ASSIGN_OR_RETURN(fabric.latency_source, SourceOf(fields, "latency_source", sources));
  return fabric;
}

Result<ClusterSpec> ReadCluster(const YAML::Node& document, std::string_view file) {
  MW_ASSIGN_OR_RETURN(const Fields root, Fields::Read(document, file, "",
                                                      {"meshwright_cluster", "name", "description",
                                                       "sources", "hosts", "fabric"}));
  if (!root.Has("meshwright_cluster")) {
    return root.Error(
        "",
        "no field 'meshwright_cluster': this is no cluster description (see topologies/README.md)");
  }
  MW_ASSIGN_OR_RETURN(const int version, root.Integer("meshwright_cluster", 0, 1 << 30));
  if (version != kVersion) {
    return root.Error(
        "meshwright_cluster",
        fmt::format("version {} is not known; this build reads version {}", version, kVersion));
  }
  ClusterSpec spec;
  MW_ASSIGN_OR_RETURN(spec.name, root.Text("name"));
  MW_ASSIGN_OR_RETURN(spec.description, root.Text("description", true));
  MW_ASSIGN_OR_RETURN(const Sources sources, ReadSources(root));
  if (!root.Has("hosts") || !root.At("hosts").IsSequence())
    return root.Error("hosts", "a list of hosts is needed");
  int number = 0;
  for (const YAML::Node& node : root.At("hosts")) {
    MW_ASSIGN_OR_RETURN(HostGroup group, ReadHost(node, root, number++, sources));
    spec.hosts.push_back(std::move(group));
  }
  MW_ASSIGN_OR_RETURN(spec.fabric, ReadFabric(root, sources));
  return spec;
}

}  // namespace

Result<Cluster> ParseClusterYaml(std::string_view text, std::string_view source_name) {
  MW_RETURN_IF_ERROR(CheckYamlBounds(text, source_name));
  try {
    const YAML::Node document = YAML::Load(std::string(text));
    MW_ASSIGN_OR_RETURN(ClusterSpec spec, ReadCluster(document, source_name));
    Result<Cluster> cluster = Cluster::Make(std::move(spec));
    if (!cluster.ok()) return cluster.status().WithContext(std::string(source_name));
    return cluster;
  } catch (const YAML::Exception& error) {
    return InvalidInput(
        fmt::format("{}:{}: not YAML: {}", source_name, error.mark.line + 1, error.msg));
  }
}

Result<Cluster> LoadCluster(const std::string& path) {
  MW_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxTextBytes));
  return ParseClusterYaml(text, path);
}

}  // namespace meshwright::topologies
