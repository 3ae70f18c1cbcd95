// Parameters as a rank holds them: shapes, how they are cut over tensor ranks, who sums and counts
// their gradients, how they begin.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshwright::planner {

/// How one fused part of a parameter is cut over tensor ranks: `extent` global rows (of the cut
/// axis) in tp / copies equal pieces, rank i holding piece i / copies.
struct ParameterPart {
  int64_t extent = 0;
  int64_t copies = 1;
  friend bool operator==(const ParameterPart&, const ParameterPart&) = default;
};

/// Why a gradient is reduced beyond data parallelism at step end, and who counts it in the norm.
enum class LateReduction : uint8_t {
  kNone,
  kTensorPartial,  ///< sum over the tensor group (replicated parameters under sequence parallelism)
  kKeyValueCopies,  ///< sum over the ranks that hold copies of the same key-value head
  kTied,            ///< sum over first and last stage
};

enum class InitKind : uint8_t { kNormal, kZeros, kOnes };

/// One parameter tensor of a rank class. Offsets are elements from the start of the parameter area;
/// the gradient has the same element offset in the gradient area.
struct ParameterEntry {
  std::string name;   ///< globally unique, e.g. "language.layers.3.attention.qkv.weight"
  int64_t layer = -1;
  std::vector<int64_t> global_shape;  ///< unsharded, vocabulary padded
  std::vector<int64_t> local_shape;
  int32_t axis = -1;  ///< cut axis; -1: replicated over tensor ranks
  std::vector<ParameterPart> parts;  ///< along `axis`, in order
  int64_t offset = 0;
  int32_t bucket = 0;
  LateReduction late = LateReduction::kNone;
  bool tied_copy = false;  ///< the last stage's copy of a tied embedding: not counted in the norm
  bool decay = true;
  InitKind init = InitKind::kNormal;
  double init_std = 0.0;
  int64_t valid_rows = 0;  ///< rows of axis 0 beyond this are padding (0: none)
  friend bool operator==(const ParameterEntry&, const ParameterEntry&) = default;

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : local_shape) n *= d;
    return n;
  }
};

/// A run of consecutive local indices along the cut axis and where it lies globally.
struct ShardSegment {
  int64_t local_begin = 0;
  int64_t global_begin = 0;
  int64_t length = 0;
  bool owner = true;  ///< false on copies of a part that another rank counts
};
/// Segments of `entry` on tensor rank `tp_index` of `tp`; one segment over everything if replicated.
std::vector<ShardSegment> SegmentsOf(const ParameterEntry& entry, int64_t tp_index, int64_t tp);

}  // namespace meshwright::planner
