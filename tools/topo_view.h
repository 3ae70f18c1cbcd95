// Captures and clusters as text and JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/output.h"
#include "topologies/cluster.h"
#include "topologies/parse_nvidia_smi_topo.h"

namespace meshwright::tools {

/// Islands, GPUs with links, NICs and NUMA nodes of a capture.
std::string TopoText(const topologies::TopoReport& report, const Style& style);

/// What the matrix does not prove, a sentence each: peer access between GPUs joined over PCIe.
std::vector<std::string> TopoNotes(const topologies::TopoReport& report);

/// Hosts, devices, islands, what groups of devices can do, and where the numbers come from.
std::string ClusterText(const topologies::Cluster& cluster, const Style& style);
nlohmann::json ClusterJson(const topologies::Cluster& cluster);

}  // namespace meshwright::tools
