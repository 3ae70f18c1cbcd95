// Files that tests read: committed fixtures, and the shared folder beside the checkout where it is.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace meshwright::topologies {

inline std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Captures (*.txt) of a folder, sorted; empty if there is no such folder.
inline std::vector<std::filesystem::path> Captures(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".txt") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

inline const std::filesystem::path kCommittedTopos = MESHWRIGHT_SOURCE_DIR "/tests/data/topo";
inline const std::filesystem::path kSharedTopos = MESHWRIGHT_SHARED_DIR "/data/topo";

/// A committed capture by the start of its name.
inline std::string Capture(const std::string& prefix) {
  for (const auto& path : Captures(kCommittedTopos)) {
    if (path.filename().string().substr(0, prefix.size()) == prefix) return ReadAll(path);
  }
  return {};
}

/// `text` with every occurrence of `from` replaced.
inline std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

/// `text` with the first occurrence of `from` replaced; unchanged where there is none.
inline std::string ReplacedOnce(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

}  // namespace meshwright::topologies
