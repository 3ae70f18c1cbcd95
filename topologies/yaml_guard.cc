#include "topologies/yaml_guard.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace meshwright {
namespace {

/// Bytes of the UTF-8 sequence that starts `text`, or 0 when it is malformed.
size_t Utf8SequenceLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC2 ? 2 : 0;
  if (length == 0 || first > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool surrogate = first == 0xED && second > 0x9F;
  const bool too_large = first == 0xF4 && second > 0x8F;
  return overlong || surrogate || too_large ? 0 : length;
}

/// Offset of the first byte that is not UTF-8; npos when there is none.
size_t FirstBadUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8SequenceLength(text.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return std::string_view::npos;
}

size_t LineOf(std::string_view text, size_t offset) {
  return 1 + static_cast<size_t>(std::count(
                 text.begin(), text.begin() + static_cast<std::ptrdiff_t>(offset), '\n'));
}

Status TooDeep(std::string_view source, size_t line) {
  return InvalidInput(fmt::format(
      "{}: line {}: nested deeper than {} levels; allowed: at most {}; flatten the text", source,
      line, kMaxNesting, kMaxNesting));
}

bool IsSpace(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/// Follows just enough of YAML's token rules to see nesting, anchors and aliases. Block scalars
/// are read as if they were ordinary lines, which can only refuse more.
class YamlScan {
 public:
  YamlScan(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  Status Run() {
    for (at_ = 0; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\n') {
        StartLine();
      } else if (quote_ != 0) {
        InQuotes();
      } else {
        MW_RETURN_IF_ERROR(Outside());
      }
      if (static_cast<int>(indents_.size()) + indicators_ + flow_ > kMaxNesting) {
        return TooDeep(source_, line_);
      }
      if (values_ > kMaxYamlValues) {
        return InvalidInput(fmt::format(
            "{}: line {}: found more than {} values; allowed: at most {}; is this the right file?",
            source_, line_, kMaxYamlValues, kMaxYamlValues));
      }
    }
    return Status::Ok();
  }

 private:
  bool NextIsSpace() const { return at_ + 1 >= text_.size() || IsSpace(text_[at_ + 1]); }

  void StartLine() {
    ++line_;
    column_start_ = at_ + 1;
    if (quote_ != 0 || flow_ > 0) return;
    indicators_ = 0;
    token_start_ = true;
    line_blank_ = true;
  }

  void InQuotes() {
    const char c = text_[at_];
    if (quote_ == '"' && c == '\\') {
      // The escaped character is skipped, but a line break still has to be counted.
      if (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
    } else if (c == quote_) {
      const bool doubled = quote_ == '\'' && at_ + 1 < text_.size() && text_[at_ + 1] == '\'';
      if (doubled) {
        ++at_;
      } else {
        quote_ = 0;
      }
    }
  }

  void Indent() {
    const size_t column = at_ - column_start_;
    while (!indents_.empty() && indents_.back() >= column) indents_.pop_back();
    indents_.push_back(column);
    line_blank_ = false;
    ++values_;
  }

  Status Outside() {
    const char c = text_[at_];
    if (IsSpace(c)) return Status::Ok();
    if (c == '#' && (at_ == column_start_ || IsSpace(text_[at_ - 1]))) {
      while (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
      return Status::Ok();
    }
    if (flow_ == 0 && line_blank_) Indent();
    if (token_start_ && (c == '&' || c == '*') && !NextIsSpace()) {
      return InvalidInput(
          fmt::format("{}: line {}: found a YAML {} ('{}'); allowed: plain values; write the value "
                      "out, or quote the text",
                      source_, line_, c == '&' ? "anchor" : "alias", c));
    }
    if (token_start_ && (c == '"' || c == '\'')) {
      quote_ = c;
      token_start_ = false;
    } else if ((c == '[' || c == '{') && (token_start_ || flow_ > 0)) {
      ++flow_;
      ++values_;
      token_start_ = true;
    } else if ((c == ']' || c == '}') && flow_ > 0) {
      --flow_;
      token_start_ = false;
    } else if ((c == ',' && flow_ > 0) || (c == ':' && (NextIsSpace() || flow_ > 0))) {
      ++values_;
      token_start_ = true;
    } else if (token_start_ && (c == '-' || c == '?') && NextIsSpace()) {
      ++indicators_;
      ++values_;
    } else {
      token_start_ = false;
    }
    return Status::Ok();
  }

  std::string_view text_;
  std::string_view source_;
  size_t at_ = 0;
  size_t line_ = 1;
  size_t column_start_ = 0;      // offset of the first character of the line
  std::vector<size_t> indents_;  // columns of the open block levels
  int64_t values_ = 0;           // values and keys so far, about
  int indicators_ = 0;           // "- " and "? " on this line
  int flow_ = 0;                 // open [ and {
  char quote_ = 0;               // ' or " while inside one
  bool token_start_ = true;      // a value may start here
  bool line_blank_ = true;       // nothing but spaces on this line so far
};

/// Control characters but tab and line breaks; a lone carriage return is no break to yaml-cpp.
Status CheckControls(std::string_view text, std::string_view source) {
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (static_cast<unsigned char>(c) >= 0x20 || c == '\t' || c == '\n') continue;
    if (c == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    return InvalidInput(
        fmt::format("{}: line {}: found the control character 0x{:02X}; allowed: printable text; "
                    "remove it",
                    source, LineOf(text, i), static_cast<unsigned char>(c)));
  }
  return Status::Ok();
}

/// Takes the events of a document and does nothing.
class IgnoreEvents : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

bool HasSecondDocument(std::string_view text) {
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    IgnoreEvents ignore;
    return parser.HandleNextDocument(ignore) && parser.HandleNextDocument(ignore);
  } catch (const std::exception&) {
    return false;  // no YAML: the parser will say where
  }
}

}  // namespace

bool IsUtf8(std::string_view text) {
  return FirstBadUtf8(text) == std::string_view::npos;
}

Status CheckTextBounds(std::string_view text, std::string_view source) {
  if (text.size() > kMaxTextBytes) {
    return InvalidInput(
        fmt::format("{}: found {} bytes; allowed: at most {} bytes; is this the right file?",
                    source, text.size(), kMaxTextBytes));
  }
  const size_t nul = text.find('\0');
  if (nul != std::string_view::npos) {
    return InvalidInput(
        fmt::format("{}: line {}: found a NUL byte at offset {}; allowed: UTF-8 text; is this a "
                    "binary file?",
                    source, LineOf(text, nul), nul));
  }
  const size_t bad = FirstBadUtf8(text);
  if (bad != std::string_view::npos) {
    return InvalidInput(
        fmt::format("{}: line {}: found byte 0x{:02X} at offset {}, which is not UTF-8; allowed: "
                    "UTF-8 text; convert the file",
                    source, LineOf(text, bad), static_cast<unsigned char>(text[bad]), bad));
  }
  return Status::Ok();
}

Status CheckJsonBounds(std::string_view text, std::string_view source) {
  MW_RETURN_IF_ERROR(CheckTextBounds(text, source));
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxNesting) return TooDeep(source, LineOf(text, i));
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return Status::Ok();
}

Status CheckYamlBounds(std::string_view text, std::string_view source) {
  MW_RETURN_IF_ERROR(CheckTextBounds(text, source));
  MW_RETURN_IF_ERROR(CheckControls(text, source));
  MW_RETURN_IF_ERROR(YamlScan(text, source).Run());
  if (HasSecondDocument(text)) {
    return InvalidInput(fmt::format(
        "{}: found text after the first YAML document; allowed: one document; remove the rest",
        source));
  }
  return Status::Ok();
}

}  // namespace meshwright
