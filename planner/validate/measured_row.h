// Measured training steps as tables state them: the header of training.csv and memory.csv.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topologies/status.h"

namespace meshwright::planner::validate {

/// A table of text cells. RFC 4180: quotes, doubled quotes, line breaks in quotes, CRLF.
struct CsvTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  ///< as wide as the header
  std::vector<int64_t> lines;                  ///< of each row, from 1
};

/// kInvalidInput with the line for ragged rows, open quotes, text over 64 MiB or not UTF-8, and
/// repeated or empty column names.
Result<CsvTable> ParseCsv(std::string_view text, const std::string& source);

/// One row. Empty cells are absent.
struct MeasuredRow {
  std::string id;
  int64_t line = 0;
  std::map<std::string, std::string> cells;  ///< by column, only those that are not empty

  std::string Text(const std::string& column) const;
  /// kInvalidInput for a cell that is no whole number from 1 to 1e12.
  Result<std::optional<int64_t>> Count(const std::string& column) const;
  Result<std::optional<double>> Number(const std::string& column) const;
  /// What stands in front of the last '-' of the id: names the source.
  std::string Source() const;
};

/// Reads a table; needs the columns id, model, gpu, gpus, micro_batch and global_batch, others may
/// be missing. kInvalidInput names the file, the line and the column.
Result<std::vector<MeasuredRow>> ReadMeasuredRows(std::string_view text, const std::string& source);

}  // namespace meshwright::planner::validate
