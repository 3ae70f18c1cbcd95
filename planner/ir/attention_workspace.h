// How much scratch the fused attention kernels of GPUs need, as a bound that the plan can state
// before anything runs. The kernels check their plans against it before the first step.
#pragma once

#include <cstdint>

#include "planner/ir/dtype.h"
#include "planner/ir/program.h"

namespace meshwright::planner {

/// One attention call on one rank. Sizes in elements; heads are local.
struct AttentionShape {
  int64_t sequence = 0;
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  ///< query i sees key j only when |i - j| < window; 0: no window
  bool causal = true;
  double scale = 1.0;
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;

  /// Width of a packed row: queries, keys and values of one token.
  int64_t packed() const { return (heads + 2 * kv_heads) * head_dim; }
};
AttentionShape AttentionShapeOf(const OpAttributes& attributes);

/// Queries that the fp32 kernels handle at a time.
inline constexpr int64_t kFp32AttentionQueryBlock = 256;

/// Bytes of the `workspace` operand that suffice for attention of GPU ranks.
/// bf16 forward: a margin for the library's own scratch. bf16 backward: the fp32 sums of dQ
/// (b H S d), the row sums of dO * O (b H S) and, under grouped queries, keys' and values'
/// gradients of every query head in bf16; deterministic: samples run one after the other, and
/// instead of the dQ sums there is one bf16 score matrix (H S S) of a sample. Those sizes were read
/// off cuDNN 9.19 (tests/runtime/cuda/attention_graph_test.cc compares). fp32: the scores (and
/// backward, their gradients) of a block of queries of all key-value heads.
int64_t AttentionWorkspaceBytes(const AttentionShape& shape, DType dtype, bool backward,
                                bool deterministic);

}  // namespace meshwright::planner
