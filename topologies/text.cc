#include "topologies/text.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <fstream>
#include <numeric>
#include <system_error>
#include <utility>

namespace meshwright::topologies {
namespace {

bool IsSpace(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\v' || c == '\f';
}

// Length of the valid UTF-8 sequence at `i`, 0 if there is none.
size_t Utf8Length(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char lead = byte(i);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || i + length > text.size()) return 0;
  for (size_t k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(i + 1);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
      (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return length;
}

// Position after the terminal control sequence that starts with ESC at `i`.
size_t SkipEscape(std::string_view text, size_t i) {
  ++i;
  if (i >= text.size()) return i;
  if (text[i] == '[') {  // CSI: parameters, then one final byte 0x40-0x7E
    ++i;
    while (i < text.size() && text[i] >= 0x20 && text[i] < 0x40) ++i;
    return i < text.size() && text[i] >= 0x40 ? i + 1 : i;
  }
  if (text[i] == ']') {  // OSC: to BEL or ESC backslash, but never past the line
    while (i < text.size() && text[i] != '\a' && text[i] != '\n' && text[i] != '\x1b') ++i;
    if (i < text.size() && text[i] == '\a') return i + 1;
    return i + 1 < text.size() && text[i] == '\x1b' && text[i + 1] == '\\' ? i + 2 : i;
  }
  if (text[i] == '(' || text[i] == ')') return std::min(i + 2, text.size());
  return text[i] >= 0x30 && text[i] < 0x7F ? i + 1 : i;
}

struct Unit {
  std::string_view name;
  double factor;
};

// "number unit"; the unit must be one of `units`.
Result<double> ParseWithUnit(std::string_view text, const std::vector<Unit>& units,
                             std::string_view what) {
  text = Trim(text);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit = Trim(text.substr(static_cast<size_t>(end - text.data())));
  if (error == std::errc() && std::isfinite(number) && number >= 0) {
    for (const Unit& known : units) {
      if (unit == known.name) return number * known.factor;
    }
  }
  std::string allowed;
  for (const Unit& known : units)
    allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", known.name);
  return InvalidInput(fmt::format("'{}' is not a {}: write a number ≥ 0 and one of the units {}",
                                  Quoted(text), what, allowed));
}

constexpr double kKi = 1024.0;

const std::vector<Unit>& BandwidthUnits() {
  static const std::vector<Unit> units = {
      {"B/s", 1},        {"kB/s", 1e3},     {"MB/s", 1e6},        {"GB/s", 1e9},
      {"TB/s", 1e12},    {"KiB/s", kKi},    {"MiB/s", kKi * kKi}, {"GiB/s", kKi * kKi * kKi},
      {"Mb/s", 1e6 / 8}, {"Gb/s", 1e9 / 8}, {"Tb/s", 1e12 / 8}};
  return units;
}

const std::vector<Unit>& ByteUnits() {
  static const std::vector<Unit> units = {{"B", 1},
                                          {"kB", 1e3},
                                          {"MB", 1e6},
                                          {"GB", 1e9},
                                          {"TB", 1e12},
                                          {"KiB", kKi},
                                          {"MiB", kKi * kKi},
                                          {"GiB", kKi * kKi * kKi},
                                          {"TiB", kKi * kKi * kKi * kKi}};
  return units;
}

const std::vector<Unit>& TimeUnits() {
  static const std::vector<Unit> units = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
  return units;
}

// The largest unit that gives a short number which parses back to exactly `value`.
std::string FormatWithUnit(double value, const std::vector<Unit>& units,
                           const std::vector<std::string_view>& preferred) {
  std::string best;
  for (const std::string_view name : preferred) {
    const auto unit =
        std::find_if(units.begin(), units.end(), [&](const Unit& u) { return u.name == name; });
    const std::string text = fmt::format("{}", value / unit->factor);
    double back = 0;
    std::from_chars(text.data(), text.data() + text.size(), back);
    if (back * unit->factor != value || text.find('e') != std::string::npos) continue;
    if (best.empty() || text.size() < best.find(' ')) best = fmt::format("{} {}", text, name);
  }
  return best.empty() ? fmt::format("{} {}", value, preferred.back()) : best;
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

Result<std::vector<TextLine>> CleanLines(std::string_view text, size_t max_bytes) {
  if (text.size() > max_bytes) {
    return InvalidInput(
        fmt::format("{} bytes of text, at most {} are read; cut the file to the part "
                    "that matters",
                    text.size(), max_bytes));
  }
  if (text.substr(0, 2) == "\xFF\xFE" || text.substr(0, 2) == "\xFE\xFF") {
    return InvalidInput("line 1: the text is UTF-16; save it as UTF-8");
  }
  if (text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);
  std::vector<TextLine> lines;
  TextLine line{1, {}};
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '\n' || c == '\r') {
      i += c == '\r' && i + 1 < text.size() && text[i + 1] == '\n' ? 2 : 1;
      const int next = line.number + 1;
      lines.push_back(std::exchange(line, TextLine{next, {}}));
      continue;
    }
    if (c == '\0') {
      return InvalidInput(
          fmt::format("line {}: a zero byte; this is a binary file, not text", line.number));
    }
    if (c == '\x1b') {
      i = SkipEscape(text, i);
      continue;
    }
    size_t plain = i;  // the common case: a run of printable ASCII
    while (plain < text.size() && text[plain] >= 0x20 && text[plain] < 0x7F) ++plain;
    if (plain > i) {
      line.text.append(text, i, plain - i);
      i = plain;
      continue;
    }
    const size_t length = Utf8Length(text, i);
    if (length == 0) {
      return InvalidInput(fmt::format("line {}: byte 0x{:02X} is not UTF-8; save the text as UTF-8",
                                      line.number, static_cast<unsigned char>(c)));
    }
    if (text.substr(i, length) == "\xC2\xA0") {  // no-break space, as pages and chats paste it
      line.text += ' ';
    } else if (length > 1 || c == '\t' || static_cast<unsigned char>(c) >= 0x20) {
      line.text.append(text, i, length);
    }
    i += length;
  }
  if (!line.text.empty()) lines.push_back(std::move(line));
  return lines;
}

Result<std::string> ReadTextFile(const std::string& path, size_t max_bytes) {
  struct stat info {};
  if (path.find('\0') != std::string::npos || stat(path.c_str(), &info) != 0) {
    return NotFound(fmt::format("{}: no such file", Quoted(path, 200)));
  }
  if (S_ISDIR(info.st_mode)) {
    return InvalidInput(fmt::format("{}: is a folder, not a file", Quoted(path, 200)));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound(fmt::format("{}: cannot be opened for reading", Quoted(path, 200)));
  std::string text;
  std::string block(size_t{64} << 10, '\0');
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    text.append(block, 0, static_cast<size_t>(file.gcount()));
    if (text.size() > max_bytes) {
      return InvalidInput(fmt::format("{}: larger than {} bytes, the most that is read here",
                                      Quoted(path, 200), max_bytes));
    }
  }
  if (file.bad()) return InvalidInput(fmt::format("{}: reading failed", Quoted(path, 200)));
  return text;
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

bool IsBlank(std::string_view text) {
  return Trim(text).empty();
}

std::vector<std::string_view> SplitWords(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t i = 0; i < text.size();) {
    if (IsSpace(text[i])) {
      ++i;
      continue;
    }
    const size_t start = i;
    while (i < text.size() && !IsSpace(text[i])) ++i;
    words.push_back(text.substr(start, i - start));
  }
  return words;
}

std::vector<std::string_view> SplitAt(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

std::string Quoted(std::string_view text, size_t max) {
  std::string quoted;
  for (size_t i = 0; i < text.size();) {
    const size_t length = std::max<size_t>(Utf8Length(text, i), 1);
    if (quoted.size() + length > max) return quoted + "...";
    const bool printable =
        Utf8Length(text, i) > 0 && static_cast<unsigned char>(text[i]) >= 0x20 && text[i] != 0x7F;
    quoted += printable ? std::string(text.substr(i, length)) : "?";
    i += length;
  }
  return quoted;
}

std::vector<std::string> ClosestNames(std::string_view name,
                                      const std::vector<std::string>& known) {
  const std::string wanted = Lower(name.substr(0, 64));
  std::vector<std::pair<size_t, std::string>> scored;
  for (const std::string& candidate : known) {
    const std::string lower = Lower(candidate);
    size_t score = EditDistance(wanted, lower);
    if (wanted.size() >= 3 &&
        (lower.find(wanted) != std::string::npos || wanted.find(lower) != std::string::npos)) {
      score = 0;
    }
    if (score <= std::max<size_t>(2, wanted.size() / 3)) scored.emplace_back(score, candidate);
  }
  std::sort(scored.begin(), scored.end());
  std::vector<std::string> closest;
  for (const auto& [score, candidate] : scored) {
    if (closest.size() < 3) closest.push_back(candidate);
  }
  return closest;
}

Result<BytesPerSecond> ParseBandwidth(std::string_view text) {
  MW_ASSIGN_OR_RETURN(const double value, ParseWithUnit(text, BandwidthUnits(), "bandwidth"));
  return BytesPerSecond(value);
}

Result<Bytes> ParseBytes(std::string_view text) {
  MW_ASSIGN_OR_RETURN(const double value, ParseWithUnit(text, ByteUnits(), "size"));
  if (value > 9.0e18) {
    return InvalidInput(fmt::format("'{}' is larger than 9e18 bytes", Quoted(text)));
  }
  return Bytes(std::llround(value));
}

Result<Seconds> ParseDuration(std::string_view text) {
  MW_ASSIGN_OR_RETURN(const double value, ParseWithUnit(text, TimeUnits(), "duration"));
  return Seconds(value);
}

std::string FormatBandwidth(BytesPerSecond value) {
  return FormatWithUnit(value.value(), BandwidthUnits(), {"GB/s", "MB/s", "kB/s", "B/s"});
}

std::string FormatBytes(Bytes value) {
  return FormatWithUnit(static_cast<double>(value.value()), ByteUnits(),
                        {"GB", "GiB", "MiB", "MB", "KiB", "kB", "B"});
}

std::string FormatDuration(Seconds value) {
  return FormatWithUnit(value.value(), TimeUnits(), {"us", "ns", "ms", "s"});
}

}  // namespace meshwright::topologies
