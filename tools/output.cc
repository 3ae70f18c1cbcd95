#include "tools/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace meshwright::tools {
namespace {

Style StyleOf(int descriptor) {
  const char* no_color = std::getenv("NO_COLOR");
  if (isatty(descriptor) == 0 || (no_color != nullptr && *no_color != '\0')) return {};
  return {"\033[1m", "\033[2m", "\033[31m", "\033[32m", "\033[33m", "\033[0m"};
}

/// Bytes that are not UTF-8 (from file names, say) become '?', so that printing never fails.
std::string Dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Status WriteError(const std::string& path) {
  return InvalidInput(
      fmt::format("cannot write '{}': {}; choose another path", path, std::strerror(errno)));
}

Status WriteAll(const std::string& path, std::string_view text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return WriteError(path);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int error = errno;
  if (std::fclose(file) == 0 && written) return Status::Ok();
  if (!written) errno = error;
  return WriteError(path);
}

}  // namespace

Output::Output(std::string command, bool json)
    : command_(std::move(command)),
      json_(json),
      style_(json ? Style() : StyleOf(STDOUT_FILENO)),
      error_style_(StyleOf(STDERR_FILENO)),
      document_(std::make_unique<nlohmann::json>(nlohmann::json::object())) {}

Output::~Output() = default;

void Output::Text(std::string_view text) {
  if (json_ || muted_) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
}

void Output::JsonLine(const nlohmann::json& line) {
  if (!json_ || muted_) return;
  const std::string text = Dump(line) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void Output::Progress(std::string_view text) {
  if (muted_) return;
  const std::string line = fmt::format("{}\n", text);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void Output::Warn(std::string_view text) {
  if (muted_) return;
  const std::string line =
      fmt::format("{}warning:{} {}\n", error_style_.yellow, error_style_.off, text);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int Output::Finish(const Status& status) {
  // Of many processes rank 0 speaks, unless one of the others failed on its own.
  if (!status.ok() && (!muted_ || status.code() == StatusCode::kRunFailed)) {
    std::fflush(stdout);
    const std::string line =
        fmt::format("{}error:{} meshwright{}: {}\n", error_style_.red, error_style_.off,
                    command_.empty() ? "" : " " + command_, status.message());
    std::fwrite(line.data(), 1, line.size(), stderr);
  }
  if (json_ && !muted_) {
    if (!status.ok()) {
      nlohmann::json& errors = (*document_)["errors"];
      if (!errors.is_array()) errors = nlohmann::json::array();
      if (errors.empty() && !status.problems().empty()) errors = status.problems();
      if (errors.empty()) errors.push_back(status.message());
    }
    const std::string text = Dump(*document_) + "\n";
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fputs("error: meshwright: cannot write to standard output\n", stderr);
    return 3;
  }
  return ExitCode(status);
}

Status WriteFileAtomically(const std::string& path, std::string_view text) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::directory) {
    return InvalidInput(fmt::format("cannot write '{}': it is a folder; name a file in it", path));
  }
  const bool plain =
      kind == std::filesystem::file_type::regular || kind == std::filesystem::file_type::not_found;
  if (!plain) return WriteAll(path, text);
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  Status status = WriteAll(temporary, text);
  if (!status.ok()) {
    std::filesystem::remove(temporary, error);
    return WriteError(path);
  }
  std::filesystem::rename(temporary, path, error);
  if (!error) return status;
  errno = error.value();
  status = WriteError(path);
  std::filesystem::remove(temporary, error);
  return status;
}

}  // namespace meshwright::tools
