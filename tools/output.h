// What a command shows: text for people or JSON for machines on standard output; the rest on
// standard error.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "topologies/status.h"

namespace meshwright::tools {

/// How text is set: codes of the terminal, or nothing where there is none (or NO_COLOR is set).
struct Style {
  std::string bold, dim, red, green, yellow, off;
};

class Output {
 public:
  Output(std::string command, bool json);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  bool json() const { return json_; }
  const Style& style() const { return style_; }

  /// Standard output, when that is for people.
  void Text(std::string_view text);
  /// What standard output gets with --json, once, at the end. Commands fill it in as they learn.
  nlohmann::json& document() { return *document_; }
  /// A line before the document (run: one a step); only with --json.
  void JsonLine(const nlohmann::json& line);
  /// Standard error. Several threads may call these.
  void Progress(std::string_view text);
  void Warn(std::string_view text);
  /// Nothing more but failures of the run: ranks other than 0 of a job of many processes.
  void Mute() { muted_ = true; }

  /// Reports `status`, prints the document and returns the exit code.
  int Finish(const Status& status);

 private:
  std::string command_;
  bool json_ = false;
  bool muted_ = false;
  Style style_;
  Style error_style_;
  std::unique_ptr<nlohmann::json> document_;
};

/// Writes to a temporary file in the same folder and renames it, so that nobody sees half a file.
/// Devices and pipes are written directly. Errors say what the system says.
Status WriteFileAtomically(const std::string& path, std::string_view text);

}  // namespace meshwright::tools
