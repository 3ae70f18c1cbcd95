#include "runtime/kernel_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "runtime/arena.h"

namespace meshwright::runtime {
namespace {

using planner::DType;
using planner::TensorView;

constexpr int64_t kRepetitions = 5;
constexpr int64_t kAlign = 64;
constexpr size_t kMostCopies = 256;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename T, typename F>
void Fill(std::byte* at, int64_t count, F value) {
  T* out = reinterpret_cast<T*>(at);
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(value(i));
}

void FillOperand(const TensorView& view, std::byte* at) {
  // Spread over -0.5 to 0.5 without a pattern, since elementary functions branch on their argument.
  const auto real = [](int64_t i) {
    const uint64_t mixed = (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15ULL;
    return static_cast<double>(mixed >> 40) * 0x1p-24 - 0.5;
  };
  const auto id = [](int64_t i) { return i * 7 % 64; };
  switch (view.dtype) {
    case DType::kF32:
      return Fill<float>(at, view.elements(), real);
    case DType::kF64:
      return Fill<double>(at, view.elements(), real);
    case DType::kI32:
      return Fill<int32_t>(at, view.elements(), id);
    case DType::kI64:
      return Fill<int64_t>(at, view.elements(), [](int64_t) { return 1; });
    case DType::kBf16:
      return;
  }
}

}  // namespace

Result<BenchResult> TimeKernel(const BenchCase& from, double seconds) {
  const BenchOp bench(from, kAlign);
  MW_RETURN_IF_ERROR(planner::CheckOp(bench.block, bench.op, bench.program));
  const Kernel kernel = CpuKernels().kernels[static_cast<size_t>(from.kind)];
  if (kernel == nullptr) {
    return Unsupported(planner::ToString(from.kind) + ": no CPU kernel to measure");
  }
  // Ops of a run find their operands outside of the nearest caches: take turns with several copies.
  const int64_t stride = std::max<int64_t>(bench.bytes, kAlign);
  const auto copies =
      std::clamp<size_t>(static_cast<size_t>(kBenchFootprint / stride), 1, kMostCopies);
  Arena arena(stride * static_cast<int64_t>(copies), 0);
  if (arena.data() == nullptr) return RunFailed("the machine has no memory to measure kernels in");
  std::vector<OpCall> calls;
  for (size_t c = 0; c < copies; ++c) {
    std::byte* base = arena.data() + static_cast<int64_t>(c) * stride;
    if (c == 0) {
      for (const TensorView& view : bench.block.tensors) FillOperand(view, base + view.offset);
    } else {
      std::memcpy(base, arena.data(), static_cast<size_t>(bench.bytes));
    }
    calls.push_back(bench.At(base));
  }
  size_t turn = 0;
  const auto batch = [&](int64_t ops, double* took) -> Status {
    const double start = Seconds();
    for (int64_t i = 0; i < ops; ++i) {
      MW_RETURN_IF_ERROR(kernel(calls[turn]));
      turn = turn + 1 < copies ? turn + 1 : 0;
    }
    *took = Seconds() - start;
    return Status::Ok();
  };
  BenchResult result;
  result.work = planner::WorkOf(bench.block, bench.op, bench.program);
  double took = 0.0;
  MW_RETURN_IF_ERROR(batch(1, &took));  // caches and pages
  MW_RETURN_IF_ERROR(batch(1, &took));
  const double part = seconds / static_cast<double>(kRepetitions);
  const auto ops = static_cast<int64_t>(std::clamp(part / std::max(took, 1e-8), 1.0, 1e6));
  result.seconds = took;
  for (int64_t r = 0; r < kRepetitions; ++r) {
    MW_RETURN_IF_ERROR(batch(ops, &took));
    result.seconds = std::min(result.seconds, took / static_cast<double>(ops));
  }
  return result;
}

}  // namespace meshwright::runtime
