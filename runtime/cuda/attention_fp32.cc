#include "runtime/cuda/attention_fp32.h"

#include <algorithm>
#include <limits>
#include <string>

#include "runtime/cuda/cuda_device.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::AttentionShape;

/// Row-major matrices of a batch: rows `stride` elements apart, matrices `batch_stride`.
struct Matrices {
  const float* data = nullptr;
  int64_t stride = 0;
  int64_t batch_stride = 0;
  bool transposed = false;
};
struct Results {
  float* data = nullptr;
  int64_t stride = 0;
  int64_t batch_stride = 0;
};

/// c [m, n] = alpha a [m, k] b [k, n] + beta c for each of `batch` matrices. cuBLAS reads matrices
/// by columns, so it computes the transposed product b^T a^T.
Status Product(cublasHandle_t handle, int64_t m, int64_t n, int64_t k, float alpha,
               const Matrices& a, const Matrices& b, float beta, const Results& c, int64_t batch) {
  const auto size = [](int64_t x) { return static_cast<int>(x); };
  return CublasStatus(
      cublasGemmStridedBatchedEx(handle, b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                                 a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, size(n), size(m),
                                 size(k), &alpha, b.data, CUDA_R_32F, size(b.stride),
                                 b.batch_stride, a.data, CUDA_R_32F, size(a.stride), a.batch_stride,
                                 &beta, c.data, CUDA_R_32F, size(c.stride), c.batch_stride,
                                 size(batch), CUBLAS_COMPUTE_32F_PEDANTIC, CUBLAS_GEMM_DEFAULT),
      "cublasGemmStridedBatchedEx of fp32 attention");
}

int64_t FirstKey(const AttentionShape& s, int64_t query) {
  return s.window > 0 ? std::max<int64_t>(0, query - s.window + 1) : 0;
}
int64_t EndKey(const AttentionShape& s, int64_t query) {
  if (s.causal) return query + 1;
  return s.window > 0 ? std::min(s.sequence, query + s.window) : s.sequence;
}

/// One block of queries of one sample, for query head `member` of every key-value head's group.
struct Position {
  Position(const AttentionShape& s, int64_t sample, int64_t member, int64_t begin) {
    const int64_t group = s.heads / s.kv_heads;
    block.begin = begin;
    block.rows = std::min(planner::kFp32AttentionQueryBlock, s.sequence - begin);
    block.key_begin = FirstKey(s, begin);
    block.keys = EndKey(s, begin + block.rows - 1) - block.key_begin;
    block.sequence = s.sequence, block.window = s.window;
    block.kv_heads = s.kv_heads, block.head_dim = s.head_dim;
    block.causal = s.causal, block.scale = static_cast<float>(s.scale);
    block.head_stride = group * s.head_dim;
    block.row_stride = s.batch * s.heads * s.head_dim;
    block.lse_stride = group * s.sequence;

    qkv_stride = s.batch * s.packed();
    q = sample * s.packed() + member * s.head_dim + begin * qkv_stride;
    k = sample * s.packed() + s.heads * s.head_dim + block.key_begin * qkv_stride;
    v = k + s.kv_heads * s.head_dim;
    o_first = (sample * s.heads + member) * s.head_dim;
    o = o_first + begin * block.row_stride;
    lse = (sample * s.heads + member) * s.sequence;
  }
  AttentionBlock block;
  int64_t qkv_stride = 0;
  int64_t q = 0, k = 0, v = 0, o = 0, lse = 0;  ///< element offsets of the block's first row
  int64_t o_first = 0;                          ///< of o at position 0

  int64_t score_stride() const { return block.rows * block.keys; }
};

Status Scores(const AttentionFp32Operands& x, const Position& at, float* scores) {
  const AttentionBlock& b = at.block;
  return Product(x.handle, b.rows, b.keys, b.head_dim, b.scale,
                 {x.qkv + at.q, at.qkv_stride, b.head_stride},
                 {x.qkv + at.k, at.qkv_stride, b.head_dim, true}, 0.0F,
                 {scores, b.keys, at.score_stride()}, b.kv_heads);
}

Status Forward(const AttentionFp32Operands& x, const Position& at) {
  const AttentionBlock& b = at.block;
  float* p = x.workspace;
  MW_RETURN_IF_ERROR(Scores(x, at, p));
  MW_CUDA_CALL(LaunchSoftmax(b, p, x.lse + at.lse, x.stream));
  return Product(x.handle, b.rows, b.head_dim, b.keys, 1.0F, {p, b.keys, at.score_stride()},
                 {x.qkv + at.v, at.qkv_stride, b.head_dim}, 0.0F,
                 {x.o + at.o, b.row_stride, b.head_stride}, b.kv_heads);
}

Status Backward(const AttentionFp32Operands& x, const Position& at, float* dp) {
  const AttentionBlock& b = at.block;
  float* p = x.workspace;
  const Matrices d_o = {x.d_o + at.o, b.row_stride, b.head_stride};
  MW_RETURN_IF_ERROR(Scores(x, at, p));
  MW_RETURN_IF_ERROR(Product(x.handle, b.rows, b.keys, b.head_dim, 1.0F, d_o,
                             {x.qkv + at.v, at.qkv_stride, b.head_dim, true}, 0.0F,
                             {dp, b.keys, at.score_stride()}, b.kv_heads));
  MW_CUDA_CALL(
      LaunchSoftmaxGrad(b, p, dp, x.lse + at.lse, x.o + at.o_first, x.d_o + at.o_first, x.stream));
  const Matrices p_t = {p, b.keys, at.score_stride(), true};
  const Matrices ds_t = {dp, b.keys, at.score_stride(), true};
  // dV += P^T dO; dQ = dS K; dK += dS^T Q
  MW_RETURN_IF_ERROR(Product(x.handle, b.keys, b.head_dim, b.rows, 1.0F, p_t, d_o, 1.0F,
                             {x.dqkv + at.v, at.qkv_stride, b.head_dim}, b.kv_heads));
  MW_RETURN_IF_ERROR(Product(x.handle, b.rows, b.head_dim, b.keys, 1.0F,
                             {dp, b.keys, at.score_stride()},
                             {x.qkv + at.k, at.qkv_stride, b.head_dim}, 0.0F,
                             {x.dqkv + at.q, at.qkv_stride, b.head_stride}, b.kv_heads));
  return Product(x.handle, b.keys, b.head_dim, b.rows, 1.0F, ds_t,
                 {x.qkv + at.q, at.qkv_stride, b.head_stride}, 1.0F,
                 {x.dqkv + at.k, at.qkv_stride, b.head_dim}, b.kv_heads);
}

/// f(position) for every block of queries, sample and member of the head groups.
template <typename F>
Status ForEachBlock(const AttentionShape& s, F f) {
  const int64_t widest = s.batch * s.packed();
  if (widest > std::numeric_limits<int>::max()) {
    return Unsupported("fp32 attention: " + std::to_string(widest) +
                       " elements in the packed rows of one position, cuBLAS takes up to " +
                       std::to_string(std::numeric_limits<int>::max()) +
                       "; use a smaller micro-batch");
  }
  for (int64_t sample = 0; sample < s.batch; ++sample) {
    for (int64_t member = 0; member < s.heads / s.kv_heads; ++member) {
      for (int64_t begin = 0; begin < s.sequence; begin += planner::kFp32AttentionQueryBlock) {
        MW_RETURN_IF_ERROR(f(Position(s, sample, member, begin)));
      }
    }
  }
  return Status::Ok();
}

}  // namespace

Status CublasStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return Status::Ok();
  return RunFailed(std::string(what) + ": " + cublasGetStatusName(status) + " (" +
                   cublasGetStatusString(status) + ")");
}

Status AttentionFp32(const AttentionFp32Operands& x) {
  return ForEachBlock(x.shape, [&](const Position& at) { return Forward(x, at); });
}

Status AttentionFp32Grad(const AttentionFp32Operands& x) {
  const AttentionShape& s = x.shape;
  // Keys and values gather from the queries of several blocks and heads.
  MW_CUDA_CALL(cudaMemsetAsync(
      x.dqkv, 0, static_cast<size_t>(s.sequence * s.batch * s.packed()) * sizeof(float), x.stream));
  const int64_t scores = planner::AttentionWorkspaceBytes(s, planner::DType::kF32, false, false) /
                         static_cast<int64_t>(sizeof(float));
  float* dp = x.workspace + scores;
  return ForEachBlock(s, [&](const Position& at) { return Backward(x, at, dp); });
}

}  // namespace meshwright::runtime::cuda
