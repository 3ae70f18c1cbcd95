#include "topologies/topo_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace meshwright::topologies {
namespace {

constexpr size_t kMaxColumns = 1024;

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

bool IsElided(std::string_view word) {
  return word.find("...") != std::string_view::npos ||
         word.find("\xE2\x80\xA6") != std::string_view::npos;
}

size_t SkipDigits(std::string_view text, size_t at) {
  while (at < text.size() && IsDigit(text[at])) ++at;
  return at;
}

// Length of a name of known form at the start: GPU3, NIC11, mlx5_2, mlx5_bond_0; 0 if none.
size_t KnownNameLength(std::string_view text) {
  for (const std::string_view prefix : {"GPU", "NIC"}) {
    if (text.substr(0, 3) != prefix) continue;
    const size_t end = SkipDigits(text, 3);
    return end > 3 ? end : 0;
  }
  if (text.substr(0, 3) != "mlx") return 0;
  size_t at = SkipDigits(text, 3);
  if (text.substr(at, 6) == "_bond_") at += 5;
  if (at == 3 || at >= text.size() || text[at] != '_') return 0;
  const size_t end = SkipDigits(text, at + 1);
  return end > at + 1 ? end : 0;
}

// Names that a word consists of; more than one if they lost the space between them.
std::vector<std::string_view> SplitGluedNames(std::string_view word) {
  std::vector<std::string_view> names;
  for (std::string_view rest = word; !rest.empty();) {
    const size_t length = KnownNameLength(rest);
    if (length == 0) return {word};
    names.push_back(rest.substr(0, length));
    rest.remove_prefix(length);
  }
  return names;
}

// Device names hold a digit; this keeps words of sentences and link words out.
bool IsDeviceName(std::string_view word) {
  if (word.size() > 64 || word.empty() || std::isalpha(static_cast<unsigned char>(word[0])) == 0) {
    return false;
  }
  bool digit = false;
  for (const char c : word) {
    digit = digit || IsDigit(c);
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '.' && c != '-')
      return false;
  }
  size_t length = 0;
  LexTopoLink(word, length);
  return digit && length == 0;
}

bool IsPartOfAffinityTitle(std::string_view word) {
  for (const std::string_view title : {"Affinity", "NUMA", "CPU", "GPU", "ID"}) {
    if (title.substr(0, word.size()) == word) return true;
  }
  return false;
}

// Puts a space before affinity titles that are glued to what stands before them.
std::string SpreadTitles(std::string_view text) {
  std::string spread(text);
  for (const std::string_view title :
       {"CPU Affinity", "CPUAffinity", "NUMA Affinity", "GPU NUMA ID"}) {
    const size_t at = spread.find(title);
    if (at != std::string::npos) spread.insert(at, " ");
  }
  return spread;
}

// Takes an affinity title that starts at words[i]; returns how many words it has, 0 for none.
size_t TakeTitle(const std::vector<std::string_view>& words, size_t i,
                 std::vector<TopoAffinity>& affinity) {
  const auto is = [&](size_t k, std::string_view word) {
    return i + k < words.size() && words[i + k] == word;
  };
  if (is(0, "CPUAffinity")) {
    affinity.push_back(TopoAffinity::kCpu);
    return 1;
  }
  if (is(0, "CPU") && is(1, "Affinity")) {
    affinity.push_back(TopoAffinity::kCpu);
    return 2;
  }
  if (is(0, "NUMA") && is(1, "Affinity")) {
    affinity.push_back(TopoAffinity::kNuma);
    return 2;
  }
  if (is(0, "GPU") && is(1, "NUMA") && is(2, "ID")) {
    affinity.push_back(TopoAffinity::kGpuNumaId);
    return 3;
  }
  return 0;
}

Status ReadNames(const std::vector<std::string_view>& words, TopoHeader& header) {
  const auto where = [&] { return fmt::format("line {}, header", header.line); };
  for (size_t i = 0; i < words.size();) {
    if (IsElided(words[i])) {
      return InvalidInput(where() + ": columns are elided ('...'), not a matrix; capture it whole");
    }
    if (const size_t taken = TakeTitle(words, i, header.affinity); taken > 0) {
      i += taken;
      continue;
    }
    const auto parts = SplitGluedNames(words[i++]);
    if (parts.size() > 1) {
      header.warnings.push_back(fmt::format("{}: '{}' was split into {} names", where(),
                                            Quoted(words[i - 1]), parts.size()));
    }
    for (const std::string_view name : parts) {
      if (!IsDeviceName(name) || !header.affinity.empty()) {
        return InvalidInput(
            fmt::format("{}: '{}' is no GPU, NIC or affinity title", where(), Quoted(name)));
      }
      if (!header.index.emplace(name, static_cast<int>(header.names.size())).second) {
        return InvalidInput(fmt::format("{}: {} stands twice", where(), Quoted(name)));
      }
      header.names.emplace_back(name);
      if (header.names.size() > kMaxColumns) {
        return InvalidInput(fmt::format("{}: more than {} columns", where(), kMaxColumns));
      }
    }
  }
  return Status::Ok();
}

Status CountGpus(TopoHeader& header) {
  for (const std::string& name : header.names) {
    const bool is_gpu = name.substr(0, 3) == "GPU" && KnownNameLength(name) == name.size();
    if (!is_gpu) continue;
    if (name != fmt::format("GPU{}", header.gpus) ||
        name != header.names[static_cast<size_t>(header.gpus)]) {
      return InvalidInput(fmt::format(
          "line {}, header: {} stands where GPU{} belongs; GPUs come first, without gaps",
          header.line, Quoted(name), header.gpus));
    }
    ++header.gpus;
  }
  if (header.gpus == 0) {
    return InvalidInput(fmt::format("line {}, header: '{}' stands where GPU0 belongs", header.line,
                                    Quoted(header.names.empty() ? "" : header.names[0])));
  }
  return Status::Ok();
}

// A row of GPU0: its label, then the X of its own column.
bool IsFirstRow(std::string_view line) {
  const auto words = SplitWords(line);
  return words.size() >= 2 && words[0] == "GPU0" && !IsDeviceName(words[1]) &&
         !IsPartOfAffinityTitle(words[1]);
}

}  // namespace

TopoLink LexTopoLink(std::string_view text, size_t& length) {
  static constexpr std::pair<std::string_view, TopoLinkKind> kWords[] = {
      {"NODE", TopoLinkKind::kNode}, {"SYS", TopoLinkKind::kSys}, {"PIX", TopoLinkKind::kPix},
      {"PXB", TopoLinkKind::kPxb},   {"PHB", TopoLinkKind::kPhb}, {"SOC", TopoLinkKind::kSoc},
      {"QPI", TopoLinkKind::kQpi},   {"X", TopoLinkKind::kSelf}};
  length = 0;
  if (text.size() >= 3 && text[0] == 'N' && text[1] == 'V' && IsDigit(text[2])) {
    int links = 0;
    length = 2;
    while (length < text.size() && IsDigit(text[length]) && links <= kMaxBondedNvlinks) {
      links = links * 10 + (text[length++] - '0');
    }
    return {TopoLinkKind::kNvlink, links};
  }
  for (const auto& [word, kind] : kWords) {
    if (text.substr(0, word.size()) == word) {
      length = word.size();
      return {kind, 0};
    }
  }
  return {};
}

std::optional<size_t> FindTopoHeader(std::string_view line) {
  size_t at = line.find("GPU0");
  while (at != std::string_view::npos && at > 0 &&
         std::isalnum(static_cast<unsigned char>(line[at - 1])) != 0) {
    at = line.find("GPU0", at + 1);
  }
  if (at == std::string_view::npos || line.substr(0, at).find('|') != std::string_view::npos) {
    return std::nullopt;
  }
  const std::string titled = SpreadTitles(line.substr(at));
  for (const std::string_view word : SplitWords(titled)) {
    if (!IsElided(word) && !IsDeviceName(word) && !IsPartOfAffinityTitle(word)) return std::nullopt;
  }
  return at;
}

Result<std::optional<TopoHeader>> ReadTopoHeader(const std::vector<TextLine>& lines, size_t at) {
  const auto start = FindTopoHeader(lines[at].text);
  if (!start) return std::optional<TopoHeader>();
  std::string text = lines[at].text.substr(*start);
  TopoHeader header;
  header.line = lines[at].number;
  // A narrow terminal breaks the header; its parts run up to the row of GPU0.
  size_t next = at + 1;
  for (; next < lines.size() && next < at + 1 + kMaxBrokenLines; ++next) {
    const std::string& more = lines[next].text;
    if (IsBlank(more) || IsFirstRow(more) || !FindTopoHeader(text + more) || FindTopoHeader(more))
      break;
    text += more;
  }
  header.first_row = next;
  const std::string titled = SpreadTitles(text);
  MW_RETURN_IF_ERROR(ReadNames(SplitWords(titled), header));
  MW_RETURN_IF_ERROR(CountGpus(header));
  return std::optional<TopoHeader>(std::move(header));
}

std::optional<TopoRowLabel> FindTopoRow(std::string_view line, const TopoHeader& header) {
  constexpr int kMaxPrefixWords = 6;  // time stamp, host, rank, level, ...
  int position = 0;
  for (const std::string_view word : SplitWords(line.substr(0, 512))) {
    if (position > kMaxPrefixWords) break;
    const auto it = header.index.find(std::string(word));
    const auto after = static_cast<size_t>(word.data() - line.data()) + word.size();
    if (it != header.index.end()) {
      const std::string_view rest = line.substr(after);
      size_t length = 0;
      LexTopoLink(Trim(rest), length);
      if (position == 0 || length > 0) return TopoRowLabel{it->second, rest};
    }
    ++position;
  }
  return std::nullopt;
}

void ReadTopoNotes(const std::vector<TextLine>& lines, TopoReport& report) {
  bool legend = false;
  bool mig = false;
  for (const TextLine& line : lines) {
    const std::string_view text = Trim(line.text);
    legend = legend || text.substr(0, 10) == "NIC Legend";
    const size_t colon = text.find(": ");
    if (colon == std::string_view::npos) continue;
    const std::string_view value = Trim(text.substr(colon + 2));
    const size_t name = text.substr(0, 3) == "NIC" ? KnownNameLength(text) : 0;
    if (legend && name == colon && !value.empty() && SplitWords(value).size() == 1) {
      report.nic_legend.emplace(text.substr(0, colon), value);
    }
    // GPU 3: NVIDIA H100 80GB HBM3 (UUID: ...)
    const size_t uuid = value.find(" (UUID:");
    if (uuid == std::string_view::npos) continue;
    if (text.substr(0, 4) == "MIG ") mig = true;
    if (text.substr(0, 4) != "GPU " || SkipDigits(text, 4) != colon || colon > 8 || colon == 4)
      continue;
    size_t gpu = 0;
    for (const char c : text.substr(4, colon - 4)) gpu = gpu * 10 + static_cast<size_t>(c - '0');
    if (gpu >= static_cast<size_t>(report.gpus)) continue;
    report.gpu_names.resize(static_cast<size_t>(report.gpus));
    report.gpu_names[gpu] = std::string(value.substr(0, uuid));
  }
  if (mig) {
    report.warnings.push_back(
        "MIG devices are listed: the matrix shows whole GPUs, and NVLink is off between MIG "
        "devices");
  }
}

}  // namespace meshwright::topologies
