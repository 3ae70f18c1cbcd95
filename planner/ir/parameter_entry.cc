#include "planner/ir/parameter_entry.h"

namespace meshwright::planner {

std::vector<ShardSegment> SegmentsOf(const ParameterEntry& entry, int64_t tp_index, int64_t tp) {
  if (entry.axis < 0) {
    const int64_t extent = entry.local_shape.empty() ? 1 : entry.local_shape[0];
    return {{0, 0, extent, tp_index == 0}};
  }
  std::vector<ShardSegment> segments;
  int64_t local = 0;
  int64_t global = 0;
  for (const ParameterPart& part : entry.parts) {
    const int64_t length = part.extent * part.copies / tp;
    segments.push_back(
        {local, global + tp_index / part.copies * length, length, tp_index % part.copies == 0});
    local += length;
    global += part.extent;
  }
  return segments;
}

}  // namespace meshwright::planner
