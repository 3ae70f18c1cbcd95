// A cluster from a topology capture: the matrix gives the shape, the GPU model the bandwidths.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "topologies/cluster_io.h"
#include "topologies/gpu_catalog.h"
#include "topologies/parse_nvidia_smi_topo.h"
#include "topologies/text.h"

namespace meshwright::topologies {
namespace {

// Latencies and the socket link are in neither capture nor datasheets.
constexpr Seconds kNvlinkLatency(0.5e-6);
constexpr Seconds kPcieLatency(0.5e-6);
constexpr Seconds kSocketLatency(0.3e-6);
constexpr Seconds kPortLatency(1.0e-6);
constexpr Seconds kSpineLatency(1.0e-6);
constexpr BytesPerSecond kSocketRate(32e9);

Source Assumed(std::string text) {
  return {Origin::kAssumed, std::move(text)};
}
Source AssumedLatency() {
  return Assumed(
      "typical latency of one hop of this kind; replace by a measurement of the machine");
}

Result<GpuModel> ModelFor(const TopoReport& report, const TopoOptions& options) {
  if (!options.gpu.empty()) {
    Result<GpuModel> model = FindGpuModel(options.gpu);
    if (model.ok()) return model;
    if (const auto by_smi_name = GpuModelOfSmiName(options.gpu)) return *by_smi_name;
    return model;
  }
  std::string found;
  for (const std::string& name : report.gpu_names) {
    if (name.empty()) continue;
    if (!found.empty() && name != found) {
      return InvalidInput(fmt::format(
          "the text lists unlike GPUs ('{}' and '{}'); describe the host in YAML", found, name));
    }
    found = name;
  }
  if (!found.empty()) {
    if (const auto model = GpuModelOfSmiName(found)) return *model;
  }
  return InvalidInput(
      fmt::format("{}, and a link matrix does not say how fast the links are: name the GPU model "
                  "(--gpu), or put the output "
                  "of 'nvidia-smi -L' into the same file. Models: {}",
                  found.empty() ? "the text does not name the GPU model"
                                : fmt::format("GPU '{}' is not known", Quoted(found)),
                  fmt::join(GpuModelNames(), ", ")));
}

// Devices joined at least as near as a level; GPUs first, then NICs.
class Hierarchy {
 public:
  explicit Hierarchy(const TopoReport& report)
      : size_(report.gpus + static_cast<int>(report.nics.size())) {
    for (int level = 1; level <= 4; ++level) {
      std::vector<int>& parent = parents_[level];
      parent.resize(static_cast<size_t>(size_));
      std::iota(parent.begin(), parent.end(), 0);
      for (int a = 0; a < size_; ++a) {
        for (int b = a + 1; b < size_; ++b) {
          const int distance = PcieDistance(report.LinkBetween(a, b).kind);
          const bool hidden =
              distance == 0 && a < report.gpus && b < report.gpus;  // NVLink hides it
          if ((distance > 0 && distance <= level) ||
              (hidden && level == 4 && SameNuma(report, a, b))) {
            parent[static_cast<size_t>(Root(level, a))] = Root(level, b);
          }
        }
      }
    }
  }

  // Parts of `members` that are joined at `level`, in order of their first member.
  std::vector<std::vector<int>> Parts(const std::vector<int>& members, int level) {
    std::vector<std::vector<int>> parts;
    std::map<int, size_t> part_of;
    for (const int member : members) {
      const auto [it, added] = part_of.emplace(Root(level, member), parts.size());
      if (added) parts.emplace_back();
      parts[it->second].push_back(member);
    }
    return parts;
  }

  bool guessed_numa() const { return guessed_numa_; }

 private:
  int Root(int level, int i) {
    std::vector<int>& parent = parents_[level];
    while (parent[static_cast<size_t>(i)] != i) {
      i = parent[static_cast<size_t>(i)] =
          parent[static_cast<size_t>(parent[static_cast<size_t>(i)])];
    }
    return i;
  }

  static std::string Stated(const TopoColumn& column, int gpu) {
    if (!column) return "";
    const std::string text = (*column)[static_cast<size_t>(gpu)].value_or("");
    return text == "N/A" ? "" : text;
  }

  bool SameNuma(const TopoReport& report, int a, int b) {
    for (const TopoColumn* column : {&report.numa, &report.cpu_affinity}) {
      const std::string of_a = Stated(*column, a);
      const std::string of_b = Stated(*column, b);
      if (!of_a.empty() && !of_b.empty()) return of_a == of_b;
    }
    guessed_numa_ = true;
    return true;
  }

  int size_ = 0;
  std::map<int, std::vector<int>> parents_;
  bool guessed_numa_ = false;
};

class HostBuilder {
 public:
  HostBuilder(const TopoReport& report, const GpuModel& model, const TopoOptions& options)
      : report_(report), model_(model), options_(options), hierarchy_(report) {}

  HostSpec Build() {
    host_.name = options_.name;
    host_.device = {DeviceKind::kGpu,
                    std::string(model_.name),
                    std::string(model_.profile),
                    model_.memory,
                    DataSource(),
                    0};
    for (int gpu = 0; gpu < report_.gpus; ++gpu) AddNode(NodeKind::kDevice, "");
    for (const std::string& nic : report_.nics) {
      const auto legend = report_.nic_legend.find(nic);
      AddNode(NodeKind::kNic, legend == report_.nic_legend.end() ? nic : legend->second);
    }
    AddPcie();
    AddNvlink();
    AddNics();
    return std::move(host_);
  }

  std::vector<std::string>& warnings() { return warnings_; }

 private:
  Source DataSource() const { return {Origin::kDatasheet, std::string(model_.source)}; }
  Source SmiSource(const std::string& word) const {
    return {Origin::kDatasheet,
            fmt::format("{}; number of links from nvidia-smi topo -m ({})", model_.source, word)};
  }

  int AddNode(NodeKind kind, std::string name) {
    host_.nodes.push_back({kind, counts_[kind]++, std::move(name)});
    return static_cast<int>(host_.nodes.size()) - 1;
  }

  void AddLink(int a, int b, LinkKind kind, std::string label, BytesPerSecond rate, Seconds latency,
               Source source) {
    host_.links.push_back(
        {a, b, kind, std::move(label), rate, rate, latency, std::move(source), AssumedLatency()});
  }

  void AddPcieLink(int a, int b) {
    const bool device = host_.nodes[static_cast<size_t>(a)].kind == NodeKind::kDevice;
    AddLink(a, b, LinkKind::kPcie, "", model_.pcie_each_way, kPcieLatency,
            device ? DataSource() : Assumed("the same PCIe slot as the GPU's"));
  }

  // The tree of NUMA nodes, host bridges and switches that the words of the matrix describe.
  void AddPcie() {
    std::vector<int> all(static_cast<size_t>(report_.gpus) + report_.nics.size());
    std::iota(all.begin(), all.end(), 0);
    const auto numa_parts = hierarchy_.Parts(all, 4);
    if (hierarchy_.guessed_numa()) {
      warnings_.push_back(
          "the capture states no NUMA nodes; GPUs joined by NVLink were put on one");
    }
    const int root = numa_parts.size() > 1 ? AddNode(NodeKind::kHost, "") : -1;
    for (const std::vector<int>& part : numa_parts) {
      const int numa = AddNode(NodeKind::kNumaNode, "");
      if (root >= 0) {
        AddLink(
            numa, root, LinkKind::kSocket, "", kSocketRate, kSocketLatency,
            Assumed(
                "one link between sockets (UPI, xGMI, ...), each way; replace by a measurement"));
      }
      for (const std::vector<int>& bridge : hierarchy_.Parts(part, 3)) AddBridge(bridge, numa);
    }
  }

  void AddBridge(const std::vector<int>& members, int parent) {
    const auto parts = hierarchy_.Parts(members, 2);
    if (parts.size() > 1) {
      const int bridge = AddNode(NodeKind::kHostBridge, "");
      AddPcieLink(bridge, parent);
      parent = bridge;
    }
    for (const std::vector<int>& part : parts) AddSwitches(part, parent);
  }

  void AddSwitches(const std::vector<int>& members, int parent) {
    const auto parts = hierarchy_.Parts(members, 1);
    const bool nested = parts.size() > 1;
    if (nested) {
      const int upper = AddNode(NodeKind::kPcieSwitch, "");
      AddPcieLink(upper, parent);
      parent = upper;
    }
    for (const std::vector<int>& part : parts) {
      int above = parent;
      if (nested || part.size() > 1) {
        above = AddNode(NodeKind::kPcieSwitch, "");
        AddPcieLink(above, parent);
      }
      for (const int member : part) {
        AddPcieLink(member, above);
        above_[member] = above;
      }
    }
  }

  void AddNvlink() {
    for (size_t c = 0; c < report_.nvlink_components.size(); ++c) {
      const std::vector<int>& component = report_.nvlink_components[c];
      const bool fits = std::all_of(component.begin(), component.end(), [&](int gpu) {
        return report_.nvlink_row_sums[static_cast<size_t>(gpu)] <= model_.nvlinks;
      });
      if (fits) {
        AddDirectLinks(component);
      } else {
        AddSwitch(component, report_.component_is_full_mesh[c]);
      }
    }
  }

  // More links in a row than the GPU has: every cell counts the same links, which end at a switch.
  void AddSwitch(const std::vector<int>& component, bool full_mesh) {
    if (!full_mesh)
      warnings_.push_back(
          "an NVLink switch does not join all pairs of its GPUs; links may be down");
    const int node = AddNode(NodeKind::kNvlinkSwitch, "");
    for (const int gpu : component) {
      int links = 0;
      for (const int other : component)
        links = std::max(links, report_.LinkBetween(gpu, other).nvlinks);
      AddNvlinkTo(gpu, node, links);
      if (links != model_.nvlinks) WarnCount(fmt::format("GPU{}", gpu), links);
    }
  }

  void AddDirectLinks(const std::vector<int>& component) {
    for (const int a : component) {
      for (const int b : component) {
        const TopoLink& link = report_.LinkBetween(a, b);
        if (a < b && link.kind == TopoLinkKind::kNvlink) AddNvlinkTo(a, b, link.nvlinks);
      }
      const int sum = report_.nvlink_row_sums[static_cast<size_t>(a)];
      if (sum < model_.nvlinks) WarnCount(fmt::format("GPU{}", a), sum);
    }
  }

  void AddNvlinkTo(int gpu, int node, int links) {
    const std::string word = fmt::format("NV{}", links);
    AddLink(gpu, node, LinkKind::kNvlink, word, model_.nvlink_each_way * links, kNvlinkLatency,
            SmiSource(word));
  }

  void WarnCount(const std::string& gpu, int links) {
    warnings_.push_back(fmt::format(
        "{} shows {} NVLinks, {} has {}; links may be down or lead to GPUs that are not shown", gpu,
        links, model_.name, model_.nvlinks));
  }

  void AddNics() {
    std::vector<int> nics;
    for (size_t i = 0; i < report_.nics.size(); ++i)
      nics.push_back(report_.gpus + static_cast<int>(i));
    if (nics.empty() && options_.nic_bandwidth) {
      for (int gpu = 0; gpu < report_.gpus; ++gpu) {
        const int above = above_.at(gpu);
        nics.push_back(AddNode(NodeKind::kNic, ""));
        AddPcieLink(nics.back(), above);
      }
      warnings_.push_back("the capture lists no NICs; one beside each GPU was assumed");
    }
    if (!nics.empty() && !options_.nic_bandwidth) {
      warnings_.push_back(
          fmt::format("the capture does not say how fast the NICs are; {} each way was assumed, as "
                      "is usual with {}",
                      FormatBandwidth(model_.nic_each_way), model_.name));
    }
    for (const int nic : nics) {
      const int rail = AddNode(NodeKind::kNetworkSwitch, "");
      AddLink(nic, rail, LinkKind::kNetwork, "",
              options_.nic_bandwidth.value_or(model_.nic_each_way), kPortLatency,
              Assumed(options_.nic_bandwidth ? "given by the user beside the capture"
                                             : fmt::format("NIC usual for {}", model_.name)));
    }
  }

  const TopoReport& report_;
  const GpuModel& model_;
  const TopoOptions& options_;
  Hierarchy hierarchy_;
  HostSpec host_;
  std::map<NodeKind, int> counts_;
  std::map<int, int> above_;  // node above each GPU and NIC
  std::vector<std::string> warnings_;
};

}  // namespace

Result<Cluster> ClusterFromTopo(const TopoReport& report, const TopoOptions& options) {
  if (options.nodes < 1) return InvalidInput(fmt::format("{} nodes; at least 1", options.nodes));
  MW_ASSIGN_OR_RETURN(const GpuModel model, ModelFor(report, options));
  if (model.nvlinks == 0 && !report.nvlink_components.empty()) {
    return InvalidInput(fmt::format(
        "the matrix shows NVLink, but {} has none: another GPU model must be meant", model.name));
  }
  if (options.nodes > 1 && report.nics.empty() && !options.nic_bandwidth) {
    return InvalidInput(
        fmt::format("{} hosts, but the capture lists no NICs that could join them; capture with "
                    "NICs, give the NICs' bandwidth, or "
                    "describe the cluster in YAML",
                    options.nodes));
  }
  ClusterSpec spec;
  spec.name = options.name;
  spec.description = "from nvidia-smi topo -m";
  HostBuilder builder(report, model, options);
  spec.hosts.push_back({builder.Build(), options.nodes});
  if (options.fabric) {
    spec.fabric = *options.fabric;
  } else if (spec.hosts[0].host.nic_count() > 0) {
    spec.fabric = {"assumed", 1.0, kSpineLatency, Assumed("a non-blocking network was assumed"),
                   AssumedLatency()};
  }
  spec.warnings = report.warnings;
  spec.warnings.insert(spec.warnings.end(), builder.warnings().begin(), builder.warnings().end());
  return Cluster::Make(std::move(spec));
}

}  // namespace meshwright::topologies
