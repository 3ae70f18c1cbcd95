#include "runtime/cuda/measure_short.h"

#include <algorithm>

#include "runtime/cuda/gemm.h"
#include "runtime/cuda/gemm_problem.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::OpKind;

constexpr double kMostFlops = 3e10;

}  // namespace

bool IsShort(const GpuProductSample& p) {
  return 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) <=
         kMostFlops;
}

Status MeasureShort(CudaDevice& device, GpuBench& bench, TunedProduct* product) {
  const GemmKey& key = product->key;
  const bool gradient = product->sample.kind == OpKind::kLinearWeightGrad;
  const int64_t a_bytes = AlignedBytes(2 * key.m * key.k);
  const int64_t b_bytes = AlignedBytes(2 * key.k * key.n);
  const int64_t d_bytes = AlignedBytes((gradient ? 4 : 2) * key.m * key.n);
  // Of a weight gradient d takes turns, else b, the weight.
  const int64_t kept = a_bytes + (gradient ? b_bytes : d_bytes);
  const int64_t turned = gradient ? d_bytes : b_bytes;
  const int64_t turns = std::clamp<int64_t>((3 * bench.l2_bytes() + turned - 1) / turned, 1,
                                            (bench.bytes() - kept) / turned);
  MW_ASSIGN_OR_RETURN(const auto problem, GemmProblem::Create(key));
  MW_ASSIGN_OR_RETURN(const GpuBenchTime time, bench.TimeSeries([&](int64_t turn) -> Status {
    std::byte* const a = bench.memory();
    std::byte* const fixed = a + a_bytes;
    std::byte* const turning = bench.memory() + kept + turn % turns * turned;
    GemmOperands operands{};
    operands.a = a;
    operands.b = gradient ? fixed : turning;
    operands.d = gradient ? turning : fixed;
    return RunTuned(device, *product, *problem, operands);
  }));
  product->sample.seconds = time.device_s;
  return Status::Ok();
}

}  // namespace meshwright::runtime::cuda
