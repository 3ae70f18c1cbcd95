#include "runtime/measure_gpu.h"

#include <cublasLt.h>
#include <cudnn.h>
#include <fmt/format.h>

#include <chrono>
#include <memory>

#include "runtime/cuda/attention.h"
#include "runtime/cuda/gemm.h"
#include "runtime/cuda/gemm_tuner.h"
#include "runtime/cuda/gpu_bench.h"
#include "runtime/cuda/gpu_bench_cases.h"
#include "runtime/cuda/gpu_memory.h"
#include "runtime/cuda/measure_short.h"
#include "runtime/cuda/measure_sustained.h"

namespace meshwright::runtime {
namespace cuda {
namespace {

using planner::DType;
using planner::OpKind;

constexpr int64_t kBenchBytes = int64_t{12} << 30;
constexpr int64_t kCopyBytes = int64_t{1} << 30;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Takes the measurements on one open device.
class Meter {
 public:
  Meter(CudaDevice& device, GpuBench& bench, GpuMeasurement* out)
      : device_(device), bench_(bench), out_(*out) {}

  Status Copy();
  Status Launches();
  Status Kernels();
  Status Attention();
  Status Products();

 private:
  CudaDevice& device_;
  GpuBench& bench_;
  GpuMeasurement& out_;
};

GemmKey KeyOf(const GpuProductSample& s) {
  GemmKey key;
  key.m = s.m, key.n = s.n, key.k = s.k;
  key.transpose_a = s.kind == OpKind::kLinearWeightGrad;
  key.transpose_b = s.kind == OpKind::kLinear;
  key.lda = key.transpose_a ? s.m : s.k;
  key.ldb = key.transpose_b ? s.k : s.n;
  key.ldd = s.n;
  if (s.kind == OpKind::kLinearWeightGrad) {
    key.output = DType::kF32;
    key.accumulate = true;
  }
  return key;
}

Status Meter::Copy() {
  const cudaStream_t stream = device_.stream(planner::kComputeStream);
  MW_ASSIGN_OR_RETURN(
      const GpuBenchTime time,
      bench_.TimeSeries(
          [&](int64_t turn) -> Status {
            std::byte* from = bench_.memory() + turn % 2 * 2 * kCopyBytes;
            MW_CUDA_CALL(cudaMemcpyAsync(from + kCopyBytes, from, static_cast<size_t>(kCopyBytes),
                                         cudaMemcpyDeviceToDevice, stream));
            return Status::Ok();
          },
          false));
  out_.copy_bytes_per_s = 2.0 * static_cast<double>(kCopyBytes) / time.device_s;
  return Status::Ok();
}

Status Meter::Launches() {
  const std::vector<int64_t> one = {1, 64};
  const BenchCase nothing = {
      OpKind::kAdd,
      {},
      {{"a", one, DType::kBf16}, {"b", one, DType::kBf16}, {"out", one, DType::kBf16}}};
  planner::OpWork work;
  MW_ASSIGN_OR_RETURN(const GpuBenchTime kernel, bench_.Time(nothing, &work));
  out_.launch_s = kernel.one_by_one_s;
  out_.graph_launch_s = kernel.device_s;
  out_.issue_kernel_s = kernel.host_s;
  const BenchCase product = {OpKind::kLinear,
                             {},
                             {{"x", {128, 128}, DType::kBf16},
                              {"weight", {128, 128}, DType::kBf16},
                              {"y", {128, 128}, DType::kBf16}}};
  MW_ASSIGN_OR_RETURN(const GpuBenchTime linear, bench_.Time(product, &work));
  out_.issue_product_s = linear.host_s;
  planner::AttentionShape small;
  small.sequence = 128, small.batch = 1, small.heads = 2, small.kv_heads = 2, small.head_dim = 64;
  MW_ASSIGN_OR_RETURN(const GpuBenchTime attention,
                      bench_.Time(AttentionCase(small, false, false), &work));
  out_.issue_attention_s = attention.host_s;
  return Status::Ok();
}

Status Meter::Kernels() {
  for (const BenchCase& c : KernelCases()) {
    planner::OpWork work;
    const auto time = bench_.Time(c, &work);
    if (!time.ok()) return time.status().WithContext(planner::ToString(c.kind));
    out_.kernels.push_back(
        {c.kind, c.attributes, work.bytes_read + work.bytes_written, time->device_s});
  }
  return Status::Ok();
}

/// Finds the shapes that the library runs; their times come from the mix.
Status Meter::Attention() {
  for (const planner::AttentionShape& shape : AttentionCases()) {
    std::vector<GpuAttentionSample> passes;
    for (const bool backward : {false, true}) {
      planner::OpWork work;
      const auto time = bench_.Time(AttentionCase(shape, backward, false), &work);
      // Libraries lack some head sizes, or want more scratch than plans give; the profile keeps
      // what it had for them.
      const StatusCode code = time.status().code();
      if (code == StatusCode::kUnsupported || code == StatusCode::kInfeasible) continue;
      if (!time.ok()) {
        return time.status().WithContext(fmt::format("attention of head size {}", shape.head_dim));
      }
      passes.push_back({shape, backward, work.flops, time->device_s});
    }
    if (passes.size() == 2) {
      out_.attention.insert(out_.attention.end(), passes.begin(), passes.end());
    }
  }
  return Status::Ok();
}

/// Chooses an algorithm for each product, then times short ones alone and the others in one mix
/// with attention.
Status Meter::Products() {
  GemmTunerOptions options;
  options.ordinal = device_.ordinal();
  options.workspace_bytes = device_.workspace_cap();
  options.screening_runs = 2;
  options.final_runs = 6;
  std::vector<TunedProduct> products, short_products;
  {
    MW_ASSIGN_OR_RETURN(const auto of_odd_rows, GemmTuner::Create(options));
    // Fewer than for a program: the grid has many shapes, and the best is among the first.
    options.candidates = 12;
    MW_ASSIGN_OR_RETURN(const auto tuner, GemmTuner::Create(options));
    for (const GpuProductSample& sample : ProductCases()) {
      const GemmKey key = KeyOf(sample);
      MW_ASSIGN_OR_RETURN(const auto problem, GemmProblem::Create(key));
      const bool even = (key.lda | key.ldb | key.ldd) % 16 == 0;
      MW_ASSIGN_OR_RETURN(const GemmChoice choice,
                          (even ? tuner : of_odd_rows)->Tune(device_.gemm().handle(), *problem));
      (IsShort(sample) ? short_products : products).push_back({sample, key, choice});
    }
  }
  MW_RETURN_IF_ERROR(bench_.FillNormal());
  for (TunedProduct& p : short_products) {
    MW_RETURN_IF_ERROR(MeasureShort(device_, bench_, &p));
    out_.products.push_back(p.sample);
  }
  MW_RETURN_IF_ERROR(MeasureSustained(device_, bench_, &products, &out_.attention, &out_.mix_clock));
  for (const TunedProduct& p : products) out_.products.push_back(p.sample);
  return Status::Ok();
}

Status Measure(const MeasureGpuOptions& options, GpuMeasurement* out) {
  const double start = Now();
  const auto say = [&](const std::string& what) {
    if (options.progress) options.progress(fmt::format("{:5.1f} s  {}", Now() - start, what));
  };
  MW_CUDA_CALL(cudaSetDevice(options.device));
  MW_CUDA_CALL(cudaFree(nullptr));  // makes the context
  MW_ASSIGN_OR_RETURN(out->context_bytes, UsedBytes());
  cudaDeviceProp properties{};
  MW_CUDA_CALL(cudaGetDeviceProperties(&properties, options.device));
  out->device = properties.name;
  out->multiprocessors = properties.multiProcessorCount;
  out->memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  int version = 0;
  MW_CUDA_CALL(cudaDriverGetVersion(&version));
  out->driver = version;
  MW_CUDA_CALL(cudaRuntimeGetVersion(&version));
  out->runtime = version;
  out->cublaslt = static_cast<int64_t>(cublasLtGetVersion());
  out->cudnn = static_cast<int64_t>(cudnnGetVersion());

  CudaDeviceOptions open;
  open.ordinal = options.device;
  MW_ASSIGN_OR_RETURN(const auto device, CudaDevice::Open(open, {true}));
  MW_ASSIGN_OR_RETURN(const int64_t before_bench, UsedBytes());
  {
    MW_ASSIGN_OR_RETURN(const auto bench, GpuBench::Create(*device, kBenchBytes));
    MW_ASSIGN_OR_RETURN(const int64_t with_bench, UsedBytes());
    Meter meter(*device, *bench, out);
    say("launches and copies");
    MW_RETURN_IF_ERROR(meter.Launches());
    MW_RETURN_IF_ERROR(meter.Copy());
    say("memory-bound kernels");
    MW_RETURN_IF_ERROR(meter.Kernels());
    say("attention");
    MW_RETURN_IF_ERROR(meter.Attention());
    MW_ASSIGN_OR_RETURN(const int64_t used, UsedBytes());
    // What was there before the bench, and what libraries and kernels took since; the device's own
    // workspace is part of a plan's arena.
    out->library_bytes =
        before_bench - out->context_bytes + used - with_bench - open.workspace_bytes;
    say(fmt::format("{} products", ProductCases().size()));
    MW_RETURN_IF_ERROR(meter.Products());
  }
  out->elapsed_s = Now() - start;
  say("done");
  return Status::Ok();
}

}  // namespace
}  // namespace cuda

Result<GpuMeasurement> MeasureGpu(const MeasureGpuOptions& options) {
  GpuMeasurement measured;
  MW_RETURN_IF_ERROR(cuda::Measure(options, &measured).WithContext("measuring the GPU"));
  return measured;
}

}  // namespace meshwright::runtime
