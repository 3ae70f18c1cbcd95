#include "tools/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "topologies/status.h"

namespace meshwright::tools {
namespace {

/// Cells of text lean left, numbers (also with units) right.
bool LooksLikeNumber(const std::string& cell) {
  const size_t first = cell.find_first_not_of("+-~<> ");
  return cell == "-" || (first != std::string::npos && cell[first] >= '0' && cell[first] <= '9');
}

/// Three significant digits, without exponent.
std::string ThreeDigits(double value) {
  const double size = std::fabs(value);
  const int digits = size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3;
  return fmt::format("{:.{}f}", value, digits);
}

}  // namespace

void Table::Row(std::vector<std::string> cells) {
  MW_CHECK(cells.size() <= head_.size());
  cells.resize(head_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::ToText(const Style& style, int indent) const {
  std::vector<size_t> widths(head_.size(), 0);
  std::vector<bool> right(head_.size(), !rows_.empty());
  for (size_t c = 0; c < head_.size(); ++c) {
    widths[c] = head_[c].size();
    for (const auto& row : rows_) {
      widths[c] = std::max(widths[c], row[c].size());
      if (!row[c].empty() && !LooksLikeNumber(row[c])) right[c] = false;
    }
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text(static_cast<size_t>(indent), ' ');
    for (size_t c = 0; c < cells.size(); ++c) {
      if (c > 0) text += "  ";
      text += right[c] ? fmt::format("{:>{}}", cells[c], widths[c])
                       : fmt::format("{:<{}}", cells[c], widths[c]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  };
  std::string text;
  const bool headed =
      std::any_of(head_.begin(), head_.end(), [](const auto& h) { return !h.empty(); });
  if (headed) text += style.dim + line(head_) + style.off + "\n";
  for (const auto& row : rows_) text += line(row) + "\n";
  return text;
}

std::string Thousands(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string BytesText(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (std::abs(bytes) < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (std::fabs(value) >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", ThreeDigits(value), kUnits[unit]);
}

std::string SecondsText(double seconds) {
  if (!std::isfinite(seconds)) return "unknown";
  const double size = std::fabs(seconds);
  if (size < 0.9995e-6) return fmt::format("{:.0f} ns", seconds * 1e9);
  if (size < 0.9995e-3) return ThreeDigits(seconds * 1e6) + " us";
  if (size < 0.9995) return ThreeDigits(seconds * 1e3) + " ms";
  if (size < 119.5) return ThreeDigits(seconds) + " s";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 7200) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", Thousands(whole / 3600), whole % 3600 / 60);
}

std::string NumberText(double value) {
  if (!std::isfinite(value)) return "unknown";
  if (std::fabs(value) >= 999.5) {
    return Thousands(static_cast<int64_t>(std::llround(std::clamp(value, -9e18, 9e18))));
  }
  if (value != 0.0 && std::fabs(value) < 1e-3) return fmt::format("{:.3g}", value);
  return ThreeDigits(value);
}

std::string PercentText(double ratio) {
  return fmt::format("{:.1f} %", ratio * 100);
}

std::string HeadingText(const std::string& text, const Style& style) {
  return style.bold + text + style.off + "\n";
}

}  // namespace meshwright::tools
