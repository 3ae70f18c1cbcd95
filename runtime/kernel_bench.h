// Times single CPU kernels on synthetic operands.
#pragma once

#include "planner/ir/op_schema.h"
#include "runtime/bench_op.h"
#include "topologies/status.h"

namespace meshwright::runtime {

struct BenchResult {
  double seconds = 0.0;  ///< of one op, best of several repetitions
  planner::OpWork work;
};

/// Operands of a bench cover about this many bytes (in copies, used in turn), as the ops of a small
/// rank between two uses of the same tensor do.
inline constexpr int64_t kBenchFootprint = int64_t{4} << 20;

/// Runs the kernel for about `seconds`. Floating-point operands start spread over -0.5 to 0.5,
/// integer ones as token ids below 64. kRunFailed when the kernel fails or memory lacks.
Result<BenchResult> TimeKernel(const BenchCase& bench, double seconds);

}  // namespace meshwright::runtime
