// Fused attention of a GPU rank: cuDNN plans for bf16, cuBLAS and softmax kernels for fp32.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/kernels.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

class CudaDevice;

/// Owns the library handles and one plan for each shape and direction. Not thread-safe.
class AttentionEngine {
 public:
  static Result<std::unique_ptr<AttentionEngine>> Create(CudaDevice& device);
  ~AttentionEngine();
  AttentionEngine(const AttentionEngine&) = delete;
  AttentionEngine& operator=(const AttentionEngine&) = delete;

  /// Builds what a kAttention or kAttentionGrad op needs (about 0.6 s for each new bf16 shape).
  /// kUnsupported for shapes that no plan takes; kInfeasible, with the bytes needed and those
  /// there, when the op's workspace operand is too small. Needs no arena.
  Status Prepare(const OpCall& call);

  /// Enqueues the op on its stream; builds the plan first if Prepare has not been called.
  Status Run(const OpCall& call);

  /// Workspace operand bytes that the plan of a prepared op uses. kNotFound before Prepare.
  Result<int64_t> WorkspaceBytes(const OpCall& call) const;

  /// The device as cuDNN describes it, in its JSON form; what plans can be queried with elsewhere.
  Result<std::string> DeviceJson() const;

 private:
  struct Impl;
  explicit AttentionEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshwright::runtime::cuda
