// Scaled dot-product attention in blocks of 64 queries. The packed rows are read in place: the rows
// of one head of one sample lie batch * (heads + 2 kv_heads) * head_dim elements apart. Backward
// recomputes the probabilities from the log-sum-exp, so nothing of size S x S is kept.
//
// Query i sees key j when j <= i (causal) and |i - j| < window (window > 0).
#include <algorithm>
#include <cmath>

#include "runtime/cpu_blas.h"
#include "runtime/cpu_kernels.h"

namespace meshwright::runtime::cpu {
namespace {

constexpr int64_t kQueryBlock = 64;

struct AttentionShape {
  explicit AttentionShape(const planner::OpAttributes& a)
      : sequence(a.sequence),
        batch(a.batch),
        heads(a.heads),
        kv_heads(a.kv_heads),
        d(a.head_dim),
        window(a.window),
        causal(a.causal),
        scale(a.scale) {
    MW_CHECK(kv_heads > 0 && heads % kv_heads == 0);
  }
  int64_t sequence, batch, heads, kv_heads, d, window;
  bool causal;
  double scale;

  int64_t packed() const { return (heads + 2 * kv_heads) * d; }
  int64_t qkv_elements() const { return sequence * batch * packed(); }
  int64_t o_elements() const { return sequence * batch * heads * d; }
  int64_t lse_elements() const { return batch * heads * sequence; }
  int64_t qkv_stride() const { return batch * packed(); }
  int64_t o_stride() const { return batch * heads * d; }

  int64_t first_key(int64_t query) const {
    return window > 0 ? std::max<int64_t>(0, query - window + 1) : 0;
  }
  int64_t end_key(int64_t query) const {
    if (causal) return query + 1;
    return window > 0 ? std::min(sequence, query + window) : sequence;
  }
};

/// Where q, k, v of one head of one sample start in the packed rows, and o in its rows.
struct HeadOffsets {
  HeadOffsets(const AttentionShape& s, int64_t sample, int64_t head) {
    const int64_t kv = head / (s.heads / s.kv_heads);
    q = sample * s.packed() + head * s.d;
    k = sample * s.packed() + (s.heads + kv) * s.d;
    v = k + s.kv_heads * s.d;
    o = (sample * s.heads + head) * s.d;
    lse = (sample * s.heads + head) * s.sequence;
  }
  int64_t q = 0, k = 0, v = 0, o = 0, lse = 0;
};

/// Queries [begin, end) and the keys [key_begin, key_end) that any of them sees.
struct QueryBlock {
  QueryBlock(const AttentionShape& s, int64_t first)
      : begin(first),
        end(std::min(first + kQueryBlock, s.sequence)),
        key_begin(s.first_key(begin)),
        key_end(s.end_key(end - 1)) {}
  int64_t begin, end, key_begin, key_end;
  int64_t rows() const { return end - begin; }
  int64_t keys() const { return key_end - key_begin; }
};

template <typename T>
Status Scores(const AttentionShape& s, const HeadOffsets& at, const QueryBlock& block, const T* qkv,
              T* scores) {
  const int64_t stride = s.qkv_stride();
  return MatrixProduct<T>(block.rows(), block.keys(), s.d, static_cast<T>(s.scale),
                          {qkv + at.q + block.begin * stride, stride},
                          {qkv + at.k + block.key_begin * stride, stride, true}, T{0},
                          {scores, block.keys()});
}

/// Scores of one query to exp(score - shift), zero where the query does not see the key.
template <typename T>
void Exponentials(const AttentionShape& s, const QueryBlock& block, int64_t query, T shift,
                  T* row) {
  const int64_t first = s.first_key(query) - block.key_begin;
  const int64_t end = s.end_key(query) - block.key_begin;
  std::fill(row, row + first, T{0});
  for (int64_t j = first; j < end; ++j) row[j] = std::exp(row[j] - shift);
  std::fill(row + end, row + block.keys(), T{0});
}

template <typename T>
Status AttentionBlock(const AttentionShape& s, const HeadOffsets& at, const QueryBlock& block,
                      const T* qkv, T* o, T* lse, T* scores) {
  MW_RETURN_IF_ERROR(Scores(s, at, block, qkv, scores));
  T inverse[kQueryBlock];
  for (int64_t i = block.begin; i < block.end; ++i) {
    T* row = scores + (i - block.begin) * block.keys();
    const int64_t first = s.first_key(i) - block.key_begin;
    const int64_t end = s.end_key(i) - block.key_begin;
    const T top = *std::max_element(row + first, row + end);
    Exponentials(s, block, i, top, row);
    double sum = 0.0;
    for (int64_t j = first; j < end; ++j) sum += static_cast<double>(row[j]);
    lse[at.lse + i] = static_cast<T>(static_cast<double>(top) + std::log(sum));
    inverse[i - block.begin] = static_cast<T>(1.0 / sum);
  }
  T* out = o + at.o + block.begin * s.o_stride();
  MW_RETURN_IF_ERROR(MatrixProduct<T>(
      block.rows(), s.d, block.keys(), T{1}, {scores, block.keys()},
      {qkv + at.v + block.key_begin * s.qkv_stride(), s.qkv_stride()}, T{0}, {out, s.o_stride()}));
  for (int64_t i = 0; i < block.rows(); ++i) {
    for (int64_t j = 0; j < s.d; ++j) out[i * s.o_stride() + j] *= inverse[i];
  }
  return Status::Ok();
}

template <typename T>
Status AttentionT(const OpCall& call) {
  const Operands operands(call);
  const AttentionShape s(call.op.attributes);
  const T* qkv = operands.Get<T>("qkv", s.qkv_elements());
  T* o = operands.Get<T>("o", s.o_elements());
  T* lse = operands.Get<T>("lse", s.lse_elements());
  T* scores = operands.GetAtLeast<T>("workspace", std::min(kQueryBlock, s.sequence) * s.sequence);
  for (int64_t sample = 0; sample < s.batch; ++sample) {
    for (int64_t head = 0; head < s.heads; ++head) {
      const HeadOffsets at(s, sample, head);
      for (int64_t begin = 0; begin < s.sequence; begin += kQueryBlock) {
        MW_RETURN_IF_ERROR(AttentionBlock(s, at, QueryBlock(s, begin), qkv, o, lse, scores)
                               .WithContext(Where(call)));
      }
    }
  }
  return Status::Ok();
}

/// Operands of the backward pass.
template <typename T>
struct GradPointers {
  const T* qkv;
  const T* o;
  const T* lse;
  const T* d_o;
  T* dqkv;
  T* p;   ///< probabilities of a block
  T* dp;  ///< their gradient, then that of the scores
};

/// Turns dp into the gradient of the unscaled scores, ds = scale * p * (dp - sum(do * o)).
template <typename T>
void ScoreGrad(const AttentionShape& s, const HeadOffsets& at, const QueryBlock& block,
               const GradPointers<T>& x) {
  for (int64_t i = block.begin; i < block.end; ++i) {
    const T* o = x.o + at.o + i * s.o_stride();
    const T* d_o = x.d_o + at.o + i * s.o_stride();
    double sum = 0.0;
    for (int64_t j = 0; j < s.d; ++j)
      sum += static_cast<double>(o[j]) * static_cast<double>(d_o[j]);
    const T delta = static_cast<T>(sum);
    const T scale = static_cast<T>(s.scale);
    const T* p = x.p + (i - block.begin) * block.keys();
    T* dp = x.dp + (i - block.begin) * block.keys();
    for (int64_t j = 0; j < block.keys(); ++j) dp[j] = scale * p[j] * (dp[j] - delta);
  }
}

template <typename T>
Status AttentionGradBlock(const AttentionShape& s, const HeadOffsets& at, const QueryBlock& block,
                          const GradPointers<T>& x) {
  const int64_t stride = s.qkv_stride();
  const int64_t keys = block.keys();
  const int64_t queries_at = block.begin * stride;
  const int64_t keys_at = block.key_begin * stride;
  const MatrixIn<T> d_o = {x.d_o + at.o + block.begin * s.o_stride(), s.o_stride()};

  MW_RETURN_IF_ERROR(Scores(s, at, block, x.qkv, x.p));
  for (int64_t i = block.begin; i < block.end; ++i) {
    Exponentials(s, block, i, x.lse[at.lse + i], x.p + (i - block.begin) * keys);
  }
  // dV += P^T dO; dP = dO V^T
  MW_RETURN_IF_ERROR(MatrixProduct<T>(keys, s.d, block.rows(), T{1}, {x.p, keys, true}, d_o, T{1},
                                      {x.dqkv + at.v + keys_at, stride}));
  MW_RETURN_IF_ERROR(MatrixProduct<T>(block.rows(), keys, s.d, T{1}, d_o,
                                      {x.qkv + at.v + keys_at, stride, true}, T{0}, {x.dp, keys}));
  ScoreGrad(s, at, block, x);
  // dQ = dS K; dK += dS^T Q
  MW_RETURN_IF_ERROR(MatrixProduct<T>(block.rows(), s.d, keys, T{1}, {x.dp, keys},
                                      {x.qkv + at.k + keys_at, stride}, T{0},
                                      {x.dqkv + at.q + queries_at, stride}));
  return MatrixProduct<T>(keys, s.d, block.rows(), T{1}, {x.dp, keys, true},
                          {x.qkv + at.q + queries_at, stride}, T{1},
                          {x.dqkv + at.k + keys_at, stride});
}

template <typename T>
Status AttentionGradT(const OpCall& call) {
  const Operands operands(call);
  const AttentionShape s(call.op.attributes);
  const int64_t block_elements = std::min(kQueryBlock, s.sequence) * s.sequence;
  T* workspace = operands.GetAtLeast<T>("workspace", 2 * block_elements);
  const GradPointers<T> x = {operands.Get<T>("qkv", s.qkv_elements()),
                             operands.Get<T>("o", s.o_elements()),
                             operands.Get<T>("lse", s.lse_elements()),
                             operands.Get<T>("do", s.o_elements()),
                             operands.Get<T>("dqkv", s.qkv_elements()),
                             workspace,
                             workspace + block_elements};
  // Keys and values gather from the queries of several blocks and heads.
  std::fill(x.dqkv, x.dqkv + s.qkv_elements(), T{0});
  for (int64_t sample = 0; sample < s.batch; ++sample) {
    for (int64_t head = 0; head < s.heads; ++head) {
      const HeadOffsets at(s, sample, head);
      for (int64_t begin = 0; begin < s.sequence; begin += kQueryBlock) {
        MW_RETURN_IF_ERROR(
            AttentionGradBlock(s, at, QueryBlock(s, begin), x).WithContext(Where(call)));
      }
    }
  }
  return Status::Ok();
}

}  // namespace

Status Attention(const OpCall& call) {
  return ForDType(call, "qkv", [&](auto zero) { return AttentionT<decltype(zero)>(call); });
}
Status AttentionGrad(const OpCall& call) {
  return ForDType(call, "qkv", [&](auto zero) { return AttentionGradT<decltype(zero)>(call); });
}

}  // namespace meshwright::runtime::cpu
