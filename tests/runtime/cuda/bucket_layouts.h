// Buckets of parameters as ranks of a split hold them, for tests of the end of a step.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "planner/ir/program.h"

namespace meshwright::runtime::cuda {

struct BucketLayout {
  std::vector<planner::ParameterEntry> entries;
  int64_t offset = 0;    ///< of bucket 1, elements
  int64_t elements = 0;  ///< of bucket 1, a multiple of dp
};

/// Bucket 1: a matrix cut by columns, a fused one cut by rows whose second part has copies, a
/// replicated vector without decay, a tied copy; with gaps. Odd sizes for scale 1; larger scales
/// have runs over many chunks. A parameter of bucket 0 lies in front.
inline BucketLayout MakeLayout(int64_t tp, int64_t dp, int64_t scale, int64_t gap) {
  BucketLayout layout;
  layout.offset = 24;  // divisible by every dp in use
  int64_t offset = layout.offset;
  const auto add = [&](const char* name, std::vector<int64_t> global, std::vector<int64_t> local,
                       int32_t axis,
                       std::vector<planner::ParameterPart> parts) -> planner::ParameterEntry& {
    planner::ParameterEntry& e = layout.entries.emplace_back();
    e.name = name;
    e.global_shape = std::move(global);
    e.local_shape = std::move(local);
    e.axis = axis;
    e.parts = std::move(parts);
    e.bucket = 1;
    e.offset = offset;
    offset += e.elements() + gap;
    return e;
  };
  add("other", {5}, {5}, -1, {});
  layout.entries.back().bucket = 0;
  layout.entries.back().offset = 0;
  offset = layout.offset;
  add("columns", {6 * scale, 4}, {6 * scale, 4 / tp}, 1, {{4, 1}});
  const int64_t copies = tp == 4 ? 2 : 1;
  add("fused", {10, 3 * scale}, {8 / tp + 2 * copies / tp, 3 * scale}, 0, {{8, 1}, {2, copies}});
  add("vector", {5 * scale}, {5 * scale}, -1, {}).decay = false;
  add("tied", {4 * scale}, {4 * scale}, -1, {}).tied_copy = true;
  layout.elements = (offset - layout.offset + dp - 1) / dp * dp;
  return layout;
}

}  // namespace meshwright::runtime::cuda
