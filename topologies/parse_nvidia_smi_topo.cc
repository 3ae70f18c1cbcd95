#include "topologies/parse_nvidia_smi_topo.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "topologies/text.h"
#include "topologies/topo_header.h"

namespace meshwright::topologies {
namespace {

constexpr size_t kMaxBytes = size_t{4} << 20;

bool IsSpace(char c) {
  return c == ' ' || c == '\t';
}

// The cells of one row and the text after them.
struct Row {
  int line = 0;
  int index = 0;  // of its device
  std::vector<TopoLink> cells;
  std::string rest;
  bool had_glued = false;
  bool cut_word = false;  // the last word, now in `rest`, is no link word
};

// Reads matrix rows below one header.
class BlockParser {
 public:
  BlockParser(const std::vector<TextLine>& lines, TopoHeader header)
      : lines_(lines), header_(std::move(header)), rows_(header_.names.size()) {}

  // The report of this block, or why it is none. `next()` is the first line after it in both cases.
  Result<TopoReport> Parse();
  size_t next() const { return next_; }
  int rows_found() const { return rows_found_; }

 private:
  Status ReadRow(size_t& at);
  Result<Row> LexRow(int line, int index, std::string_view text) const;
  Status UnknownWord(int line, int index, size_t column, std::string_view text) const;
  Status CheckComplete();
  Status CheckMatrix() const;
  Status ReadAffinity(TopoReport& report);
  Result<std::vector<std::optional<std::string>>> AffinityCells(const Row& row) const;
  bool StopsBlock(std::string_view text) const;
  bool ContinuesRow(const Result<Row>& row, const std::string& next) const;

  const std::string& Name(size_t i) const { return header_.names[i]; }

  const std::vector<TextLine>& lines_;
  TopoHeader header_;
  std::vector<std::optional<Row>> rows_;
  std::vector<std::string> warnings_;
  size_t next_ = 0;
  int rows_found_ = 0;
};

Status BlockParser::UnknownWord(int line, int index, size_t column, std::string_view text) const {
  const auto words = SplitWords(text);
  const std::string_view word = words.empty() ? text : words[0];
  return InvalidInput(fmt::format("line {}, row {}: under {} stands '{}'; {}", line,
                                  Name(static_cast<size_t>(index)), Name(column), Quoted(word),
                                  MeaningOfForeignWord(word)));
}

// Cells by known words, so that cells which lost the space between them come apart again.
Result<Row> BlockParser::LexRow(int line, int index, std::string_view text) const {
  Row row{line, index, {}, {}, false, false};
  const size_t wanted = header_.names.size();
  row.cells.reserve(wanted);
  size_t at = 0;
  bool after_word = false;
  while (row.cells.size() < wanted) {
    const size_t start = at;
    while (at < text.size() && IsSpace(text[at])) ++at;
    if (at == text.size()) break;
    size_t length = 0;
    const TopoLink link = LexTopoLink(text.substr(at), length);
    const size_t column = row.cells.size();
    if (length == 0 && std::all_of(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(),
                                   [](char c) { return !IsSpace(c); })) {
      row.cut_word = true;  // the next line may complete it
      break;
    }
    if (length == 0) return UnknownWord(line, index, column, text.substr(at));
    if (link.kind == TopoLinkKind::kNvlink &&
        (link.nvlinks == 0 || link.nvlinks > kMaxBondedNvlinks)) {
      return InvalidInput(
          fmt::format("line {}, row {}: {} under {} is no number of links (1 to {})", line,
                      Name(static_cast<size_t>(index)), Quoted(text.substr(at, length)),
                      Name(column), kMaxBondedNvlinks));
    }
    row.had_glued = row.had_glued || (after_word && start == at);
    row.cells.push_back(link);
    at += length;
    after_word = true;
  }
  row.rest = std::string(text.substr(std::min(at, text.size())));
  if (row.cells.size() == wanted && !row.rest.empty() && !IsSpace(row.rest[0])) {
    size_t length = 0;
    LexTopoLink(row.rest, length);
    if (length == 0) return UnknownWord(line, index, wanted - 1, text.substr(at - 1));
  }
  return row;
}

bool BlockParser::StopsBlock(std::string_view text) const {
  const std::string_view line = Trim(text);
  return line.substr(0, 6) == "Legend" || line.substr(0, 3) == "```" ||
         FindTopoHeader(text).has_value();
}

// Whether `next` may be the rest of a row that a terminal broke: the row so far wants more, and
// the line starts nothing of its own.
bool BlockParser::ContinuesRow(const Result<Row>& row, const std::string& next) const {
  if (IsBlank(next) || StopsBlock(next) || FindTopoRow(next, header_)) return false;
  if (!row.ok()) return false;
  if (row->cut_word || row->cells.size() < header_.names.size()) return true;
  if (row->index >= header_.gpus || row->rest.find('\t') != std::string::npos) return false;
  return SplitWords(row->rest).size() < header_.affinity.size() &&
         next.find_first_not_of("0123456789-, \tN/A") == std::string::npos;
}

// Reads the row at `at` (a row label stands there) and lines that a terminal broke off from it.
Status BlockParser::ReadRow(size_t& at) {
  const TopoRowLabel label = *FindTopoRow(lines_[at].text, header_);
  const int line = lines_[at].number;
  std::string text(label.rest);
  ++at;
  Result<Row> row = LexRow(line, label.index, text);
  for (int part = 1;
       part < kMaxBrokenLines && at < lines_.size() && ContinuesRow(row, lines_[at].text); ++part) {
    Result<Row> longer = LexRow(line, label.index, text + lines_[at].text);
    if (!longer.ok()) break;
    text += lines_[at].text;
    row = std::move(longer);
    ++at;
  }
  MW_RETURN_IF_ERROR(row.status());
  if (row->cut_word) return UnknownWord(line, label.index, row->cells.size(), row->rest);
  const std::string& name = Name(static_cast<size_t>(label.index));
  if (row->cells.size() < header_.names.size()) {
    return InvalidInput(
        fmt::format("line {}, row {}: {} cells under {} columns ({} is the first without one); the "
                    "capture is cut "
                    "or lost a cell",
                    line, name, row->cells.size(), header_.names.size(), Name(row->cells.size())));
  }
  size_t length = 0;
  const std::string_view rest = Trim(row->rest);
  const TopoLink extra = LexTopoLink(rest, length);
  if (length > 0 && (extra.kind != TopoLinkKind::kSelf || rest.size() == 1 || IsSpace(rest[1]))) {
    return InvalidInput(fmt::format(
        "line {}, row {}: more link words than the {} columns of the header on line {} ('{}' is "
        "left "
        "over); the header lost a column",
        line, name, header_.names.size(), header_.line, Quoted(rest.substr(0, length))));
  }
  std::optional<Row>& slot = rows_[static_cast<size_t>(label.index)];
  if (slot) {
    return InvalidInput(
        fmt::format("line {}: row {} stands twice (first on line {})", line, name, slot->line));
  }
  if (row->had_glued) {
    warnings_.push_back(
        fmt::format("line {}, row {}: cells without space between them were split by "
                    "their words",
                    line, name));
  }
  slot = std::move(row).value();
  ++rows_found_;
  return Status::Ok();
}

Status BlockParser::CheckComplete() {
  std::vector<std::string> missing_gpus;
  std::vector<std::string> missing_nics;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i]) continue;
    (i < static_cast<size_t>(header_.gpus) ? missing_gpus : missing_nics).push_back(Name(i));
  }
  if (!missing_gpus.empty()) {
    const size_t count = missing_gpus.size();
    if (count > 8) missing_gpus.resize(8);
    return InvalidInput(fmt::format(
        "line {}: the header lists {} GPUs but {} {} missing: {}{}; capture the whole matrix",
        header_.line, header_.gpus, count, count == 1 ? "row is" : "rows are",
        fmt::join(missing_gpus, ", "), count > 8 ? ", ..." : ""));
  }
  if (!missing_nics.empty()) {
    warnings_.push_back(
        fmt::format("rows of {} of {} NICs are missing; their links to GPUs were taken "
                    "from the GPU rows, links among them are unknown",
                    missing_nics.size(), rows_.size() - static_cast<size_t>(header_.gpus)));
  }
  return Status::Ok();
}

Status BlockParser::CheckMatrix() const {
  const auto gpus = static_cast<size_t>(header_.gpus);
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (!rows_[i]) continue;
    const std::string where = fmt::format("line {}, row {}", rows_[i]->line, Name(i));
    for (size_t j = 0; j < rows_.size(); ++j) {
      const TopoLink& link = rows_[i]->cells[j];
      if (i == j && link.kind != TopoLinkKind::kSelf) {
        return InvalidInput(
            fmt::format("{}: under itself stands {} instead of X; a cell is lost or added", where,
                        ToString(link)));
      }
      if (i != j && link.kind == TopoLinkKind::kSelf) {
        return InvalidInput(
            fmt::format("{}: X (itself) stands under {}; a cell is lost or added", where, Name(j)));
      }
      if (link.kind == TopoLinkKind::kNvlink && (i >= gpus || j >= gpus)) {
        return InvalidInput(fmt::format("{}: {} under {}, but NVLink joins GPUs only", where,
                                        ToString(link), Name(j)));
      }
      if (rows_[j] && rows_[j]->cells[i] != link) {
        return InvalidInput(fmt::format(
            "{}: {} under {}, but row {} (line {}) has {} under {}; a link matrix is symmetric",
            where, ToString(link), Name(j), Name(j), rows_[j]->line, ToString(rows_[j]->cells[i]),
            Name(i)));
      }
    }
  }
  return Status::Ok();
}

// The texts beside the matrix, one per affinity column; empty cells stay empty.
Result<std::vector<std::optional<std::string>>> BlockParser::AffinityCells(const Row& row) const {
  const size_t columns = header_.affinity.size();
  std::vector<std::optional<std::string>> cells(columns);
  const std::vector<std::string_view> words = SplitWords(row.rest);
  const std::string where =
      fmt::format("line {}, row {}", row.line, Name(static_cast<size_t>(row.index)));
  if (words.size() > columns) {
    return InvalidInput(
        fmt::format("{}: {} values after the links but {} affinity columns in the header", where,
                    words.size(), columns));
  }
  if (words.size() == columns) {
    std::copy(words.begin(), words.end(), cells.begin());
    return cells;
  }
  if (words.empty()) return cells;
  if (row.rest.find('\t') == std::string::npos) {
    return InvalidInput(
        fmt::format("{}: {} values for {} affinity columns and no tabs that tell which is empty; "
                    "capture with tabs",
                    where, words.size(), columns));
  }
  std::vector<std::string_view> parts = SplitAt(row.rest, '\t');
  parts.erase(parts.begin());  // up to the tab that ends the last link
  while (parts.size() > columns && IsBlank(parts.back())) parts.pop_back();
  // nvidia-smi pads with empty cells before the last column; drop what is too much, from the right.
  for (size_t i = parts.size(); i-- > 0 && parts.size() > columns;) {
    if (IsBlank(parts[i])) parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (size_t i = 0; i < parts.size() && i < columns; ++i) {
    if (!IsBlank(parts[i])) cells[i] = std::string(Trim(parts[i]));
  }
  return cells;
}

Status BlockParser::ReadAffinity(TopoReport& report) {
  std::vector<TopoColumn*> columns;
  for (const TopoAffinity kind : header_.affinity) {
    TopoColumn& column = kind == TopoAffinity::kCpu    ? report.cpu_affinity
                         : kind == TopoAffinity::kNuma ? report.numa
                                                       : report.gpu_numa_id;
    column.emplace();
    columns.push_back(&column);
  }
  bool dropped = false;
  for (size_t i = 0; i < static_cast<size_t>(report.gpus); ++i) {
    if (columns.empty()) {
      dropped = dropped || !IsBlank(rows_[i]->rest);
      continue;
    }
    MW_ASSIGN_OR_RETURN(const auto cells, AffinityCells(*rows_[i]));
    for (size_t c = 0; c < columns.size(); ++c) (*columns[c])->push_back(cells[c]);
  }
  if (dropped) {
    warnings_.push_back(fmt::format(
        "line {}: the header has no affinity columns; values after the links were left out",
        header_.line));
  }
  return Status::Ok();
}

Result<TopoReport> BlockParser::Parse() {
  size_t at = header_.first_row;
  next_ = at;
  while (at < lines_.size() && rows_found_ < static_cast<int>(rows_.size())) {
    if (StopsBlock(lines_[at].text)) {
      break;
    } else if (FindTopoRow(lines_[at].text, header_)) {
      const Status status = ReadRow(at);
      next_ = at;
      MW_RETURN_IF_ERROR(status);
    } else {
      ++at;
    }
  }
  next_ = std::max(at, header_.first_row);
  MW_RETURN_IF_ERROR(CheckComplete());
  MW_RETURN_IF_ERROR(CheckMatrix());
  TopoReport report;
  report.gpus = header_.gpus;
  report.nics.assign(header_.names.begin() + header_.gpus, header_.names.end());
  report.first_line = header_.line;
  MW_RETURN_IF_ERROR(ReadAffinity(report));
  const size_t n = rows_.size();
  report.links.resize(n * n);
  report.nic_links_known = true;
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      if (rows_[i]) {
        report.links[i * n + j] = rows_[i]->cells[j];
      } else if (rows_[j]) {
        report.links[i * n + j] = rows_[j]->cells[i];
      } else if (i != j) {
        report.nic_links_known = false;
      }
    }
  }
  report.warnings = header_.warnings;
  report.warnings.insert(report.warnings.end(), warnings_.begin(), warnings_.end());
  return report;
}

}  // namespace

Result<TopoReport> ParseNvidiaSmiTopo(std::string_view text) {
  MW_ASSIGN_OR_RETURN(const std::vector<TextLine> lines, CleanLines(text, kMaxBytes));
  std::optional<TopoReport> report;
  std::optional<Status> best_error;
  int best_rows = -1;
  for (size_t at = 0; at < lines.size();) {
    Result<std::optional<TopoHeader>> header = ReadTopoHeader(lines, at);
    if (!header.ok()) {
      if (!best_error) best_error = header.status();
      ++at;
      continue;
    }
    if (!header->has_value()) {
      ++at;
      continue;
    }
    BlockParser block(lines, **header);
    Result<TopoReport> parsed = block.Parse();
    if (parsed.ok()) {
      if (!report) {
        report = std::move(parsed).value();
      } else {
        report->warnings.push_back(
            fmt::format("line {}: another matrix, which was not read", parsed->first_line));
      }
    } else if (!report && block.rows_found() > best_rows) {
      best_rows = block.rows_found();
      best_error = parsed.status();
    }
    at = std::max(block.next(), at + 1);
  }
  if (!report) {
    if (const auto foreign = FindForeignTool(lines)) return *foreign;
    return best_error ? *best_error : NoMatrix(lines);
  }
  if (best_error)
    report->warnings.push_back("an incomplete matrix was skipped: " + best_error->message());
  ReadTopoNotes(lines, *report);
  DeriveTopoFacts(*report);
  return *std::move(report);
}

}  // namespace meshwright::topologies
