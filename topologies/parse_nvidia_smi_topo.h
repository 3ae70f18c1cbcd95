// Reads what `nvidia-smi topo -m` prints, however it was pasted, and the facts that follow from it.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "topologies/status.h"

namespace meshwright::topologies {

/// How the matrix says two devices are joined, nearest first. SOC and QPI are old words for SYS.
enum class TopoLinkKind : unsigned char {
  kSelf,
  kNvlink,
  kPix,
  kPxb,
  kPhb,
  kNode,
  kSys,
  kSoc,
  kQpi
};

/// One cell of the matrix.
struct TopoLink {
  TopoLinkKind kind = TopoLinkKind::kSelf;
  int nvlinks = 0;  ///< bonded NVLinks, kNvlink only
  friend bool operator==(const TopoLink&, const TopoLink&) = default;
};

/// As printed: "X", "NV18", "PIX", "SOC".
std::string ToString(const TopoLink& link);
/// 1 for PIX … 5 for SYS, SOC and QPI; 0 for self and NVLink.
int PcieDistance(TopoLinkKind kind);

/// A column of text beside the matrix: absent altogether, or per GPU a text or an empty cell.
using TopoColumn = std::optional<std::vector<std::optional<std::string>>>;

/// All NICs of the best class of a GPU, in header order.
struct NearestNics {
  std::string link_class;  ///< "PIX" … "SYS", as printed
  std::vector<int> nics;   ///< positions in TopoReport::nics
  friend bool operator==(const NearestNics&, const NearestNics&) = default;
};

/// Everything that a capture states. GPUs are "GPU0" … in order.
struct TopoReport {
  int gpus = 0;
  std::vector<std::string> nics;  ///< in header order
  /// Row by row over GPUs then NICs, (gpus + nics.size())²; rows that the capture lacks (NICs only)
  /// are filled in from their columns.
  std::vector<TopoLink> links;
  bool nic_links_known = true;  ///< false: some links among NICs are X because nothing states them
  std::vector<std::vector<int>> nvlink_components;  ///< of two and more GPUs
  std::vector<bool> component_is_full_mesh;
  /// Of two and more GPUs, sorted; empty if there are too many to list (a warning says so).
  std::optional<std::vector<std::vector<int>>> maximal_nvlink_cliques;
  std::map<int, std::vector<std::pair<int, int>>> nv_pairs;  ///< by number of links; first < second
  std::map<std::string, int> non_nvlink_gpu_pairs;           ///< by word
  std::vector<int> nvlink_row_sums;                          ///< NVLinks listed in each GPU's row
  std::vector<NearestNics> nearest_nic;                      ///< per GPU; empty without NICs
  TopoColumn cpu_affinity;
  TopoColumn numa;
  TopoColumn gpu_numa_id;
  std::map<std::string, std::string> nic_legend;  ///< "NIC0" → "mlx5_0", where printed
  std::vector<std::string> gpu_names;  ///< from `nvidia-smi -L` lines in the text; "" where unknown
  int first_line = 0;                  ///< of the matrix
  std::vector<std::string> warnings;

  const TopoLink& LinkBetween(int row, int column) const {
    return links[static_cast<size_t>(row) * (static_cast<size_t>(gpus) + nics.size()) +
                 static_cast<size_t>(column)];
  }
};

/// Parses the first complete matrix of the text. Errors name line and reason: no matrix, rows or
/// columns missing or elided, another tool's table, unknown words, an asymmetric matrix, ….
Result<TopoReport> ParseNvidiaSmiTopo(std::string_view text);

/// The report as JSON: the field names of `meshwright topo --json`.
nlohmann::json ToJson(const TopoReport& report);
/// The same as text, indented by two.
std::string ToJsonText(const TopoReport& report);

/// Fills the derived facts (components to nearest NICs) from gpus, nics and links. Part of parsing.
void DeriveTopoFacts(TopoReport& report);

/// Largest group of maximal cliques that is listed.
inline constexpr int kMaxListedCliques = 4096;

}  // namespace meshwright::topologies
