// Attention in fp32 for comparison with the CPU reference: cuBLAS products without TF32 and softmax
// kernels, in blocks of queries (planner::kFp32AttentionQueryBlock).
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "planner/ir/attention_workspace.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// Ok for CUBLAS_STATUS_SUCCESS, else "what: CUBLAS_STATUS_...".
Status CublasStatus(cublasStatus_t status, const char* what);

/// Operands on the device. The handle's stream and workspace are set by the caller.
struct AttentionFp32Operands {
  cublasHandle_t handle = nullptr;
  cudaStream_t stream = nullptr;
  planner::AttentionShape shape;
  const float* qkv = nullptr;  ///< [S, b, packed]
  float* o = nullptr;          ///< [S, b, heads d]; read by the backward pass
  float* lse = nullptr;        ///< [b, heads, S]; read by the backward pass
  const float* d_o = nullptr;  ///< [S, b, heads d], backward
  float* dqkv = nullptr;       ///< [S, b, packed], backward
  float* workspace = nullptr;  ///< planner::AttentionWorkspaceBytes
};
Status AttentionFp32(const AttentionFp32Operands& x);
Status AttentionFp32Grad(const AttentionFp32Operands& x);

/// Queries [begin, begin + rows) of one sample and one query head of each key-value head, against
/// the keys [key_begin, key_begin + keys). Score matrices are dense [kv_heads, rows, keys].
struct AttentionBlock {
  int64_t begin = 0, rows = 0, key_begin = 0, keys = 0;
  int64_t sequence = 0, window = 0, kv_heads = 0, head_dim = 0;
  bool causal = true;
  float scale = 1.0F;
  int64_t head_stride = 0;  ///< elements between o of these heads: group * head_dim
  int64_t row_stride = 0;   ///< elements between o of consecutive positions
  int64_t lse_stride = 0;   ///< elements between lse of these heads: group * sequence
};
/// scores -> probabilities in place; lse at the block's first head, position 0.
cudaError_t LaunchSoftmax(const AttentionBlock& block, float* scores, float* lse,
                          cudaStream_t stream);
/// scores -> probabilities by lse, and dp -> scale * p * (dp - sum(d_o * o)), both in place.
cudaError_t LaunchSoftmaxGrad(const AttentionBlock& block, float* scores, float* dp,
                              const float* lse, const float* o, const float* d_o,
                              cudaStream_t stream);

}  // namespace meshwright::runtime::cuda
