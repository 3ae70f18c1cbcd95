// One matrix product as cuBLASLt sees it: descriptors made once from a key.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/cuda/gemm_choices.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// Ok for CUBLAS_STATUS_SUCCESS, else "what: CUBLAS_STATUS_...".
Status CublasLtStatus(cublasStatus_t status, const char* what);

/// Device addresses of one product.
struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;
};

/// A choice's words as cuBLASLt takes them.
cublasLtMatmulAlgo_t AlgorithmOf(const GemmChoice& choice);

class GemmProblem {
 public:
  /// kUnsupported for dtypes other than bf16 (into bf16 or fp32) and fp32.
  static Result<std::unique_ptr<GemmProblem>> Create(const GemmKey& key);
  ~GemmProblem();
  GemmProblem(const GemmProblem&) = delete;
  GemmProblem& operator=(const GemmProblem&) = delete;

  /// The heuristics' proposals, best first, at most `count`, within the workspace. Deterministic:
  /// no sum is split. kUnsupported when there is none.
  Result<std::vector<cublasLtMatmulHeuristicResult_t>> Candidates(cublasLtHandle_t handle,
                                                                  int64_t workspace_bytes,
                                                                  bool deterministic,
                                                                  int count) const;
  /// Whether the algorithm can run this product, and the workspace that it needs.
  Result<int64_t> Check(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const;

  /// Enqueues the product.
  cublasStatus_t Run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                     const GemmOperands& operands, void* workspace, int64_t workspace_bytes,
                     cudaStream_t stream) const;

  const GemmKey& key() const { return key_; }

 private:
  explicit GemmProblem(const GemmKey& key) : key_(key) {}
  Status Describe();

  GemmKey key_;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr;  ///< of the key's a
  cublasLtMatrixLayout_t b_ = nullptr;
  cublasLtMatrixLayout_t d_ = nullptr;
};

}  // namespace meshwright::runtime::cuda
