// The checks of CheckModel, adding to problems that a reader has already found.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "planner/ir/model_problems.h"
#include "planner/ir/model_spec.h"

namespace meshwright::planner {

/// Field path ("modules[0].layer_kinds[1].attention.heads") to the line that states it.
using FieldLines = std::map<std::string, size_t>;

/// Adds every problem of `model` whose field has no problem yet.
void CheckModelInto(const ModelSpec& model, const FieldLines& lines, Problems* problems);

}  // namespace meshwright::planner
