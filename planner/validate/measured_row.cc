#include "planner/validate/measured_row.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <set>

#include "topologies/yaml_guard.h"

namespace meshwright::planner::validate {
namespace {

constexpr size_t kMaxTableBytes = size_t{64} << 20;
constexpr size_t kShownBytes = 40;
constexpr double kMostCount = 1e12;

std::string Shown(std::string_view text) {
  std::string shown(text.substr(0, kShownBytes));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  }
  return text.size() > kShownBytes ? shown + "..." : shown;
}

/// Cells of one record; `at` moves behind its line break.
class Records {
 public:
  Records(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  bool AtEnd() const { return at_ >= text_.size(); }
  int64_t line() const { return line_; }

  Result<std::vector<std::string>> Next() {
    std::vector<std::string> cells;
    const int64_t first_line = line_;
    while (true) {
      std::string cell;
      if (at_ < text_.size() && text_[at_] == '"') {
        if (!Quoted(&cell)) {
          return InvalidInput(fmt::format(
              "{}: line {}: a quoted cell never ends; add the closing '\"'", source_, first_line));
        }
      } else {
        while (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n') cell += text_[at_++];
        if (!cell.empty() && cell.back() == '\r') cell.pop_back();
      }
      cells.push_back(std::move(cell));
      if (at_ < text_.size() && text_[at_] == '\r') ++at_;
      if (at_ >= text_.size()) return cells;
      const char end = text_[at_++];
      if (end == ',') continue;
      if (end == '\n') {
        ++line_;
        return cells;
      }
      return InvalidInput(
          fmt::format("{}: line {}: found text behind a closing quote; allowed: a comma "
                      "or the end of the line",
                      source_, line_));
    }
  }

 private:
  bool Quoted(std::string* cell) {
    ++at_;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '\n') ++line_;
      if (c != '"') {
        *cell += c;
      } else if (at_ < text_.size() && text_[at_] == '"') {
        *cell += '"';
        ++at_;
      } else {
        return true;
      }
    }
    return false;
  }

  std::string_view text_;
  const std::string& source_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

Status CheckHeader(const std::vector<std::string>& header, const std::string& source) {
  std::set<std::string> seen;
  for (const std::string& name : header) {
    if (name.empty() || !seen.insert(name).second) {
      return InvalidInput(
          fmt::format("{}: line 1: the column name '{}' is {}; name every column once", source,
                      Shown(name), name.empty() ? "empty" : "repeated"));
    }
  }
  return Status::Ok();
}

}  // namespace

Result<CsvTable> ParseCsv(std::string_view text, const std::string& source) {
  if (text.size() > kMaxTableBytes) {
    return InvalidInput(fmt::format("{}: found {} bytes; allowed: at most {}", source, text.size(),
                                    kMaxTableBytes));
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (!IsUtf8(text) || text.find('\0') != std::string_view::npos) {
    return InvalidInput(source + ": the text is not UTF-8; save the table as UTF-8");
  }
  Records records(text, source);
  CsvTable table;
  if (records.AtEnd()) return InvalidInput(source + ": the table is empty; it needs a header line");
  MW_ASSIGN_OR_RETURN(table.header, records.Next());
  MW_RETURN_IF_ERROR(CheckHeader(table.header, source));
  while (!records.AtEnd()) {
    const int64_t line = records.line();
    MW_ASSIGN_OR_RETURN(std::vector<std::string> cells, records.Next());
    if (cells.size() == 1 && cells.front().empty()) continue;  // an empty line
    if (cells.size() != table.header.size()) {
      return InvalidInput(
          fmt::format("{}: line {}: found {} cells, the header has {}; quote cells that "
                      "hold commas",
                      source, line, cells.size(), table.header.size()));
    }
    table.rows.push_back(std::move(cells));
    table.lines.push_back(line);
  }
  return table;
}

std::string MeasuredRow::Text(const std::string& column) const {
  const auto found = cells.find(column);
  return found == cells.end() ? "" : found->second;
}

Result<std::optional<double>> MeasuredRow::Number(const std::string& column) const {
  const std::string text = Text(column);
  if (text.empty()) return std::optional<double>();
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return InvalidInput(fmt::format("row {} (line {}): {}: found '{}'; allowed: a number", id, line,
                                    column, Shown(text)));
  }
  return std::optional<double>(value);
}

Result<std::optional<int64_t>> MeasuredRow::Count(const std::string& column) const {
  MW_ASSIGN_OR_RETURN(const std::optional<double> value, Number(column));
  if (!value) return std::optional<int64_t>();
  if (*value < 1 || *value > kMostCount || *value != std::floor(*value)) {
    return InvalidInput(
        fmt::format("row {} (line {}): {}: found '{}'; allowed: a whole number of at "
                    "least 1",
                    id, line, column, Shown(Text(column))));
  }
  return std::optional<int64_t>(static_cast<int64_t>(*value));
}

std::string MeasuredRow::Source() const {
  const size_t dash = id.rfind('-');
  return dash == std::string::npos ? id : id.substr(0, dash);
}

Result<std::vector<MeasuredRow>> ReadMeasuredRows(std::string_view text,
                                                  const std::string& source) {
  MW_ASSIGN_OR_RETURN(const CsvTable table, ParseCsv(text, source));
  const std::set<std::string> columns(table.header.begin(), table.header.end());
  for (const char* needed : {"id", "model", "gpu", "gpus", "micro_batch", "global_batch"}) {
    if (!columns.contains(needed)) {
      return InvalidInput(
          fmt::format("{}: line 1: the column '{}' is missing; the header is that of "
                      "`meshwright validate --header`",
                      source, needed));
    }
  }
  std::vector<MeasuredRow> rows;
  std::set<std::string> ids;
  for (size_t r = 0; r < table.rows.size(); ++r) {
    MeasuredRow row;
    row.line = table.lines[r];
    for (size_t c = 0; c < table.header.size(); ++c) {
      if (!table.rows[r][c].empty()) row.cells[table.header[c]] = table.rows[r][c];
    }
    row.id = row.Text("id");
    if (row.id.empty() || !ids.insert(row.id).second) {
      return InvalidInput(
          fmt::format("{}: line {}: id: found {}; give every row an id of its own", source,
                      row.line, row.id.empty() ? "nothing" : "'" + Shown(row.id) + "' again"));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace meshwright::planner::validate
