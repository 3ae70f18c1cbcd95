// Bounds that every text from outside passes before a parser library sees it: size, encoding,
// nesting, anchors. yaml-cpp and JSON parsers trust their input more than we can.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "topologies/status.h"

namespace meshwright {

inline constexpr size_t kMaxTextBytes = size_t{4} << 20;  ///< 4 MiB: the longest text we parse
/// Values and keys of a YAML text; yaml-cpp takes about 500 bytes for each.
inline constexpr int64_t kMaxYamlValues = 200000;
inline constexpr int kMaxNesting = 64;  ///< levels; our deepest format needs fewer than 12

/// True when `text` is well-formed UTF-8 (no overlong forms, no surrogates, at most U+10FFFF).
bool IsUtf8(std::string_view text);

/// Refuses text longer than kMaxTextBytes, text with NUL bytes and text that is not UTF-8.
/// `source` names the text in the error (a path, say).
Status CheckTextBounds(std::string_view text, std::string_view source);

/// CheckTextBounds, and: brackets nested deeper than kMaxNesting. Strings are skipped; whether the
/// text is JSON is the parser's business.
Status CheckJsonBounds(std::string_view text, std::string_view source);

/// CheckTextBounds, and: flow or block nesting deeper than kMaxNesting, more values than
/// kMaxYamlValues, control characters (yaml-cpp stops reading at some of them), anchors or aliases
/// (which can make a short text expand without end, and which no format of ours needs), and text
/// after the first document (YAML::Load ignores it, YAML::LoadAll can loop on it). Other errors of
/// syntax are left to the parser.
Status CheckYamlBounds(std::string_view text, std::string_view source);

}  // namespace meshwright
