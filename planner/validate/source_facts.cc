#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cost_models/device_profile.h"
#include "planner/validate/row_case.h"
#include "topologies/yaml_guard.h"

namespace meshwright::planner::validate {
namespace {

Result<SourceFacts> ReadEntry(const YAML::Node& node, const std::string& source) {
  SourceFacts facts;
  if (!node.IsMap()) {
    return InvalidInput(
        fmt::format("{}: line {}: found no mapping; allowed: prefix, stack, cells, "
                    "network_gbit_per_gpu, profile, local_batch, one_micro_batch, why",
                    source, node.Mark().line + 1));
  }
  for (const auto& field : node) {
    const std::string key = field.first.Scalar();
    const YAML::Node& value = field.second;
    const auto bad = [&](const char* allowed) {
      return InvalidInput(
          fmt::format("{}: line {}: {}: allowed: {}", source, value.Mark().line + 1, key, allowed));
    };
    if (key == "cells") {
      if (!value.IsMap()) return bad("a mapping from columns to text");
      for (const auto& cell : value) facts.cells[cell.first.Scalar()] = cell.second.Scalar();
      continue;
    }
    if (!value.IsScalar()) return bad("one value");
    if (key == "prefix") {
      facts.prefix = value.Scalar();
    } else if (key == "year") {
      facts.year = value.Scalar();
    } else if (key == "stack") {
      facts.stack = value.Scalar();
    } else if (key == "profile") {
      facts.profile = value.Scalar();
    } else if (key == "local_batch" || key == "one_micro_batch") {
      if (value.Scalar() != "true" && value.Scalar() != "false") return bad("true, false");
      (key == "local_batch" ? facts.local_batch : facts.one_micro_batch) = value.Scalar() == "true";
    } else if (key == "why" || key == "outliers") {
      (key == "why" ? facts.why : facts.outliers) = value.Scalar();
    } else if (key == "network_gbit_per_gpu") {
      if (!YAML::convert<double>::decode(value, facts.network_gbit_per_gpu) ||
          !(facts.network_gbit_per_gpu > 0 && facts.network_gbit_per_gpu < 1e6)) {
        return bad("a number of Gb/s above 0");
      }
    } else {
      return bad(
          "prefix, year, stack, cells, network_gbit_per_gpu, profile, local_batch, "
          "one_micro_batch, why, outliers");
    }
  }
  if (facts.prefix.empty()) {
    return InvalidInput(
        fmt::format("{}: line {}: prefix is missing", source, node.Mark().line + 1));
  }
  return facts;
}

}  // namespace

Result<std::vector<SourceFacts>> ParseSourceFacts(std::string_view text,
                                                  const std::string& source) {
  MW_RETURN_IF_ERROR(CheckYamlBounds(text, source));
  try {
    const YAML::Node root = YAML::Load(std::string(text));
    if (!root.IsMap() || !root["sources"].IsSequence()) {
      return InvalidInput(source + ": line 1: allowed: 'sources:' and a list of entries");
    }
    std::vector<SourceFacts> all;
    for (const auto& node : root["sources"]) {
      MW_ASSIGN_OR_RETURN(SourceFacts facts, ReadEntry(node, source));
      all.push_back(std::move(facts));
    }
    return all;
  } catch (const YAML::Exception& error) {
    return InvalidInput(
        fmt::format("{}: line {}: not YAML of this form", source, error.mark.line + 1));
  }
}

Result<std::vector<SourceFacts>> LoadSourceFacts() {
  const std::filesystem::path profiles = cost::ProfileDir();
  const std::string path = (profiles.parent_path() / "validation" / "sources.yaml").string();
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound(path + ": cannot be read; is MESHWRIGHT_DATA_DIR right?");
  std::ostringstream text;
  text << file.rdbuf();
  return ParseSourceFacts(text.str(), path);
}

}  // namespace meshwright::planner::validate
