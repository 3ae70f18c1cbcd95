// Ops: what the ranks compute and exchange. Operands and work of each kind: op_schema.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/ir/model_spec.h"

namespace meshwright::planner {

enum class OpKind : uint8_t {
  // data
  kLoadTokens,   ///< host: token ids of one micro-batch -> [S, b] int32
  kLoadLabels,   ///< host: labels of one micro-batch -> [S, b] int32, -100 = not counted
  kCountTokens,  ///< labels [m, S, b] -> kTokenCount
  kInvertCount,  ///< kTokenCount -> kInverseCount
  // embedding
  kEmbed,          ///< tokens, W [V/t, h] -> y [S, b, h], zero rows for ids of other ranks
  kEmbedGrad,      ///< tokens, dy [S, b, h] -> W.G
  kAddPositions,   ///< y [rows, b, h] += P [position, h], in place
  kPositionsGrad,  ///< dy [rows, b, h] -> P.G [max_positions, h]
  // layer
  kNorm,            ///< (r [, delta [, delta_other]]) -> r1 = r + deltas (absent without any), n, statistics
  kNormApply,       ///< r1, statistics -> n again (recomputation)
  kNormGrad,        ///< dn, r1, statistics, gamma, dr in -> dr out = dr in + d(norm); gamma.G [, beta.G]
  kLinear,          ///< x [rows, in], W [out, in] [, bias] -> y [rows, out], or added to it
  kLinearInputGrad,   ///< dy [rows, out], W [out, in] -> dx [rows, in], or added to it
  kLinearWeightGrad,  ///< dy [rows, out], x [rows, in] -> W.G [out, in]
  kBiasAdd,         ///< y [rows, h] += bias [h], in place
  kBiasGrad,        ///< dy [rows, n] -> bias.G [n]
  kRotary,          ///< q and k of qkv rotated in place; attributes.inverse: rotated back (gradient)
  kAttention,       ///< qkv [S, b, (q+2k)d] -> o [S, b, q d], lse [b, heads, S]; workspace
  kAttentionGrad,   ///< qkv, o, lse, do -> dqkv; workspace
  kActivation,      ///< u [rows, f or 2f] -> s [rows, f]; gated: s = act(gate) * up
  kActivationGrad,  ///< u, ds -> du over u in place [, s again]
  kAdd,             ///< a + b -> out
  kCopy,            ///< a -> out
  // head and loss
  kSoftmaxStats,       ///< logits [rows, V/t], labels -> stats [rows, 3] fp: max, sum exp, target logit
  kCrossEntropyGrad,   ///< stats of all ranks [t, rows, 3], labels; logits -> dlogits in place; loss sum
  // communication (attributes.communicator)
  kAllReduce,      ///< in place sum
  kAllGather,      ///< in [n] -> out [ranks * n], rank order; in may be the own slice of out
  kReduceScatter,  ///< in [ranks * n] -> out [n]; out may be the own slice of in
  kShift,           ///< in [n] to the group's next rank, out [n] from the one before; a ring
  kSend,
  kRecv,
  // step
  kSquaredNorm,    ///< gradients of bucket -> adds the owned, counted-once part to kStatistics
  kStepStatistics, ///< loss sum and token count -> kStatistics1/2 on the ranks that report them
  kClipFactor,     ///< kStatistics -> kClipFactor
  kOptimizerStep,  ///< parameters, gradients, moments of bucket (own shard)
  kReadBack,       ///< host: scalars to the run summary
  kCount,
};
inline constexpr size_t kOpKindCount = static_cast<size_t>(OpKind::kCount);
std::string ToString(OpKind kind);

using StreamId = int16_t;  ///< index into RankProgram::streams
using EventId = int32_t;   ///< event register of a rank; -1: none
inline constexpr StreamId kComputeStream = 0;
inline constexpr StreamId kTensorStream = 1;
inline constexpr StreamId kDataStream = 2;

enum class Access : uint8_t {
  kRead,
  kWrite,       ///< overwritten, not read
  kAccumulate,  ///< read, added to, written
  kReadWrite,   ///< in place
};

struct Operand {
  int32_t tensor = 0;  ///< index into Block::tensors
  Access access = Access::kRead;
  friend bool operator==(const Operand&, const Operand&) = default;
};

/// Parameters of an op; which ones a kind reads stands at its row in op_schema.cc.
struct OpAttributes {
  bool inverse = false;     ///< kRotary
  bool has_delta = false;   ///< kNorm
  bool gated = false;
  bool causal = true;
  bool one_plus = false;    ///< norm weight is w - 1
  NormKind norm = NormKind::kRmsNorm;
  Activation activation = Activation::kGeluTanh;
  double eps = 0.0;
  double scale = 1.0;       ///< attention score scale
  double rope_theta = 0.0;
  int64_t sequence = 0;     ///< S
  int64_t batch = 0;        ///< b
  int64_t heads = 0;        ///< local query heads
  int64_t kv_heads = 0;     ///< local key-value heads
  int64_t head_dim = 0;
  int64_t window = 0;       ///< 0: none
  int64_t vocab = 0;        ///< true vocabulary; columns beyond it are masked
  int64_t row_begin = 0;    ///< first row of a row chunk (chunked head)
  int32_t bucket = -1;      ///< kSquaredNorm, kOptimizerStep
  int32_t communicator = -1;  ///< class-local communicator index
  int32_t peer = -1;          ///< kSend, kRecv: position of the partner in the communicator
  bool sequence_sharded = false;  ///< rows are this tensor rank's slice of the sequence
  friend bool operator==(const OpAttributes&, const OpAttributes&) = default;
};

struct Op {
  OpKind kind = OpKind::kCopy;
  StreamId stream = kComputeStream;
  std::vector<EventId> waits;
  EventId signal = -1;
  std::vector<Operand> operands;  ///< order fixed by the kind, see op_schema.h
  OpAttributes attributes;
  friend bool operator==(const Op&, const Op&) = default;
};

}  // namespace meshwright::planner
