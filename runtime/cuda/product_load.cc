#include "runtime/cuda/product_load.h"

#include "runtime/cuda/call_timer.h"
#include "runtime/cuda/gemm.h"

namespace meshwright::runtime::cuda {
namespace {

constexpr int64_t kMatrixBytes = 2 * ProductLoad::kEdge * ProductLoad::kEdge;

GemmKey Key() {
  GemmKey key;
  key.m = key.n = key.k = ProductLoad::kEdge;
  key.transpose_b = true;
  key.lda = key.ldb = key.ldd = ProductLoad::kEdge;
  return key;
}

}  // namespace

Result<std::unique_ptr<ProductLoad>> ProductLoad::Create(CudaDevice& device) {
  std::unique_ptr<ProductLoad> load(new ProductLoad(device));
  MW_RETURN_IF_ERROR(load->Open().WithContext("products beside communication"));
  return load;
}

ProductLoad::~ProductLoad() {
  for (cudaEvent_t event : {begin_, end_}) {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
  }
}

Status ProductLoad::Open() {
  MW_ASSIGN_OR_RETURN(bench_, GpuBench::Create(device_, 3 * kMatrixBytes));
  MW_RETURN_IF_ERROR(bench_->FillNormal());
  MW_CUDA_CALL(cudaEventCreate(&begin_));
  MW_CUDA_CALL(cudaEventCreate(&end_));
  MW_RETURN_IF_ERROR(Issue());  // the first call chooses an algorithm
  return Seconds().status();
}

Status ProductLoad::Issue() {
  const cudaStream_t stream = device_.stream(planner::kComputeStream);
  GemmOperands operands{};
  operands.a = bench_->memory();
  operands.b = bench_->memory() + kMatrixBytes;
  operands.d = bench_->memory() + 2 * kMatrixBytes;
  MW_CUDA_CALL(cudaEventRecord(begin_, stream));
  for (int i = 0; i < kProducts; ++i) {
    MW_RETURN_IF_ERROR(device_.gemm().Run(Key(), operands, planner::kComputeStream));
  }
  MW_CUDA_CALL(cudaEventRecord(end_, stream));
  return Status::Ok();
}

Result<double> ProductLoad::Seconds() const {
  MW_RETURN_IF_ERROR(AwaitStream(device_.stream(planner::kComputeStream)));
  float milliseconds = 0.0F;
  MW_CUDA_CALL(cudaEventElapsedTime(&milliseconds, begin_, end_));
  return 1e-3 * static_cast<double>(milliseconds) / kProducts;
}

}  // namespace meshwright::runtime::cuda
