// Initial state of a rank: values depend on parameter name and global coordinates, never on the
// split.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/kernels.h"

namespace meshwright::runtime {

/// Fills the parameter area of `arena` and zeroes the gradient and optimizer areas. A normal value
/// is drawn in fp64 from (seed, parameter name, global element index) and rounded to the compute
/// dtype, so every split, every tied copy and every dtype starts from the same model. Padding rows
/// (beyond `valid_rows`) and gaps between parameters are zero.
/// The dtype is `rank.facts.dtypes.compute`: bf16, fp32 or fp64.
void InitializeParameters(const RankContext& rank, uint64_t seed, std::byte* arena);

}  // namespace meshwright::runtime
