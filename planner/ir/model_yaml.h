// Our own text form of a ModelSpec: YAML, versioned. planner/ir/README.md documents every field.
#pragma once

#include <string>
#include <string_view>

#include "planner/ir/model_spec.h"
#include "topologies/status.h"

namespace meshwright::planner {

inline constexpr int kModelYamlVersion = 1;  ///< value of the key `meshwright_model`

/// Reads one model. Errors (all of them at once) name source, line, field, found, allowed. Optional
/// fields that the text leaves out are filled in and listed in defaults_filled, after the entries
/// that the text itself lists.
Result<ModelSpec> ParseModelYaml(std::string_view text, std::string_view source);

/// The text of a model: states all but switched-off features, so that
/// ParseModelYaml(PrintModelYaml(x)) == x for every x that passes CheckModel.
std::string PrintModelYaml(const ModelSpec& model);

}  // namespace meshwright::planner
