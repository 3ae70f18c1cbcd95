// Measures what the CPU of this machine does with the real kernels, executor and communicators of
// threads. Plain numbers: whoever joins runtime and cost models makes a device profile of them.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/ir/dtype.h"
#include "planner/ir/program.h"
#include "topologies/status.h"

namespace meshwright::runtime {

struct MeasureCpuOptions {
  int cores = 0;                      ///< that ranks may use; 0: the affinity mask of this process
  double seconds_per_sample = 0.003;  ///< > 0; a sample is one kernel at one size, repeated
  bool fp64 = true;                   ///< measure fp64 beside fp32
};

/// Rate of C[m, n] = A[m, k] B[k, n] on one core: mean over the three products of a linear layer.
struct CpuProductSample {
  planner::DType dtype = planner::DType::kF32;
  int64_t m = 0, n = 0, k = 0;
  double flops_per_s = 0.0;
};

/// Rate of one op kind on one core, in the bytes and FLOPs that planner::WorkOf counts.
struct CpuKernelSample {
  planner::OpKind kind = planner::OpKind::kCopy;
  planner::OpAttributes attributes;  ///< the variant measured (norm, activation)
  planner::DType dtype = planner::DType::kF32;
  double bytes_per_s = 0.0;
  // Attention only, whose time is the sum of three parts; else 0.
  double flops_per_s = 0.0;        ///< of its products
  double score_bytes_per_s = 0.0;  ///< of its scores: S^2 (causal: half) a head and sample
};

struct CpuMeasurement {
  int cores = 0;
  std::vector<CpuProductSample> products;
  /// Kernels, and the communication kinds: bytes that the moving member reads and writes a second.
  std::vector<CpuKernelSample> kernels;
  double core_bytes_per_s = 0.0;     ///< of memory, read + write, one core alone
  double machine_bytes_per_s = 0.0;  ///< all cores at once
  double op_core_s = 0.0;            ///< time of a core that issuing and starting an op takes
  /// Speed of ops when ranks share cores, over that of a rank with a core of its own.
  double shared_core_efficiency = 1.0;
  /// Time of a core that a collective of two and its hand-overs take among ranks that share cores.
  double rendezvous_core_s = 0.0;
  double member_core_s = 0.0;  ///< more for every further member
  /// Duration of a small collective of two ranks that have a core each.
  double rendezvous_latency_s = 0.0;
};

/// Takes a few seconds. What counts in time of a core is read from the process's CPU clock, so that
/// other work on the machine does little harm; rates are the best of several repetitions.
/// Errors: options out of range, memory, and those of Execute.
Result<CpuMeasurement> MeasureCpu(const MeasureCpuOptions& options);

}  // namespace meshwright::runtime
