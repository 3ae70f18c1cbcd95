// Views of a rank's memory: regions of the arena, the step scalars among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/ir/dtype.h"

namespace meshwright::planner {

/// Base addresses an instance binds; a tensor view is region base + constant offset.
enum class Region : uint8_t {
  kParameter,      ///< parameters of the item whose gradients are complete within backward
  kParameterLate,  ///< parameters of the item that need a further reduction at step end
  kGradient,
  kGradientLate,
  kOptimizer,
  kSaved,    ///< area of the item in the slot of (chunk, micro-batch)
  kScratch,  ///< shared by all blocks of the rank
  kIn0,      ///< residual stream in (forward), its gradient in (backward)
  kIn1,      ///< pending addend of the residual stream (forward)
  kOut0,     ///< residual stream out (forward), its gradient out (backward)
  kOut1,     ///< pending addend out (forward)
  kIo,       ///< labels of the micro-batch
  kScalar,   ///< step scalars, see Scalar
  kCount,
};
inline constexpr size_t kRegionCount = static_cast<size_t>(Region::kCount);

/// Step scalars: 8-byte cells at the start of the io area. Types in brackets.
enum class Scalar : uint8_t {
  kTokenCount,       ///< [i64] unmasked tokens of the step, global after CountTokens
  kInverseCount,     ///< [f64] 1 / max(count, 1)
  kLossSum,          ///< [f64] sum of token losses of this rank
  kStatistics,       ///< [f64 x 3] squared gradient norm, loss sum, token count; all-reduced
  kStatistics1,
  kStatistics2,
  kClipFactor,       ///< [f64] min(1, clip / (norm + 1e-6)); 1 when clipping is off
  kLearningRate,     ///< [f64] written by the host before the step
  kStepNumber,       ///< [i64] 1-based, written by the host before the step
  kCount,
};
inline constexpr int64_t kScalarBytes = 8 * static_cast<int64_t>(Scalar::kCount);

/// A view of memory inside a block: region base + offset. Shapes are local to the rank.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  Region region = Region::kScratch;
  int64_t offset = 0;  ///< bytes from the base of the region
  friend bool operator==(const TensorView&, const TensorView&) = default;

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  /// Elements of all axes but the last.
  int64_t rows() const { return shape.empty() ? 1 : elements() / shape.back(); }
  int64_t bytes() const { return elements() * SizeOf(dtype); }
};

}  // namespace meshwright::planner
