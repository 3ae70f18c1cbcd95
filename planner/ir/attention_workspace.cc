#include "planner/ir/attention_workspace.h"

#include <algorithm>

namespace meshwright::planner {
namespace {

int64_t RoundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Scratch of the library's plans beyond the named pieces: counters and alignment.
constexpr int64_t kPlanMargin = int64_t{1} << 20;
constexpr int64_t kAlignment = 256;

}  // namespace

AttentionShape AttentionShapeOf(const OpAttributes& a) {
  return {a.sequence, a.batch, a.heads, a.kv_heads, a.head_dim, a.window, a.causal, a.scale};
}

int64_t AttentionWorkspaceBytes(const AttentionShape& s, DType dtype, bool backward,
                                bool deterministic) {
  if (dtype != DType::kBf16) {
    const int64_t queries = std::min(s.sequence, kFp32AttentionQueryBlock);
    const int64_t scores = RoundUp(s.kv_heads * queries * s.sequence * SizeOf(dtype), kAlignment);
    return backward ? 2 * scores : scores;
  }
  if (!backward) return kPlanMargin;
  // Kernels work on tiles of up to 128 rows and may pad the last one.
  const int64_t rows = RoundUp(s.sequence, 128);
  const int64_t samples = deterministic ? 1 : s.batch;
  int64_t bytes = kPlanMargin + RoundUp(samples * s.heads * rows * 4, kAlignment);
  if (deterministic) {
    bytes += s.heads * rows * rows * 2;
  } else {
    bytes += samples * s.heads * rows * s.head_dim * 4;
  }
  if (s.kv_heads != s.heads) bytes += 2 * 2 * samples * s.heads * rows * s.head_dim;
  return bytes;
}

}  // namespace meshwright::planner
