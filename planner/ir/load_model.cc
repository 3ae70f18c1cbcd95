#include "planner/ir/load_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "planner/ir/model_yaml.h"
#include "topologies/yaml_guard.h"

namespace meshwright::planner {
namespace {

namespace fs = std::filesystem;

fs::path ShippedFolder() {
  const char* data = std::getenv("MESHWRIGHT_DATA_DIR");
  if (data != nullptr && *data != '\0') return fs::path(data) / "models";
  return MESHWRIGHT_MODELS_DIR;
}

Result<std::string> ReadText(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (!error && size > kMaxTextBytes) {
    return InvalidInput(
        fmt::format("{}: found {} bytes; allowed: at most {} bytes; is this the right file?",
                    path.string(), size, kMaxTextBytes));
  }
  std::ifstream file(path, std::ios::binary);
  // One byte more than allowed, in case the file grows while we read; the guard then refuses it.
  std::string text(kMaxTextBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    return NotFound(fmt::format("{}: cannot be read; check its permissions", path.string()));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

/// JSON objects start with a brace; so does YAML in flow style, which then names our format.
bool LooksLikeHfConfig(std::string_view text) {
  if (text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);
  const size_t start = text.find_first_not_of(" \t\r\n");
  return start != std::string_view::npos && text[start] == '{' &&
         text.find("meshwright_model") == std::string_view::npos;
}

Result<ModelSpec> LoadFile(const fs::path& path) {
  MW_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  const std::string source = path.string();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    return InvalidInput(fmt::format(
        "{}: found an empty file; allowed: a Hugging Face config.json or a Meshwright model in "
        "YAML; is this the right file?",
        source));
  }
  const bool json = LooksLikeHfConfig(text) || path.extension() == ".json";
  return json ? ParseHfConfig(text, source) : ParseModelYaml(text, source);
}

Status NoSuchModel(const std::string& name) {
  return NotFound(fmt::format(
      "model {}: found no such file; allowed: a config.json, a Meshwright model in YAML, a folder "
      "with a config.json, or one of {}; check the path",
      name, fmt::join(ShippedModels(), ", ")));
}

}  // namespace

std::vector<std::string> ShippedModels() {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(ShippedFolder(), error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().extension() == ".yaml") names.push_back(at->path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<ModelSpec> LoadModel(const std::string& path_or_name) {
  const fs::path path(path_or_name);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_regular_file(status)) return LoadFile(path);
  const bool folder = fs::is_directory(status);
  if (folder && fs::is_regular_file(path / "config.json", error)) {
    return LoadFile(path / "config.json");
  }
  const std::vector<std::string> shipped = ShippedModels();
  if (std::find(shipped.begin(), shipped.end(), path_or_name) != shipped.end()) {
    return LoadFile(ShippedFolder() / (path_or_name + ".yaml"));
  }
  if (folder) {
    return NotFound(fmt::format(
        "{}: found a folder without config.json; allowed: a model file, or a folder that holds a "
        "config.json; check the path",
        path_or_name));
  }
  if (fs::exists(status)) {
    return InvalidInput(fmt::format(
        "{}: found a device, pipe or socket; allowed: a regular file; copy the text to a file",
        path_or_name));
  }
  return NoSuchModel(path_or_name);
}

}  // namespace meshwright::planner
