// Time of one op on one device: a roofline with efficiency by shape.
#pragma once

#include <cstdint>

#include "cost_models/device_profile.h"
#include "cost_models/work.h"
#include "topologies/units.h"

namespace meshwright::cost {

/// A product C[m, n] = A[m, k] B[k, n], `batch` of them.
struct GemmShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t batch = 1;
};

/// Arithmetic time of a product on a GPU by tiles and waves:
///
///   tiles(t) = ceil(m / tm) ceil(n / tn) batch, split s ways along k
///   waves    = q ceil(x) + (1 - q) max(x, 1),  x = tiles s / multiprocessors
///   time     = waves 2 tm tn (k / s + depth) / (peak / multiprocessors rate(t))
///              + 8 s m n batch / memory bandwidth if s > 1       (fp32 partial sums, out and in)
///   rate(t)  = max_efficiency / (1 + edge (1 / tm + 1 / tn))
///
/// and `fixed` + the least over tiles 64 to 256 wide and splits 1 to 8, as the libraries choose
/// among such kernels. The constants are fitted by fit/fit_gemm.py.
Seconds GpuGemmTime(const GemmShape& shape, const GpuModel& gpu, FlopsPerSecond peak,
                    BytesPerSecond memory_bandwidth);

/// Rate of fused attention at a length: linear in head size between the measured ones, the nearest
/// beyond them.
FlopsPerSecond GpuAttentionRate(const Work& work, const GpuModel& gpu);

/// Rate of a product on one core: the measured one where the shape was measured; else a mean of the
/// measured rates of that precision, weighed by distance^-4 in (log m, log n, log k).
FlopsPerSecond CpuGemmRateOf(const GemmShape& shape, Precision precision, const CpuModel& cpu);

}  // namespace meshwright::cost
