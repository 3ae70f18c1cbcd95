#include "tests/structure/include_rules.h"

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>

namespace meshwright::structure {
namespace {

/// A folder and the folders whose headers its files may include.
struct Box {
  std::string_view folder;
  std::vector<std::string_view> may_see;
  std::vector<std::string_view> but_not = {};
  bool gpu = false;  ///< headers may include those of CUDA and its libraries
};

const std::vector<Box>& Boxes() {
  // lower, verify and search are one target, so they see each other.
  static const std::vector<std::string_view> algorithms = {
      "planner/lower/", "planner/verify/", "planner/predict/",  "planner/search/",
      "planner/stack/", "planner/space/",  "planner/validate/", "cost_models/",
      "planner/ir/",    "topologies/"};
  static const std::vector<std::string_view> everything = {
      "topologies/",       "planner/ir/",     "planner/lower/", "planner/verify/",
      "planner/predict/",  "planner/search/", "planner/stack/", "planner/space/",
      "planner/validate/", "runtime/",        "cost_models/",   "tools/"};
  static const std::vector<Box> boxes = [] {
    std::vector<Box> result = {
        {"topologies/", {"topologies/"}},
        {"planner/ir/", {"planner/ir/", "topologies/"}},
        {"cost_models/", {"cost_models/", "planner/ir/", "topologies/"}},
        {"planner/lower/", algorithms},
        {"planner/verify/", algorithms},
        {"planner/predict/", algorithms},
        {"planner/search/", algorithms},
        {"planner/stack/", algorithms},
        {"planner/space/", algorithms},
        {"planner/validate/", algorithms},
        {"runtime/cuda/", {"runtime/", "planner/ir/", "topologies/"}, {}, true},
        // Without a CUDA toolkit there is no runtime/cuda.
        {"runtime/", {"runtime/", "planner/ir/", "topologies/"}, {"runtime/cuda/"}},
        {"tools/", everything, {"runtime/cuda/"}},
        {"tests/runtime/cuda/", everything, {}, true},
        {"tests/", everything, {"runtime/cuda/"}},
    };
    for (Box& box : result) {
      if (box.folder.starts_with("tests/")) box.may_see.push_back("tests/");
    }
    return result;
  }();
  return boxes;
}

/// System headers that cost seconds to compile, or bring a library into everything that sees them.
constexpr std::string_view kOnlyInSources[] = {
    "nlohmann/json.hpp", "yaml-cpp/", "CLI/", "spdlog/", "mpi.h", "cblas.h", "cuda", "nccl"};

bool StartsWithAny(std::string_view text, const std::vector<std::string_view>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return text.starts_with(prefix); });
}

struct Include {
  std::string target;
  bool quoted;
};

/// The include of a line, if it is one: `#include "a/b.h"` or `#include <x>`.
std::optional<Include> ParseInclude(std::string_view line) {
  const auto skip_blanks = [&] {
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  };
  const auto skip = [&](std::string_view word) {
    if (!line.starts_with(word)) return false;
    line.remove_prefix(word.size());
    skip_blanks();
    return true;
  };
  skip_blanks();
  if (!skip("#") || !skip("include") || line.empty()) return std::nullopt;
  const char open = line.front();
  if (open != '"' && open != '<') return std::nullopt;
  line.remove_prefix(1);
  return Include{std::string(line.substr(0, line.find(open == '"' ? '"' : '>'))), open == '"'};
}

std::string Join(const std::vector<std::string_view>& words) {
  std::string result;
  for (const std::string_view word : words) {
    if (!result.empty()) result += ' ';
    result += word;
  }
  return result;
}

/// What is wrong with one include of a file in `box`; empty when nothing is.
std::string Problem(const Box& box, bool is_header, const Include& include) {
  const std::string& target = include.target;
  if (target.starts_with("..") || target.find("/..") != std::string::npos) {
    return "relative path \"" + target + "\"; includes are written from the root";
  }
  if (include.quoted && !StartsWithAny(target, box.may_see)) {
    return std::string(box.folder) + " may not include \"" + target +
           "\"; it sees: " + Join(box.may_see);
  }
  if (StartsWithAny(target, box.but_not)) {
    return std::string(box.folder) + " may not include \"" + target + "\"";
  }
  if (!include.quoted && StartsWithAny(target, Boxes().back().may_see)) {
    return "<" + target + "> is ours: write it in quotes";
  }
  if (is_header && !include.quoted && !box.gpu) {
    for (const std::string_view heavy : kOnlyInSources) {
      if (target.starts_with(heavy)) return "<" + target + "> belongs in a .cc, not in a header";
    }
  }
  return "";
}

/// Names that open a string literal are text, not a use.
bool UsesFixedWidth(std::string_view text) {
  for (const std::string_view type : {"int8_t", "int16_t", "int32_t", "int64_t", "uintptr_t"}) {
    for (size_t at = text.find(type); at != text.npos; at = text.find(type, at + 1)) {
      if (at == 0 || text[at - 1] != '"') return true;
    }
  }
  return false;
}

/// Whether <cstdint> is included by `path` or by headers of ours that it includes.
bool SeesCstdint(const std::map<std::string, std::string>& texts, const std::string& path,
                 std::set<std::string>& visited) {
  const auto file = texts.find(path);
  if (file == texts.end() || !visited.insert(path).second) return false;
  std::istringstream lines{file->second};
  for (std::string line; std::getline(lines, line);) {
    const std::optional<Include> include = ParseInclude(line);
    if (include && (include->target == "cstdint" || SeesCstdint(texts, include->target, visited))) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<std::string> CheckIncludes(std::string_view path, std::string_view text) {
  const auto& boxes = Boxes();
  const auto box = std::find_if(boxes.begin(), boxes.end(),
                                [&](const Box& b) { return path.starts_with(b.folder); });
  if (box == boxes.end()) {
    return {std::string(path) + ":1: in no box; the table is in tests/structure/include_rules.cc"};
  }
  const bool is_header = path.ends_with(".h") || path.ends_with(".cuh");
  std::vector<std::string> problems;
  const auto add = [&](int line, const std::string& problem) {
    problems.push_back(std::string(path) + ":" + std::to_string(line) + ": " + problem);
  };
  bool once = false;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    once = once || line.starts_with("#pragma once");
    const std::optional<Include> include = ParseInclude(line);
    if (!include) continue;
    const std::string problem = Problem(*box, is_header, *include);
    if (!problem.empty()) add(number, problem);
  }
  if (is_header && !once) add(1, "no #pragma once");
  return problems;
}

std::vector<std::string> CheckFixedWidth(const std::map<std::string, std::string>& texts) {
  std::vector<std::string> problems;
  for (const auto& [path, text] : texts) {
    std::set<std::string> visited;
    if (UsesFixedWidth(text) && !SeesCstdint(texts, path, visited)) {
      problems.push_back(path + ":1: uses fixed-width integers without <cstdint>");
    }
  }
  return problems;
}

}  // namespace meshwright::structure
