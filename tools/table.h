// Text tables and numbers for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/output.h"

namespace meshwright::tools {

/// Columns as wide as their widest cell. Cells that look like numbers stand to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> head) : head_(std::move(head)) {}
  /// Missing cells are empty, surplus ones are not allowed.
  void Row(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  size_t rows() const { return rows_.size(); }
  /// Lines with `indent` spaces before them; a heading that is all empty is left out.
  std::string ToText(const Style& style, int indent = 2) const;

 private:
  std::vector<std::string> head_;
  std::vector<std::vector<std::string>> rows_;
};

/// "1,234,567".
std::string Thousands(int64_t value);
/// Binary units: "512 B", "1.50 KiB", "23.4 MiB", "71.2 GiB".
std::string BytesText(int64_t bytes);
/// "850 ns", "12.3 us", "4.56 ms", "1.23 s", "3 min 20 s".
std::string SecondsText(double seconds);
/// Three significant digits and thousands: "0.123", "45.6", "1,235".
std::string NumberText(double value);
/// "12.3 %".
std::string PercentText(double ratio);
/// "a heading\n", set in bold where there is a terminal.
std::string HeadingText(const std::string& text, const Style& style);

}  // namespace meshwright::tools
