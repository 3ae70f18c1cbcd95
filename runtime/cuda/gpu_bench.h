// Times single ops on the present GPU, on synthetic operands in memory of its own.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "planner/ir/op_schema.h"
#include "runtime/bench_op.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/gpu_memory.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// Operands begin at multiples of this many bytes.
inline constexpr int64_t kBenchAlignment = 256;
inline int64_t AlignedBytes(int64_t bytes) {
  return (bytes + kBenchAlignment - 1) / kBenchAlignment * kBenchAlignment;
}

/// Seconds of one op.
struct GpuBenchTime {
  double device_s = 0.0;      ///< one of many in a row, gap to the next included
  double one_by_one_s = 0.0;  ///< the same, launched one by one instead of as a graph
  double host_s = 0.0;        ///< to issue it
};

/// Not thread-safe. Floating-point operands are normal values (of bf16 pairs, so fp32 too),
/// integers ids below the attribute `vocab`, scalars 1.
class GpuBench {
 public:
  /// `bytes` of GPU memory for operands. kRunFailed when the GPU lacks them.
  static Result<std::unique_ptr<GpuBench>> Create(CudaDevice& device, int64_t bytes);
  ~GpuBench();
  GpuBench(const GpuBench&) = delete;
  GpuBench& operator=(const GpuBench&) = delete;

  /// Times the op of a case; sets of operands take turns where they fit in the L2 cache, so that
  /// none is found there. `work`: what the op asks for. kInvalidInput for operands beyond the
  /// memory.
  Result<GpuBenchTime> Time(const BenchCase& from, planner::OpWork* work);

  /// The same of anything that is enqueued on the compute stream; `run` gets 0, 1, ... Median of
  /// several series. `graph`: launched as one, like a step's kernels; large copies between two
  /// places are slower so.
  Result<GpuBenchTime> TimeSeries(const std::function<Status(int64_t)>& run, bool graph = true);

  /// Normal values all over the memory.
  Status FillNormal();
  std::byte* memory() const { return memory_.data(); }
  int64_t bytes() const { return bytes_; }
  int64_t l2_bytes() const { return l2_bytes_; }

 private:
  explicit GpuBench(CudaDevice& device) : device_(device) {}
  Status Open(int64_t bytes);
  Result<double> TimeGraph(int64_t runs, const std::function<Status()>& run);
  Status FillIntegers(const BenchOp& bench, std::byte* at);

  CudaDevice& device_;
  DeviceMemory memory_;
  int64_t bytes_ = 0;
  DeviceMemory delay_;  ///< written to keep the GPU busy while the host enqueues
  int64_t l2_bytes_ = 0;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace meshwright::runtime::cuda
