// Time of one op on one device: a roofline with efficiency by shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
  Precision precision = Precision::kBf16;
  bool accumulate = false;  ///< C (fp32) += A^T B, as a weight gradient
};

/// The constants for a precision and the kernel of this name: those of the precision, else of the
/// kernel, else the common ones.
const GemmFit& FitFor(const GpuModel& gpu, Precision precision, const std::string& kernel = "");

/// Length of the rows of A and B along the sums, or of a weight gradient's dy.
int64_t SumsOf(const GemmShape& shape);

/// Largest power of two of bytes that a row of so many elements is a multiple of; counts up to
/// kAlignedRowBytes.
int64_t AlignmentOf(int64_t elements, Precision precision);
inline constexpr int64_t kAlignedRowBytes = 32;  ///< no loss from here on
bool AlignedRows(const GemmShape& shape);

/// Share of its rate that a product keeps on account of where its rows start: rows of A and B are k
/// elements long, those of C (and of B, if not transposed) n; of a weight gradient's operands m and
/// n.
double AlignmentShare(const GemmShape& shape, const GemmFit& fit);

/// Arithmetic time of a product on a GPU by tiles and waves:
///
///   tiles(t) = ceil(m / tm) ceil(n / tn) batch, split s ways along k
///   waves    = q ceil(x) + (1 - q) max(x, 1),  x = tiles s / multiprocessors
///   time     = waves 2 tm tn (k / s + depth) / (peak / multiprocessors rate(t))
///              + 8 s m n batch / memory bandwidth if s > 1       (fp32 partial sums, out and in)
///   rate(t)  = max_efficiency / (1 + edge (1 / tm + 1 / tn)) alignment share
///
/// and `fixed` + `accumulation` 8 m n batch / memory bandwidth for sums in fp32 + the least over
/// tiles 64 to 256 wide and splits 1 to 8, as the libraries choose among such kernels. The
/// constants are fitted by fit/fit_gemm.py.
Seconds GpuGemmTime(const GemmShape& shape, const GemmFit& fit, int64_t multiprocessors,
                    FlopsPerSecond peak, BytesPerSecond memory_bandwidth);
/// With the constants for the shape's precision.
Seconds GpuGemmTime(const GemmShape& shape, const GpuModel& gpu, FlopsPerSecond peak,
                    BytesPerSecond memory_bandwidth);

/// Rate of fused attention at a length: linear in head size between the measured ones, the nearest
/// beyond them. Entries of the work's precision and order of sums are used where there are some,
/// else those of bf16 and of any order.
FlopsPerSecond GpuAttentionRate(const Work& work, const GpuModel& gpu);

/// Time of fused attention: flops / rate + the tail (see AttentionRate), at least that of 128 queries
/// and all keys on one multiprocessor at its part of the endless rate.
Seconds GpuAttentionTime(const Work& work, const GpuModel& gpu);

/// AttentionRate::clock, between head sizes like the rate; `otherwise` where it was not measured.
double AttentionClock(const Work& work, const GpuModel& gpu, double otherwise);

/// Bytes that take as long on links of full efficiency: linear between the points of the curve (one
/// at least), so that more bytes never take less time; of constant efficiency beyond them.
double EffectiveBytes(const std::vector<EfficiencyPoint>& curve, Bytes bytes);

/// Time of our own runtime's operation when each rank sends `bytes` over links of `bandwidth`.
Seconds TrafficTime(const TrafficFit& fit, Bytes bytes, BytesPerSecond bandwidth);

/// Rate of a product on one core: the measured one where the shape was measured; else a mean of the
/// measured rates of that precision, weighed by distance^-4 in (log m, log n, log k).
FlopsPerSecond CpuGemmRateOf(const GemmShape& shape, Precision precision, const CpuModel& cpu);

}  // namespace meshwright::cost
