// Small text tools of this box: safe splitting of captured terminal text, and numbers with units.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::topologies {

/// A line of a text and its number from 1; without line ending and terminal control sequences.
struct TextLine {
  int number = 0;
  std::string text;
};

/// Splits captured text into lines (LF, CRLF or CR), with escape sequences, byte-order mark and
/// other control characters but tabs removed. Errors: larger than `max_bytes`, not UTF-8 (names the
/// line), UTF-16, or binary (a zero byte).
Result<std::vector<TextLine>> CleanLines(std::string_view text, size_t max_bytes);

/// Reads a whole file. NotFound if it cannot be opened; InvalidInput for folders and files larger
/// than `max_bytes`.
Result<std::string> ReadTextFile(const std::string& path, size_t max_bytes);

bool IsBlank(std::string_view text);
std::string_view Trim(std::string_view text);
std::vector<std::string_view> SplitWords(std::string_view text);
std::vector<std::string_view> SplitAt(std::string_view text, char separator);
std::string Lower(std::string_view text);
/// Printable form of untrusted text for messages: control bytes replaced, cut after `max` bytes.
std::string Quoted(std::string_view text, size_t max = 40);

/// The names of `known` closest to `name` by edit distance or containment, best first, at most
/// three.
std::vector<std::string> ClosestNames(std::string_view name, const std::vector<std::string>& known);

/// "450 GB/s", "25 GiB/s", "400 Gb/s" (bits). Units: powers of 1000 and 1024, bytes or bits.
Result<BytesPerSecond> ParseBandwidth(std::string_view text);
/// "80 GB", "96 GiB", "1024 B".
Result<Bytes> ParseBytes(std::string_view text);
/// "1.5 us", "300 ns", "2 ms", "1 s".
Result<Seconds> ParseDuration(std::string_view text);

/// Shortest text that parses back to the same value.
std::string FormatBandwidth(BytesPerSecond value);
std::string FormatBytes(Bytes value);
std::string FormatDuration(Seconds value);

}  // namespace meshwright::topologies
