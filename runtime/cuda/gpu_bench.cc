#include "runtime/cuda/gpu_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <random>
#include <vector>

#include "runtime/cuda/compute_graphs.h"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/step_tables.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::DType;
using planner::TensorView;

constexpr int64_t kPatternBytes = int64_t{8} << 20;
constexpr int64_t kDelayBytes = int64_t{1} << 30;  // at least 200 us at 5 TB/s
constexpr int64_t kRunsADelay = 16;  // issued meanwhile at 12 us each, more than any op takes
constexpr int64_t kMostCopies = 64;
constexpr double kSeriesSeconds = 2e-3;
constexpr int64_t kLeastRuns = 4;
constexpr int64_t kMostRuns = 200;  // fewer than the driver queues without making the host wait
constexpr int kSeries = 3;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Normal values in bf16; pairs of them are such values in fp32 too.
std::vector<uint16_t> NormalPattern() {
  std::mt19937 engine(20261130);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(static_cast<size_t>(kPatternBytes) / sizeof(uint16_t));
  for (uint16_t& v : values) {
    v = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(engine)) >> 16);
  }
  return values;
}

Status FillNormalAt(std::byte* at, int64_t bytes, cudaStream_t stream) {
  static const std::vector<uint16_t> pattern = NormalPattern();
  MW_CUDA_CALL(cudaMemcpyAsync(at, pattern.data(),
                               static_cast<size_t>(std::min(bytes, kPatternBytes)),
                               cudaMemcpyHostToDevice, stream));
  for (int64_t filled = kPatternBytes; filled < bytes; filled *= 2) {
    MW_CUDA_CALL(cudaMemcpyAsync(at + filled, at,
                                 static_cast<size_t>(std::min(filled, bytes - filled)),
                                 cudaMemcpyDeviceToDevice, stream));
  }
  return Status::Ok();
}

template <typename T>
Status Upload(const std::vector<T>& values, std::byte* at, cudaStream_t stream) {
  MW_CUDA_CALL(cudaMemcpyAsync(at, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice,
                               stream));
  MW_CUDA_CALL(cudaStreamSynchronize(stream));  // the values go out of scope
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<GpuBench>> GpuBench::Create(CudaDevice& device, int64_t bytes) {
  std::unique_ptr<GpuBench> bench(new GpuBench(device));
  MW_RETURN_IF_ERROR(bench->Open(bytes).WithContext("memory to measure kernels in"));
  return bench;
}

Status GpuBench::Open(int64_t bytes) {
  int l2 = 0;
  MW_CUDA_CALL(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device_.ordinal()));
  l2_bytes_ = l2;
  MW_RETURN_IF_ERROR(memory_.Allocate(bytes));
  MW_RETURN_IF_ERROR(delay_.Allocate(kDelayBytes));
  bytes_ = bytes;
  MW_CUDA_CALL(cudaEventCreate(&begin_));
  MW_CUDA_CALL(cudaEventCreate(&end_));
  return Status::Ok();
}

GpuBench::~GpuBench() {
  // Errors have no reader here; the next checked call reports a broken context.
  for (cudaEvent_t event : {begin_, end_}) {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
  }
}

Status GpuBench::FillNormal() {
  return FillNormalAt(memory_.data(), bytes_, device_.stream(planner::kComputeStream));
}

Status GpuBench::FillIntegers(const BenchOp& bench, std::byte* at) {
  const cudaStream_t stream = device_.stream(planner::kComputeStream);
  const int64_t ids = std::max<int64_t>(bench.op.attributes.vocab, 1);
  for (const TensorView& view : bench.block.tensors) {
    const auto n = static_cast<size_t>(view.elements());
    if (view.dtype == DType::kI32) {
      std::vector<int32_t> values(n);
      std::mt19937 engine(1);
      std::uniform_real_distribution<double> uniform;
      for (int32_t& id : values) {  // frequent and rare ids
        id = static_cast<int32_t>(std::pow(uniform(engine), 3) * static_cast<double>(ids));
      }
      MW_RETURN_IF_ERROR(Upload(values, at + view.offset, stream));
    } else if (view.dtype == DType::kI64) {
      MW_RETURN_IF_ERROR(Upload(std::vector<int64_t>(n, 1), at + view.offset, stream));
    } else if (view.dtype == DType::kF64) {
      MW_RETURN_IF_ERROR(Upload(std::vector<double>(n, 1.0), at + view.offset, stream));
    }
  }
  return Status::Ok();
}

/// Seconds on the device of each of `runs`, launched as a step's kernels are.
Result<double> GpuBench::TimeGraph(int64_t runs, const std::function<Status()>& run) {
  const cudaStream_t stream = device_.stream(planner::kComputeStream);
  MW_RETURN_IF_ERROR(BeginGraphCapture(stream));
  Status status;
  for (int64_t i = 0; i < runs && status.ok(); ++i) status = run();
  Result<LaunchableGraph> graph = EndGraphCapture(stream);
  MW_RETURN_IF_ERROR(status);
  MW_RETURN_IF_ERROR(graph.status());
  MW_CUDA_CALL(cudaGraphLaunch(graph->get(), stream));  // the first one is slower
  MW_CUDA_CALL(cudaMemsetAsync(delay_.data(), 0, static_cast<size_t>(kDelayBytes), stream));
  MW_CUDA_CALL(cudaEventRecord(begin_, stream));
  MW_CUDA_CALL(cudaGraphLaunch(graph->get(), stream));
  MW_CUDA_CALL(cudaEventRecord(end_, stream));
  MW_CUDA_CALL(cudaEventSynchronize(end_));
  float milliseconds = 0.0F;
  MW_CUDA_CALL(cudaEventElapsedTime(&milliseconds, begin_, end_));
  return static_cast<double>(milliseconds) * 1e-3 / static_cast<double>(runs);
}

Result<GpuBenchTime> GpuBench::TimeSeries(const std::function<Status(int64_t)>& run, bool graph) {
  const cudaStream_t stream = device_.stream(planner::kComputeStream);
  int64_t turn = 0;
  const auto series = [&](int64_t runs) -> Result<GpuBenchTime> {
    // While this is written, the host gets ahead, so that no launch is waited for.
    for (int64_t covered = 0; covered < runs; covered += kRunsADelay) {
      MW_CUDA_CALL(cudaMemsetAsync(delay_.data(), 0, static_cast<size_t>(kDelayBytes), stream));
    }
    MW_CUDA_CALL(cudaEventRecord(begin_, stream));
    const double start = Seconds();
    for (int64_t i = 0; i < runs; ++i) MW_RETURN_IF_ERROR(run(turn++));
    const double issued = Seconds();
    MW_CUDA_CALL(cudaEventRecord(end_, stream));
    MW_CUDA_CALL(cudaEventSynchronize(end_));
    float milliseconds = 0.0F;
    MW_CUDA_CALL(cudaEventElapsedTime(&milliseconds, begin_, end_));
    const auto count = static_cast<double>(runs);
    const double device_s = static_cast<double>(milliseconds) * 1e-3 / count;
    return GpuBenchTime{device_s, device_s, (issued - start) / count};
  };
  MW_RETURN_IF_ERROR(series(2).status());  // loads kernels
  MW_ASSIGN_OR_RETURN(const GpuBenchTime once, series(kLeastRuns));
  const auto runs = static_cast<int64_t>(std::clamp(kSeriesSeconds / std::max(once.device_s, 1e-7),
                                                    static_cast<double>(kLeastRuns),
                                                    static_cast<double>(kMostRuns)));
  std::array<GpuBenchTime, kSeries> times;
  for (GpuBenchTime& t : times) {
    MW_ASSIGN_OR_RETURN(t, series(runs));
    if (!graph) continue;
    MW_ASSIGN_OR_RETURN(t.device_s, TimeGraph(runs, [&] { return run(turn++); }));
  }
  std::sort(times.begin(), times.end(),
            [](const GpuBenchTime& a, const GpuBenchTime& b) { return a.device_s < b.device_s; });
  GpuBenchTime median = times[kSeries / 2];
  for (const GpuBenchTime& t : times) median.host_s = std::min(median.host_s, t.host_s);
  return median;
}

Result<GpuBenchTime> GpuBench::Time(const BenchCase& from, planner::OpWork* work) {
  BenchOp bench(from, kBenchAlignment);
  MW_RETURN_IF_ERROR(planner::CheckOp(bench.block, bench.op, bench.program));
  const Kernel kernel = CudaKernels().kernels[static_cast<size_t>(from.kind)];
  if (kernel == nullptr) {
    return Unsupported(planner::ToString(from.kind) + ": no CUDA kernel to measure");
  }
  if (bench.bytes > bytes_) {
    return InvalidInput(fmt::format("{}: operands of {} bytes, there is room for {}",
                                    planner::ToString(from.kind), bench.bytes, bytes_));
  }
  *work = planner::WorkOf(bench.block, bench.op, bench.program);
  bench.context.device = &device_;
  MW_RETURN_IF_ERROR(device_.step_tables().Build(bench.context));
  const int64_t cold = (3 * l2_bytes_ + bench.bytes - 1) / bench.bytes;
  const int64_t copies = std::clamp<int64_t>(cold, 1, std::min(kMostCopies, bytes_ / bench.bytes));
  MW_RETURN_IF_ERROR(
      FillNormalAt(memory_.data(), copies * bench.bytes, device_.stream(planner::kComputeStream)));
  for (int64_t c = 0; c < copies; ++c) {
    MW_RETURN_IF_ERROR(FillIntegers(bench, memory_.data() + c * bench.bytes));
  }
  return TimeSeries(
      [&](int64_t turn) { return kernel(bench.At(memory_.data() + turn % copies * bench.bytes)); });
}

}  // namespace meshwright::runtime::cuda
