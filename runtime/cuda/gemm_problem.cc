#include "runtime/cuda/gemm_problem.h"

#include <cstring>
#include <string>

namespace meshwright::runtime::cuda {
namespace {

using planner::DType;

cudaDataType_t TypeOf(DType dtype) {
  return dtype == DType::kBf16 ? CUDA_R_16BF : CUDA_R_32F;
}

Status CheckTypes(const GemmKey& key) {
  const bool bf16 =
      key.input == DType::kBf16 && (key.output == DType::kBf16 || key.output == DType::kF32);
  const bool fp32 = key.input == DType::kF32 && key.output == DType::kF32;
  if (bf16 || fp32) return Status::Ok();
  return Unsupported("product " + ToString(key) +
                     ": GPU ranks multiply bf16 into bf16 or fp32, and fp32 into fp32; choose "
                     "bf16 or fp32 as the model's dtype");
}

template <typename T>
Status SetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t name,
                    const T& value) {
  return CublasLtStatus(cublasLtMatmulDescSetAttribute(product, name, &value, sizeof(value)),
                        "cublasLtMatmulDescSetAttribute");
}

template <typename T>
Status SetPreference(cublasLtMatmulPreference_t preference,
                     cublasLtMatmulPreferenceAttributes_t name, const T& value) {
  return CublasLtStatus(
      cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof(value)),
      "cublasLtMatmulPreferenceSetAttribute");
}

/// How the dot products of split sums may be put together. Never in bf16.
uint32_t ReductionMask(const GemmKey& key, bool deterministic) {
  if (deterministic) return CUBLASLT_REDUCTION_SCHEME_NONE;
  uint32_t mask = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if (key.output == DType::kF32) mask |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
  return mask;
}

Status SetPreferences(cublasLtMatmulPreference_t preference, const GemmKey& key,
                      int64_t workspace_bytes, bool deterministic) {
  MW_RETURN_IF_ERROR(SetPreference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                   static_cast<uint64_t>(workspace_bytes)));
  MW_RETURN_IF_ERROR(SetPreference(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                   ReductionMask(key, deterministic)));
  for (auto name :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    MW_RETURN_IF_ERROR(SetPreference(preference, name, static_cast<uint32_t>(key.alignment)));
  }
  return Status::Ok();
}

}  // namespace

cublasLtMatmulAlgo_t AlgorithmOf(const GemmChoice& choice) {
  cublasLtMatmulAlgo_t algorithm;
  static_assert(sizeof(algorithm) == sizeof(choice.algorithm));
  std::memcpy(&algorithm, choice.algorithm.data(), sizeof(algorithm));
  return algorithm;
}

Status CublasLtStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return Status::Ok();
  const std::string message = std::string(what) + ": " + cublasLtGetStatusName(status) + " (" +
                              cublasLtGetStatusString(status) + ")";
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? Unsupported(message) : RunFailed(message);
}

Result<std::unique_ptr<GemmProblem>> GemmProblem::Create(const GemmKey& key) {
  MW_RETURN_IF_ERROR(CheckTypes(key));
  MW_CHECK(key.m > 0 && key.n > 0 && key.k > 0);
  std::unique_ptr<GemmProblem> problem(new GemmProblem(key));
  MW_RETURN_IF_ERROR(problem->Describe().WithContext("product " + ToString(key)));
  return problem;
}

GemmProblem::~GemmProblem() {
  for (cublasLtMatrixLayout_t layout : {a_, b_, d_}) {
    if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
  }
  if (product_ != nullptr) cublasLtMatmulDescDestroy(product_);
}

// cuBLASLt stores by columns, so a row-major matrix is its transpose there, and the product is
// computed as d^T = op(b)^T op(a)^T: b comes first, and an operand that is not transposed in rows
// is not transposed in columns either.
Status GemmProblem::Describe() {
  MW_RETURN_IF_ERROR(
      CublasLtStatus(cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                     "cublasLtMatmulDescCreate"));
  const cublasOperation_t first = key_.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = key_.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  MW_RETURN_IF_ERROR(SetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSA, first));
  MW_RETURN_IF_ERROR(SetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSB, second));
  if (key_.sm_target > 0) {
    MW_RETURN_IF_ERROR(
        SetAttribute(product_, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, key_.sm_target));
  }
  if (key_.bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    MW_RETURN_IF_ERROR(SetAttribute(product_, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
    // The heuristics read the alignment off the address; Run sets the true one.
    const void* aligned = reinterpret_cast<const void*>(static_cast<uintptr_t>(key_.alignment));
    MW_RETURN_IF_ERROR(SetAttribute(product_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned));
  }
  // Columns of the transposed matrix are the stored rows.
  const auto layout = [](cublasLtMatrixLayout_t* out, DType type, int64_t row_length, int64_t rows,
                         int64_t stride) {
    MW_CHECK(stride >= row_length);
    return CublasLtStatus(
        cublasLtMatrixLayoutCreate(out, TypeOf(type), static_cast<uint64_t>(row_length),
                                   static_cast<uint64_t>(rows), stride),
        "cublasLtMatrixLayoutCreate");
  };
  MW_RETURN_IF_ERROR(layout(&a_, key_.input, key_.transpose_a ? key_.m : key_.k,
                            key_.transpose_a ? key_.k : key_.m, key_.lda));
  MW_RETURN_IF_ERROR(layout(&b_, key_.input, key_.transpose_b ? key_.k : key_.n,
                            key_.transpose_b ? key_.n : key_.k, key_.ldb));
  return layout(&d_, key_.output, key_.n, key_.m, key_.ldd);
}

Result<std::vector<cublasLtMatmulHeuristicResult_t>> GemmProblem::Candidates(
    cublasLtHandle_t handle, int64_t workspace_bytes, bool deterministic, int count) const {
  cublasLtMatmulPreference_t preference = nullptr;
  MW_RETURN_IF_ERROR(CublasLtStatus(cublasLtMatmulPreferenceCreate(&preference),
                                    "cublasLtMatmulPreferenceCreate"));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(count));
  int found = 0;
  Status status = SetPreferences(preference, key_, workspace_bytes, deterministic);
  if (status.ok()) {
    status =
        CublasLtStatus(cublasLtMatmulAlgoGetHeuristic(handle, product_, b_, a_, d_, d_, preference,
                                                      count, results.data(), &found),
                       "cublasLtMatmulAlgoGetHeuristic");
  }
  cublasLtMatmulPreferenceDestroy(preference);
  MW_RETURN_IF_ERROR(status.WithContext("product " + ToString(key_)));
  results.resize(static_cast<size_t>(found));
  std::erase_if(results, [&](const cublasLtMatmulHeuristicResult_t& result) {
    return result.state != CUBLAS_STATUS_SUCCESS ||
           result.workspaceSize > static_cast<size_t>(workspace_bytes);
  });
  if (results.empty()) {
    return Unsupported("product " + ToString(key_) + ": cuBLASLt proposes no algorithm within " +
                       std::to_string(workspace_bytes) +
                       " bytes of workspace; allow a larger workspace");
  }
  return results;
}

Result<int64_t> GemmProblem::Check(cublasLtHandle_t handle,
                                   const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  MW_RETURN_IF_ERROR(
      CublasLtStatus(cublasLtMatmulAlgoCheck(handle, product_, b_, a_, d_, d_, &algorithm, &result),
                     "cublasLtMatmulAlgoCheck"));
  MW_RETURN_IF_ERROR(CublasLtStatus(result.state, "cublasLtMatmulAlgoCheck"));
  return static_cast<int64_t>(result.workspaceSize);
}

cublasStatus_t GemmProblem::Run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                                const GemmOperands& operands, void* workspace,
                                int64_t workspace_bytes, cudaStream_t stream) const {
  if (key_.bias) {
    const cublasStatus_t status = cublasLtMatmulDescSetAttribute(
        product_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands.bias, sizeof(operands.bias));
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  const float alpha = 1.0F;
  const float beta = key_.accumulate ? 1.0F : 0.0F;
  return cublasLtMatmul(handle, product_, &alpha, operands.b, b_, operands.a, a_, &beta, operands.d,
                        d_, operands.d, d_, &algorithm, workspace,
                        static_cast<size_t>(workspace_bytes), stream);
}

}  // namespace meshwright::runtime::cuda
