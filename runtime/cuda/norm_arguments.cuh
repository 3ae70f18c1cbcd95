// What the norm kernels share. Formulas: cpu_kernels_norm.cc.
#pragma once

#include "runtime/cuda/operands.h"
#include "runtime/cuda/pack.cuh"
#include "runtime/cuda/reduce.cuh"

namespace meshwright::runtime::cuda {

/// Sizes of one call and its statistics. `mean` is nullptr for RMS norms.
struct NormShape {
  int64_t rows = 0;
  int32_t h = 0;
  float one = 0.0f;  ///< added to gamma
  float* mean = nullptr;
  float* rstd = nullptr;
};

inline NormShape NormShapeOf(const OpCall& call, const char* input) {
  const Operands operands(call);
  const planner::TensorView& x = *operands.View(input);
  const bool layer = call.op.attributes.norm == planner::NormKind::kLayerNorm;
  NormShape shape;
  shape.rows = RowCount(x);
  MW_CHECK(Width(x) < int64_t{1} << 31 && shape.rows < int64_t{1} << 31);
  shape.h = static_cast<int32_t>(Width(x));
  shape.one = call.op.attributes.one_plus ? 1.0f : 0.0f;
  float* stat = operands.Get<float>("stat", layer ? 2 * shape.rows : shape.rows);
  if (layer) shape.mean = stat;
  shape.rstd = layer ? stat + shape.rows : stat;
  return shape;
}

inline constexpr int kLoopThreads = 256;  ///< of the kernels that loop over a row

/// Threads a row and packs a thread of the kernels that hold a row in registers.
template <int kThreads_, int kPacks_>
struct RowConfig {
  static constexpr int kThreads = kThreads_;
  static constexpr int kPacks = kPacks_;
};

/// Returns f(RowConfig) of the smallest configuration that holds `packs` packs, or otherwise() when
/// a row is too long for registers.
template <typename F, typename G>
Status WithRowConfig(int64_t packs, F f, G otherwise) {
  if (packs <= 128) return f(RowConfig<128, 1>{});
  if (packs <= 256) return f(RowConfig<128, 2>{});
  if (packs <= 512) return f(RowConfig<128, 4>{});
  if (packs <= 1024) return f(RowConfig<256, 4>{});
  if (packs <= 2048) return f(RowConfig<512, 4>{});
  return otherwise();
}

}  // namespace meshwright::runtime::cuda
