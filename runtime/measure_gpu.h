// What the present GPU takes for products, attention, memory-bound kernels and launches. Measures
// on a grid of sizes that belongs to no plan; fitting is the cost models' work.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/ir/attention_workspace.h"
#include "planner/ir/op_schema.h"
#include "topologies/status.h"

namespace meshwright::runtime {

/// A product of a linear layer in bf16, cold caches, the best algorithm of several, timed among
/// other products, attention and memory-bound ops at the clock that a training step has.
struct GpuProductSample {
  planner::OpKind kind =
      planner::OpKind::kLinear;  ///< kLinear, kLinearInputGrad, kLinearWeightGrad
  int64_t m = 0, n = 0, k = 0;   ///< C[m, n] = A[m, k] B[k, n]
  double seconds = 0.0;
};

/// Fused attention in bf16, timed in the same mix. Operations as planner::WorkOf counts them
/// (causal: half the square).
struct GpuAttentionSample {
  planner::AttentionShape shape;
  bool backward = false;
  double flops = 0.0;
  double seconds = 0.0;
};

/// A memory-bound kernel in bf16, one of many in a row: the gap to the next is in its time.
struct GpuKernelSample {
  planner::OpKind kind = planner::OpKind::kCopy;
  planner::OpAttributes attributes;
  int64_t bytes = 0;  ///< read and written, as planner::WorkOf counts them
  double seconds = 0.0;
};

struct GpuMeasurement {
  std::string device;  ///< name that the driver gives
  int64_t driver = 0, runtime = 0, cublaslt = 0,
          cudnn = 0;  ///< versions as the libraries give them
  int64_t multiprocessors = 0;
  int64_t memory_bytes = 0;       ///< as cudaMemGetInfo gives it
  double copy_bytes_per_s = 0.0;  ///< device-to-device copy of 1 GiB, read + written
  double launch_s = 0.0;          ///< GPU time of a kernel that does nothing, one of many in a row
  double graph_launch_s = 0.0;    ///< the same in a CUDA graph
  /// Host time to issue an op: a kernel of our own, a product, attention.
  double issue_kernel_s = 0.0, issue_product_s = 0.0, issue_attention_s = 0.0;
  int64_t context_bytes = 0;  ///< in use once the device is open, whoever uses it
  int64_t library_bytes = 0;  ///< more once libraries and kernels have run
  std::vector<GpuProductSample> products;
  std::vector<GpuAttentionSample> attention;
  std::vector<GpuKernelSample> kernels;
  /// Clock of the multiprocessors over the highest when attention and large products were timed; 0:
  /// not known.
  double mix_clock = 0.0;
  double elapsed_s = 0.0;
};

struct MeasureGpuOptions {
  int device = 0;                                    ///< CUDA ordinal
  std::function<void(const std::string&)> progress;  ///< may be empty
};

/// Takes under a minute and up to 16 GiB of the GPU's memory. Errors: kUnsupported in a build
/// without CUDA, kRunFailed when the driver or a library refuses.
Result<GpuMeasurement> MeasureGpu(const MeasureGpuOptions& options);

}  // namespace meshwright::runtime
