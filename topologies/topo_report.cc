// Facts that follow from a link matrix, and its JSON.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "topologies/parse_nvidia_smi_topo.h"

namespace meshwright::topologies {
namespace {

// More links than any single GPU has: the count must lead to a switch, where all pairs are equal.
constexpr int kMostLinksOfAGpu = 18;

std::vector<std::vector<int>> Components(const TopoReport& report) {
  std::vector<std::vector<int>> components;
  std::vector<bool> seen(static_cast<size_t>(report.gpus), false);
  for (int start = 0; start < report.gpus; ++start) {
    if (seen[static_cast<size_t>(start)]) continue;
    std::vector<int> component{start};
    seen[static_cast<size_t>(start)] = true;
    for (size_t k = 0; k < component.size(); ++k) {
      for (int other = 0; other < report.gpus; ++other) {
        if (!seen[static_cast<size_t>(other)] &&
            report.LinkBetween(component[k], other).kind == TopoLinkKind::kNvlink) {
          seen[static_cast<size_t>(other)] = true;
          component.push_back(other);
        }
      }
    }
    std::sort(component.begin(), component.end());
    if (component.size() > 1) components.push_back(std::move(component));
  }
  return components;
}

// Steps after which a graph counts as hostile; real boards need thousands.
constexpr size_t kMaxWork = 50'000'000;

// Bron-Kerbosch with pivot over the NVLink graph.
class CliqueLister {
 public:
  explicit CliqueLister(const TopoReport& report) : report_(report) {}

  // False if there are too many.
  bool List(std::vector<int> candidates, std::vector<std::vector<int>>& cliques) {
    std::vector<int> clique;
    return Extend(clique, std::move(candidates), {}, cliques);
  }

 private:
  bool Joined(int a, int b) const {
    return report_.LinkBetween(a, b).kind == TopoLinkKind::kNvlink;
  }

  std::vector<int> Neighbours(int of, const std::vector<int>& among) const {
    std::vector<int> result;
    for (const int other : among) {
      if (other != of && Joined(of, other)) result.push_back(other);
    }
    return result;
  }

  bool Extend(std::vector<int>& clique, std::vector<int> candidates, std::vector<int> excluded,
              std::vector<std::vector<int>>& cliques) {
    work_ += (candidates.size() + excluded.size() + 1) * (candidates.size() + 1);
    if (work_ > kMaxWork) return false;
    if (candidates.empty() && excluded.empty()) {
      cliques.push_back(clique);
      std::sort(cliques.back().begin(), cliques.back().end());
      return cliques.size() <= static_cast<size_t>(kMaxListedCliques);
    }
    int pivot = -1;
    size_t best = 0;
    for (const std::vector<int>* side : {&candidates, &excluded}) {
      for (const int node : *side) {
        const size_t degree = Neighbours(node, candidates).size();
        if (pivot < 0 || degree > best) {
          pivot = node;
          best = degree;
        }
        if (best + 1 >= candidates.size()) break;  // no pivot is better
      }
    }
    const std::vector<int> order = candidates;
    for (const int node : order) {
      if (node != pivot && Joined(pivot, node)) continue;
      clique.push_back(node);
      const bool all =
          Extend(clique, Neighbours(node, candidates), Neighbours(node, excluded), cliques);
      clique.pop_back();
      if (!all) return false;
      candidates.erase(std::find(candidates.begin(), candidates.end(), node));
      excluded.push_back(node);
    }
    return true;
  }

  const TopoReport& report_;
  size_t work_ = 0;
};

void FindCliques(TopoReport& report) {
  std::vector<std::vector<int>> cliques;
  CliqueLister lister(report);
  for (size_t c = 0; c < report.nvlink_components.size(); ++c) {
    if (report.component_is_full_mesh[c]) {
      cliques.push_back(report.nvlink_components[c]);
    } else if (!lister.List(report.nvlink_components[c], cliques)) {
      report.maximal_nvlink_cliques.reset();
      report.warnings.push_back(fmt::format(
          "more than {} maximal NVLink cliques; they are not listed", kMaxListedCliques));
      return;
    }
  }
  std::sort(cliques.begin(), cliques.end());
  report.maximal_nvlink_cliques = std::move(cliques);
}

void FindNearestNics(TopoReport& report) {
  report.nearest_nic.clear();
  if (report.nics.empty()) return;
  for (int gpu = 0; gpu < report.gpus; ++gpu) {
    NearestNics nearest;
    int best = 0;
    for (int nic = 0; nic < static_cast<int>(report.nics.size()); ++nic) {
      const TopoLink& link = report.LinkBetween(gpu, report.gpus + nic);
      const int distance = PcieDistance(link.kind);
      if (!nearest.nics.empty() && distance > best) continue;
      if (nearest.nics.empty() || distance < best) {
        best = distance;
        nearest.nics.clear();
        nearest.link_class = ToString(link);
      }
      nearest.nics.push_back(nic);
    }
    report.nearest_nic.push_back(std::move(nearest));
  }
}

// Link counts that hint at links which are down; without the GPU model only these are certain
// enough.
void WarnAboutLinkCounts(TopoReport& report) {
  for (const std::vector<int>& component : report.nvlink_components) {
    int most = 0;
    int highest_sum = 0;
    std::set<int> counts;
    for (const int a : component) {
      highest_sum = std::max(highest_sum, report.nvlink_row_sums[static_cast<size_t>(a)]);
      for (const int b : component) {
        const TopoLink& link = report.LinkBetween(a, b);
        if (link.kind != TopoLinkKind::kNvlink) continue;
        counts.insert(link.nvlinks);
        most = std::max(most, link.nvlinks);
      }
    }
    if (component.size() == 2 && report.gpus == 2 && most == 3) {
      report.warnings.push_back(
          "GPU0 and GPU1 are joined by NV3: two-GPU bridges have 1, 2, 4 or 12 links, so one link "
          "may be "
          "down; check nvidia-smi nvlink --status");
    }
    if (highest_sum <= kMostLinksOfAGpu || counts.size() < 2) continue;
    std::vector<std::string> low;
    for (const int a : component) {
      int row_most = 0;
      for (const int b : component) row_most = std::max(row_most, report.LinkBetween(a, b).nvlinks);
      if (row_most < most) low.push_back(fmt::format("GPU{}", a));
    }
    report.warnings.push_back(
        fmt::format("NVLink counts of one switch differ (most NV{}){}{}; links may be down, check "
                    "nvidia-smi nvlink "
                    "--status",
                    most, low.empty() ? "" : ": fewer at ", fmt::join(low, ", ")));
  }
}

nlohmann::json GpuNames(const std::vector<int>& gpus) {
  nlohmann::json names = nlohmann::json::array();
  for (const int gpu : gpus) names.push_back(fmt::format("GPU{}", gpu));
  return names;
}

nlohmann::json ColumnJson(const TopoColumn& column) {
  if (!column) return nullptr;
  nlohmann::json values = nlohmann::json::object();
  for (size_t i = 0; i < column->size(); ++i) {
    const auto& cell = (*column)[i];
    values[fmt::format("GPU{}", i)] = cell ? nlohmann::json(*cell) : nlohmann::json(nullptr);
  }
  return values;
}

}  // namespace

std::string ToString(const TopoLink& link) {
  switch (link.kind) {
    case TopoLinkKind::kSelf:
      return "X";
    case TopoLinkKind::kNvlink:
      return fmt::format("NV{}", link.nvlinks);
    case TopoLinkKind::kPix:
      return "PIX";
    case TopoLinkKind::kPxb:
      return "PXB";
    case TopoLinkKind::kPhb:
      return "PHB";
    case TopoLinkKind::kNode:
      return "NODE";
    case TopoLinkKind::kSys:
      return "SYS";
    case TopoLinkKind::kSoc:
      return "SOC";
    case TopoLinkKind::kQpi:
      return "QPI";
  }
  return "";
}

int PcieDistance(TopoLinkKind kind) {
  switch (kind) {
    case TopoLinkKind::kSelf:
    case TopoLinkKind::kNvlink:
      return 0;
    case TopoLinkKind::kPix:
      return 1;
    case TopoLinkKind::kPxb:
      return 2;
    case TopoLinkKind::kPhb:
      return 3;
    case TopoLinkKind::kNode:
      return 4;
    case TopoLinkKind::kSys:
    case TopoLinkKind::kSoc:
    case TopoLinkKind::kQpi:
      return 5;
  }
  return 0;
}

void DeriveTopoFacts(TopoReport& report) {
  report.nv_pairs.clear();
  report.non_nvlink_gpu_pairs.clear();
  report.nvlink_row_sums.assign(static_cast<size_t>(report.gpus), 0);
  for (int a = 0; a < report.gpus; ++a) {
    for (int b = 0; b < report.gpus; ++b) {
      const TopoLink& link = report.LinkBetween(a, b);
      report.nvlink_row_sums[static_cast<size_t>(a)] += link.nvlinks;
      if (b <= a) continue;
      if (link.kind == TopoLinkKind::kNvlink) {
        report.nv_pairs[link.nvlinks].emplace_back(a, b);
      } else {
        ++report.non_nvlink_gpu_pairs[ToString(link)];
      }
    }
  }
  report.nvlink_components = Components(report);
  report.component_is_full_mesh.clear();
  for (const std::vector<int>& component : report.nvlink_components) {
    bool full = true;
    for (const int a : component) {
      for (const int b : component) {
        full = full && (a == b || report.LinkBetween(a, b).kind == TopoLinkKind::kNvlink);
      }
    }
    report.component_is_full_mesh.push_back(full);
  }
  FindCliques(report);
  FindNearestNics(report);
  WarnAboutLinkCounts(report);
}

nlohmann::json ToJson(const TopoReport& report) {
  using nlohmann::json;
  json j;
  j["gpus"] = report.gpus;
  j["nics"] = report.nics;
  json links = json::object();
  const int n = report.gpus + static_cast<int>(report.nics.size());
  const auto name = [&](int i) {
    return i < report.gpus ? fmt::format("GPU{}", i)
                           : report.nics[static_cast<size_t>(i - report.gpus)];
  };
  for (int a = 0; a < n; ++a) {
    json& row = links[name(a)] = json::array();
    for (int b = 0; b < n; ++b) {
      const TopoLink& link = report.LinkBetween(a, b);
      const bool unknown = a != b && link.kind == TopoLinkKind::kSelf;
      row.push_back(unknown ? json(nullptr) : json(ToString(link)));
    }
  }
  j["links"] = std::move(links);
  j["nvlink_components"] = json::array();
  for (const auto& component : report.nvlink_components)
    j["nvlink_components"].push_back(GpuNames(component));
  j["component_is_full_mesh"] = report.component_is_full_mesh;
  j["maximal_nvlink_cliques"] = nullptr;
  if (report.maximal_nvlink_cliques) {
    j["maximal_nvlink_cliques"] = json::array();
    for (const auto& clique : *report.maximal_nvlink_cliques) {
      j["maximal_nvlink_cliques"].push_back(GpuNames(clique));
    }
  }
  j["nv_pairs"] = json::object();
  j["nv_pair_counts"] = json::object();
  for (const auto& [count, pairs] : report.nv_pairs) {
    const std::string word = fmt::format("NV{}", count);
    for (const auto& [a, b] : pairs) j["nv_pairs"][word].push_back(fmt::format("{}-{}", a, b));
    j["nv_pair_counts"][word] = pairs.size();
  }
  j["non_nvlink_gpu_pairs"] = report.non_nvlink_gpu_pairs;
  j["nvlinks_listed_per_gpu_row_sum"] = json::object();
  for (int gpu = 0; gpu < report.gpus; ++gpu) {
    j["nvlinks_listed_per_gpu_row_sum"][name(gpu)] =
        report.nvlink_row_sums[static_cast<size_t>(gpu)];
  }
  j["nearest_nic"] = json::object();
  for (size_t gpu = 0; gpu < report.nearest_nic.size(); ++gpu) {
    json nics = json::array();
    for (const int nic : report.nearest_nic[gpu].nics)
      nics.push_back(report.nics[static_cast<size_t>(nic)]);
    j["nearest_nic"][name(static_cast<int>(gpu))] = {{"class", report.nearest_nic[gpu].link_class},
                                                     {"nics", std::move(nics)}};
  }
  j["cpu_affinity"] = ColumnJson(report.cpu_affinity);
  j["numa"] = ColumnJson(report.numa);
  j["gpu_numa_id"] = ColumnJson(report.gpu_numa_id);
  j["nic_legend"] = report.nic_legend;
  j["gpu_names"] = report.gpu_names;
  j["warnings"] = report.warnings;
  return j;
}

std::string ToJsonText(const TopoReport& report) {
  return ToJson(report).dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace meshwright::topologies
