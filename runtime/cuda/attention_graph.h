// Operation graphs of attention for cuDNN, forward and backward, on packed bf16 rows. The order of
// operations is the one that cuDNN's pattern matcher recognises as fused attention; the names of
// the steps follow the CPU kernel (runtime/cpu_kernels_attention.cc).
#pragma once

#include <cstdint>

#include "planner/ir/attention_workspace.h"
#include "runtime/cuda/cudnn_graph.h"

namespace meshwright::runtime::cuda {

/// Tensors of the graphs that get memory in the variant pack. Packed tensors enter once for each
/// part, at the part's address.
enum class AttentionTensor : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOutput,
  kLogSumExp,
  kOutputGrad,
  kQueryGrad,
  kKeyGrad,
  kValueGrad,
  kQueryGradSum,   ///< fp32 sums of dQ [b, heads, S, d]; absent in the deterministic graph
  kRowSum,         ///< fp32 sums of dO * O [b, heads, S]
  kScale,          ///< host float
  kOne,            ///< host float 1, only backward
  kMinusInfinity,  ///< host float, absent without a mask
  kWindow,         ///< host float, absent without a window
};
constexpr int64_t IdOf(AttentionTensor tensor) {
  return static_cast<int64_t>(tensor);
}

struct AttentionGraphSpec {
  planner::AttentionShape shape;
  bool backward = false;
  bool deterministic = false;  ///< of backward: one writer for every element of dQ
  /// Samples that one execution handles; strides are always those of shape.batch.
  int64_t samples = 0;
  friend bool operator==(const AttentionGraphSpec&, const AttentionGraphSpec&) = default;
};

/// kUnsupported when cuDNN has no fused attention for the shape: head size, heads, dtype.
Status CheckAttentionShape(const planner::AttentionShape& shape);

/// The finished operation graph, in `builder`, which must outlive it.
Result<CudnnDescriptor> BuildAttentionGraph(const AttentionGraphSpec& spec,
                                            const CudnnTarget& target, CudnnGraphBuilder* builder);

/// Byte offsets of the pieces of the `workspace` operand of one execution.
struct AttentionScratch {
  int64_t query_grad_sum = 0;
  int64_t row_sum = 0;
  int64_t plan = 0;   ///< start of the plan's own workspace
  int64_t total = 0;  ///< with `plan_bytes`
};
AttentionScratch LayOutScratch(const AttentionGraphSpec& spec, int64_t plan_bytes);

}  // namespace meshwright::runtime::cuda
