// The GPU of a rank: its streams, libraries and what kernels need beside their operands. Kernels
// reach it through RankContext::device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "planner/ir/program.h"
#include "runtime/kernels.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

class GemmEngine;       // gemm.h
class AttentionEngine;  // attention.h
class StepTables;       // step_tables.h

/// A status for a CUDA runtime call that failed: "cudaMemcpyAsync: invalid argument (1)" with
/// `what` in front. Ok for cudaSuccess.
Status CudaStatus(cudaError_t error, const char* call, const std::string& what = "");

/// Returns from the surrounding function when a CUDA runtime call fails.
#define MW_CUDA_CALL(expression)                                                  \
  do {                                                                            \
    const cudaError_t mw_cuda_error = (expression);                               \
    if (mw_cuda_error != cudaSuccess) {                                           \
      return ::meshwright::runtime::cuda::CudaStatus(mw_cuda_error, #expression); \
    }                                                                             \
  } while (false)

/// Asks the driver for a hardware queue a stream, also where the environment asks for fewer, as
/// scripts for other stacks do (CUDA_DEVICE_MAX_CONNECTIONS=1): a stream that waits for another
/// rank would hold up those that share its queue. Before the process's first CUDA call.
void AskForHardwareQueues();

struct CudaDeviceOptions {
  int ordinal = 0;             ///< CUDA device of the process
  bool deterministic = false;  ///< the same bits from run to run, at the price of speed
  /// Scratch of a stream for kernels' partial sums and library workspaces. Bytes, part of the plan.
  int64_t workspace_bytes = int64_t{64} << 20;
  /// Whether Open allocates it for every used stream; otherwise BindWorkspace gives the memory.
  bool own_workspaces = true;
  std::string tuning_file;  ///< remembers the choice of GEMM algorithms; empty: not kept
};

/// One GPU, opened by the rank that owns it. Not thread-safe but for the const methods: one thread
/// issues.
class CudaDevice {
 public:
  /// Makes the device current, a stream for each s with used[s] (nullptr for the others) and the
  /// libraries' handles. Nothing is allocated afterwards. Errors: kInvalidInput when there is no
  /// such device, kRunFailed when the driver or a library refuses.
  static Result<std::unique_ptr<CudaDevice>> Open(const CudaDeviceOptions& options,
                                                  const std::vector<bool>& used);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  cudaStream_t stream(planner::StreamId s) const { return streams_[static_cast<size_t>(s)]; }
  int ordinal() const { return options_.ordinal; }
  int sm_count() const { return sm_count_; }
  bool deterministic() const { return options_.deterministic; }

  /// The scratch of a stream, 256-byte aligned; free again when the op that asked for it ends.
  /// kRunFailed, with bytes needed and allowed, when `bytes` exceeds the cap.
  Result<std::byte*> workspace(planner::StreamId s, int64_t bytes) const;
  /// Memory of the caller, `workspace_bytes` long and 256-byte aligned, as the scratch of a stream
  /// that has none.
  void BindWorkspace(planner::StreamId s, std::byte* memory);
  int64_t workspace_cap() const { return options_.workspace_bytes; }
  /// sm_count() words of a used stream for kernels that count their blocks: zero from Open on
  /// whenever no kernel of the stream runs. A kernel leaves them zero; one that fails on the GPU
  /// takes the context with it.
  unsigned* block_counters(planner::StreamId s) const {
    return block_counters_ + int64_t{s} * sm_count_;
  }

  GemmEngine& gemm() { return *gemm_; }
  AttentionEngine& attention() { return *attention_; }
  StepTables& step_tables() { return *step_tables_; }

 private:
  CudaDevice() = default;

  CudaDeviceOptions options_;
  int sm_count_ = 0;
  std::vector<cudaStream_t> streams_;
  std::vector<std::byte*> workspaces_;  ///< one a used stream
  unsigned* block_counters_ = nullptr;  ///< of all streams
  std::unique_ptr<GemmEngine> gemm_;
  std::unique_ptr<AttentionEngine> attention_;
  std::unique_ptr<StepTables> step_tables_;
};

/// The device that the rank of a call runs on.
inline CudaDevice& DeviceOf(const OpCall& call) {
  return *static_cast<CudaDevice*>(call.rank.device);
}

}  // namespace meshwright::runtime::cuda
