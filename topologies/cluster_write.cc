// Text forms of a cluster: YAML that reads back equal, and Graphviz.
#include <fmt/format.h>

#include <iterator>
#include <map>
#include <string>

#include "topologies/cluster.h"
#include "topologies/cluster_io.h"
#include "topologies/text.h"

namespace meshwright::topologies {
namespace {

std::string QuotedYaml(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

// Ids of the distinct sources, in order of first use.
class SourceIds {
 public:
  const std::string& IdOf(const Source& source) {
    const auto key = std::pair(source.origin, source.text);
    const auto [it, added] = ids_.try_emplace(key, fmt::format("s{}", ids_.size()));
    if (added)
      list_ += fmt::format("  {}: {{origin: {}, text: {}}}\n", it->second, ToString(source.origin),
                           QuotedYaml(source.text));
    return it->second;
  }
  const std::string& list() const { return list_; }

 private:
  std::map<std::pair<Origin, std::string>, std::string> ids_;
  std::string list_;
};

std::string HostYaml(const HostGroup& group, SourceIds& sources) {
  const HostSpec& host = group.host;
  const DeviceInfo& device = host.device;
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "  - name: {}\n    count: {}\n", QuotedYaml(host.name), group.count);
  if (host.nvlink_domain_hosts != 1)
    fmt::format_to(out, "    nvlink_domain_hosts: {}\n", host.nvlink_domain_hosts);
  fmt::format_to(out, "    device: {{kind: {}, name: {}, profile: {}, memory: {}, source: {}{}}}\n",
                 ToString(device.kind), QuotedYaml(device.name), QuotedYaml(device.profile),
                 FormatBytes(device.memory), sources.IdOf(device.memory_source),
                 device.cores > 0 ? fmt::format(", cores: {}", device.cores) : "");
  text += "    nodes:\n";
  for (const Node& node : host.nodes) {
    const std::string id = NodeId(node, device.kind);
    text += node.name.empty()
                ? fmt::format("      - {}\n", id)
                : fmt::format("      - {{id: {}, name: {}}}\n", id, QuotedYaml(node.name));
  }
  if (host.links.empty()) return text;
  text += "    links:\n";
  for (const Link& link : host.links) {
    const std::string rate =
        link.forward == link.backward
            ? fmt::format("each_way: {}", FormatBandwidth(link.forward))
            : fmt::format("forward: {}, backward: {}", FormatBandwidth(link.forward),
                          FormatBandwidth(link.backward));
    fmt::format_to(out,
                   "      - {{from: {}, to: {}, kind: {}{}, {}, latency: {}, source: {}, "
                   "latency_source: {}}}\n",
                   NodeId(host.nodes[static_cast<size_t>(link.a)], device.kind),
                   NodeId(host.nodes[static_cast<size_t>(link.b)], device.kind),
                   ToString(link.kind),
                   link.label.empty() ? "" : ", label: " + QuotedYaml(link.label), rate,
                   FormatDuration(link.latency), sources.IdOf(link.bandwidth_source),
                   sources.IdOf(link.latency_source));
  }
  return text;
}

std::string DotName(const std::string& scope, const Node& node, DeviceKind kind) {
  const bool shared = node.kind == NodeKind::kNetworkSwitch;
  return QuotedYaml(fmt::format("{}{}", shared ? "" : scope + "/", NodeId(node, kind)));
}

}  // namespace

std::string ToYaml(const ClusterSpec& spec) {
  SourceIds sources;
  std::string hosts;
  for (const HostGroup& group : spec.hosts) hosts += HostYaml(group, sources);
  std::string fabric;
  if (!spec.fabric.name.empty()) {
    fabric = fmt::format(
        "fabric: {{name: {}, oversubscription: {}, source: {}, spine_latency: {}, latency_source: "
        "{}}}\n",
        QuotedYaml(spec.fabric.name), spec.fabric.oversubscription,
        sources.IdOf(spec.fabric.source), FormatDuration(spec.fabric.spine_latency),
        sources.IdOf(spec.fabric.latency_source));
  }
  return fmt::format(
      "meshwright_cluster: 1\nname: {}\n{}sources:\n{}hosts:\n{}{}", QuotedYaml(spec.name),
      spec.description.empty() ? ""
                               : fmt::format("description: {}\n", QuotedYaml(spec.description)),
      sources.list(), hosts, fabric);
}

std::string Cluster::ToDot() const {
  std::string text = fmt::format("graph {} {{\n  node [shape=box];\n", QuotedYaml(name()));
  const auto out = std::back_inserter(text);
  for (size_t g = 0; g < spec().hosts.size(); ++g) {
    const HostGroup& group = spec().hosts[g];
    const DeviceKind kind = group.host.device.kind;
    const std::string scope = fmt::format("{}#{}", group.host.name, g);
    fmt::format_to(out, "  subgraph cluster_{} {{\n    label={};\n", g,
                   QuotedYaml(fmt::format("{} x{}", group.host.name, group.count)));
    for (const Node& node : group.host.nodes) {
      if (node.kind == NodeKind::kNetworkSwitch) continue;
      const std::string id = NodeId(node, kind);
      fmt::format_to(out, "    {} [label={}];\n", DotName(scope, node, kind),
                     QuotedYaml(node.name.empty() ? id : fmt::format("{} {}", id, node.name)));
    }
    text += "  }\n";
    for (const Link& link : group.host.links) {
      const Node& a = group.host.nodes[static_cast<size_t>(link.a)];
      const Node& b = group.host.nodes[static_cast<size_t>(link.b)];
      fmt::format_to(
          out, "  {} -- {} [label={}];\n", DotName(scope, a, kind), DotName(scope, b, kind),
          QuotedYaml(fmt::format("{} {}", link.label.empty() ? ToString(link.kind) : link.label,
                                 FormatBandwidth(link.forward))));
      if (b.kind == NodeKind::kNetworkSwitch && !spec().fabric.name.empty()) {
        fmt::format_to(out, "  {} -- \"spine\" [style=dotted];\n", DotName(scope, b, kind));
      }
    }
  }
  return text + "}\n";
}

}  // namespace meshwright::topologies
