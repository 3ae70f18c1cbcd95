// meshwright topo: what a machine or cluster is, and what is wrong with it.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "tools/commands.h"
#include "tools/resolve.h"
#include "tools/topo_view.h"
#include "topologies/cluster_io.h"
#include "topologies/parse_nvidia_smi_topo.h"
#include "topologies/text.h"

namespace meshwright::tools {
namespace {

// As the parser allows; larger input is no topology.
constexpr size_t kMaxInputBytes = size_t{16} << 20;

struct TopoArguments {
  std::string source;
  bool local = false;
  bool dot = false;
  std::optional<int64_t> nodes;
  std::string gpu;
};

Result<std::string> ReadStandardInput() {
  std::string text;
  char buffer[4096];
  size_t n = 0;
  while ((n = std::fread(buffer, 1, sizeof(buffer), stdin)) > 0) {
    text.append(buffer, n);
    if (text.size() > kMaxInputBytes) {
      return InvalidInput(fmt::format(
          "standard input: more than {} bytes; no topology is that long", kMaxInputBytes));
    }
  }
  return text;
}

/// Text of a topology capture; none where the source is a cluster (YAML, shipped name, `cpu`).
Result<std::optional<std::string>> CaptureText(const TopoArguments& a) {
  if (a.local || a.source == "local") {
    MW_ASSIGN_OR_RETURN(std::string text, LocalTopology());
    return std::optional<std::string>(std::move(text));
  }
  if (a.source == "-") {
    MW_ASSIGN_OR_RETURN(std::string text, ReadStandardInput());
    return std::optional<std::string>(std::move(text));
  }
  std::error_code error;
  const auto shipped = topologies::ShippedClusterNames();
  const bool is_shipped = std::find(shipped.begin(), shipped.end(), a.source) != shipped.end();
  if (is_shipped || a.source == "cpu" || !std::filesystem::exists(a.source, error))
    return std::optional<std::string>();
  const std::string ending =
      topologies::Lower(std::filesystem::path(a.source).extension().string());
  if (ending == ".yaml" || ending == ".yml") return std::optional<std::string>();
  MW_ASSIGN_OR_RETURN(std::string text, topologies::ReadTextFile(a.source, kMaxInputBytes));
  if (text.find("meshwright_cluster") != std::string::npos) return std::optional<std::string>();
  return std::optional<std::string>(std::move(text));
}

std::string NameOf(const TopoArguments& a) {
  if (a.local || a.source == "local") return "local";
  return a.source == "-" ? "stdin" : std::filesystem::path(a.source).stem().string();
}

void ShowWarnings(const std::vector<std::string>& warnings, const std::vector<std::string>& notes,
                  Output& output) {
  const Style& style = output.style();
  for (const std::string& warning : warnings) {
    output.Text(fmt::format("{}warning:{} {}\n", style.yellow, style.off, warning));
  }
  for (const std::string& note : notes) output.Text(fmt::format("note: {}\n", note));
}

Status ShowCluster(const TopoArguments& a, const topologies::Cluster& cluster, Output& output) {
  output.document() = ClusterJson(cluster);
  if (a.dot) {
    output.document()["dot"] = cluster.ToDot();
    output.Text(cluster.ToDot());
  } else {
    output.Text(ClusterText(cluster, output.style()));
    ShowWarnings(cluster.warnings(), {}, output);
  }
  return Status::Ok();
}

Status ShowCapture(const TopoArguments& a, const std::string& text, Output& output) {
  const std::string source = NameOf(a) == "stdin" ? "standard input" : a.local ? "local" : a.source;
  const auto report = topologies::ParseNvidiaSmiTopo(text);
  if (!report.ok()) return report.status().WithContext(source);
  topologies::TopoOptions options;
  options.name = NameOf(a);
  options.gpu = a.gpu;
  options.nodes = static_cast<int>(a.nodes.value_or(1));
  const auto cluster = topologies::ClusterFromTopo(*report, options);
  if (a.dot) {
    if (!cluster.ok()) return cluster.status().WithContext(source);
    return ShowCluster(a, *cluster, output);
  }
  if (!a.gpu.empty() && !cluster.ok()) return cluster.status().WithContext(source);
  output.document() = topologies::ToJson(*report);
  output.document()["notes"] = TopoNotes(*report);
  output.Text(TopoText(*report, output.style()));
  if (cluster.ok()) {
    output.Text(ClusterText(*cluster, output.style()));
  } else {
    output.Text(
        "  the capture does not name a known GPU model: pass --gpu MODEL to see bandwidths\n");
  }
  // The cluster's warnings begin with the capture's.
  ShowWarnings(cluster.ok() ? cluster->warnings() : report->warnings, TopoNotes(*report), output);
  return Status::Ok();
}

Status Topo(const TopoArguments& a, Output& output) {
  if (a.local == !a.source.empty()) {
    return InvalidInput(
        a.local ? fmt::format("both '{}' and --local; name one of them", a.source)
                : "name a file, '-' for standard input, a shipped cluster, or pass --local");
  }
  MW_ASSIGN_OR_RETURN(const std::optional<std::string> capture, CaptureText(a));
  if (capture) return ShowCapture(a, *capture, output);
  ClusterOptions options;
  options.cluster = a.source;
  options.nodes = a.nodes;
  options.gpu = a.gpu;
  if (a.source == "cpu") {
    MW_ASSIGN_OR_RETURN(const Machine machine, ResolveMachine(options, 0, output));
    return ShowCluster(a, machine.cluster, output);
  }
  topologies::ResolveOptions resolve;
  if (a.nodes) resolve.nodes = static_cast<int>(*a.nodes);
  resolve.gpu = a.gpu;
  MW_ASSIGN_OR_RETURN(const topologies::Cluster cluster,
                      topologies::ResolveCluster(a.source, resolve));
  return ShowCluster(a, cluster, output);
}

}  // namespace

Command TopoCommand() {
  auto arguments = std::make_shared<TopoArguments>();
  return {"topo", "what a machine or cluster is: links, islands, NICs, and what is wrong with it",
          [arguments](OptionSet& options) {
            options.Positional("source", &arguments->source,
                               "capture of 'nvidia-smi topo -m', '-' for standard input, YAML "
                               "file, shipped name, 'cpu'");
            options.Flag("--local", &arguments->local, "ask nvidia-smi on this machine");
            options.Flag("--dot", &arguments->dot,
                         "print the graph for Graphviz (its GPU model must be known)");
            options.Int("--nodes", &arguments->nodes, {1, 1 << 20}, "equal hosts");
            options.Text("--gpu", &arguments->gpu, "MODEL",
                         "GPU model of a capture that does not name it");
          },
          [arguments](Output& output) { return Topo(*arguments, output); }};
}

}  // namespace meshwright::tools
