// Text to ModelSpec: our YAML, a Hugging Face config.json, or the name of a shipped model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/ir/model_spec.h"
#include "topologies/status.h"

namespace meshwright::planner {

/// Loads the model that `path_or_name` means, in this order: a file (YAML or config.json, told
/// apart by content); a folder that holds a config.json; a shipped model such as "llama-3-8b".
/// Errors: NotFound (lists the shipped names), InvalidInput (lists every problem of the file).
Result<ModelSpec> LoadModel(const std::string& path_or_name);

/// Reads the text of a Hugging Face config.json. Fields that it leaves out get the default of its
/// family's configuration class in `transformers`, listed in defaults_filled; what it states and
/// the spec does not hold is listed in notes. Of a vision-language model only the language part is
/// read. `source` (a path) names the text in errors and, without folder and ending, the model.
Result<ModelSpec> ParseHfConfig(std::string_view json, std::string_view source);

/// The `model_type`s that ParseHfConfig knows, sorted.
std::vector<std::string> KnownHfFamilies();

/// Names of the shipped models, sorted: the YAML files of $MESHWRIGHT_DATA_DIR/models, or of the
/// source tree's planner/models when that variable is not set.
std::vector<std::string> ShippedModels();

}  // namespace meshwright::planner
