// Finding header and row labels of a topo matrix in noisy text. Used by the parser only.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "topologies/parse_nvidia_smi_topo.h"
#include "topologies/status.h"
#include "topologies/text.h"

namespace meshwright::topologies {

enum class TopoAffinity { kCpu, kNuma, kGpuNumaId };

struct TopoHeader {
  int line = 0;
  size_t first_row = 0;  ///< index of the first line after the header
  int gpus = 0;
  std::vector<std::string> names;              ///< GPU0 …, then NICs
  std::unordered_map<std::string, int> index;  ///< of a name
  std::vector<TopoAffinity> affinity;
  std::vector<std::string> warnings;
};

/// The header that starts on line `at`: none if that line is no header; an error if it is one that
/// cannot be used (elided, GPUs out of order, names twice).
Result<std::optional<TopoHeader>> ReadTopoHeader(const std::vector<TextLine>& lines, size_t at);

/// Position of GPU0 if the line looks like a header.
std::optional<size_t> FindTopoHeader(std::string_view line);

/// The link word that `text` starts with and its length; length 0 if it starts with none.
TopoLink LexTopoLink(std::string_view text, size_t& length);

/// NVLinks in one cell that are still believed; two digits tell a count from a glued number.
inline constexpr int kMaxBondedNvlinks = 99;

/// Lines that one header or row may be broken over.
inline constexpr int kMaxBrokenLines = 64;

struct TopoRowLabel {
  int index = 0;          ///< in TopoHeader::names
  std::string_view rest;  ///< of the line, after the label
};

/// The row of `header` that the line starts, after an optional log prefix.
std::optional<TopoRowLabel> FindTopoRow(std::string_view line, const TopoHeader& header);

/// Reads the NIC legend and `nvidia-smi -L` lines around the matrix.
void ReadTopoNotes(const std::vector<TextLine>& lines, TopoReport& report);

/// What a word that is no link word says about the text ("this looks like AMD rocm-smi output,
/// ...").
std::string MeaningOfForeignWord(std::string_view word);

/// The refusal for text of another tool, naming the line that gives it away.
std::optional<Status> FindForeignTool(const std::vector<TextLine>& lines);

/// The refusal for text without any header; quotes an error line if there is one.
Status NoMatrix(const std::vector<TextLine>& lines);

}  // namespace meshwright::topologies
