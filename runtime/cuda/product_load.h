// A row of equal products on the compute stream, and how long it takes.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/gpu_bench.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

class ProductLoad {
 public:
  static constexpr int kProducts = 8;     ///< in a row
  static constexpr int64_t kEdge = 8192;  ///< rows, columns and depth of a product in bf16

  /// The device has a compute stream and workspaces of its own. Takes 1.4 GiB of its memory.
  static Result<std::unique_ptr<ProductLoad>> Create(CudaDevice& device);
  ~ProductLoad();
  ProductLoad(const ProductLoad&) = delete;
  ProductLoad& operator=(const ProductLoad&) = delete;

  /// Puts the row on the stream.
  Status Issue();
  cudaEvent_t end() const { return end_; }
  /// Seconds of one product of the last row; waits for it.
  Result<double> Seconds() const;

 private:
  explicit ProductLoad(CudaDevice& device) : device_(device) {}
  Status Open();

  CudaDevice& device_;
  std::unique_ptr<GpuBench> bench_;  ///< normal values: zeros would draw less power
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace meshwright::runtime::cuda
