// Texts that look like nvidia-smi topo -m but are something else, and what to say about them.
#include <fmt/format.h>

#include <utility>

#include "topologies/topo_header.h"

namespace meshwright::topologies {

std::string MeaningOfForeignWord(std::string_view word) {
  if (word.find("...") != std::string_view::npos ||
      word.find("\xE2\x80\xA6") != std::string_view::npos) {
    return "the matrix is elided; capture it whole";
  }
  for (const std::string_view other : {"OK", "CNS", "GNS", "TNS", "NS", "U", "DR", "CNSOK"}) {
    if (word == other) {
      return "this is a peer-to-peer capability matrix (nvidia-smi topo -p2p), not a link matrix; "
             "capture nvidia-smi topo -m";
    }
  }
  if (word == "XGMI" || word == "XXXX" || word == "PCIE") {
    return "this looks like AMD rocm-smi output, not nvidia-smi topo -m";
  }
  if (word == "HCCS" || word == "SIO" || word == "HCCS_SW") {
    return "this looks like Ascend npu-smi output, not nvidia-smi topo -m";
  }
  return "link words are X, NV<count>, PIX, PXB, PHB, NODE, SYS, SOC, QPI";
}

std::optional<Status> FindForeignTool(const std::vector<TextLine>& lines) {
  static constexpr std::pair<std::string_view, std::string_view> kMarks[] = {
      {"XGMI", "AMD rocm-smi output (XGMI links)"},
      {"rocm-smi", "AMD rocm-smi output"},
      {"Weight between two GPUs", "AMD rocm-smi output"},
      {"npu-smi", "Ascend npu-smi output"},
      {"HCCS", "Ascend npu-smi output (HCCS links)"},
      {"MTHREADS", "a table of Moore Threads devices"},
      {"mthreads", "a table of Moore Threads devices"},
      {"| Device 0 |", "a table of another tool"}};
  for (const TextLine& line : lines) {
    for (const auto& [mark, meaning] : kMarks) {
      if (line.text.find(mark) == std::string::npos) continue;
      return InvalidInput(
          fmt::format("line {}: this is {}, not nvidia-smi topo -m; only NVIDIA link "
                      "matrices are read",
                      line.number, meaning));
    }
  }
  return std::nullopt;
}

Status NoMatrix(const std::vector<TextLine>& lines) {
  for (const TextLine& line : lines) {
    if (Lower(line.text).find("error") != std::string::npos) {
      return InvalidInput(
          fmt::format("no matrix of nvidia-smi topo -m in the text; line {} says '{}'", line.number,
                      Quoted(Trim(line.text), 100)));
    }
  }
  return InvalidInput(fmt::format(
      "no matrix of nvidia-smi topo -m in the {} lines of the text: no header with GPU0 was found",
      lines.size()));
}

}  // namespace meshwright::topologies
