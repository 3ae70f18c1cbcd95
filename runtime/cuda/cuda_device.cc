#include "runtime/cuda/cuda_device.h"

#include <fmt/format.h>

#include <cstdlib>

#include "runtime/cuda/attention.h"
#include "runtime/cuda/gemm.h"
#include "runtime/cuda/step_tables.h"

namespace meshwright::runtime::cuda {
namespace {

constexpr int kMinimumMajor = 9;  ///< compute capability that the kernels are built for

Status CheckOrdinal(int ordinal) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    return CudaStatus(error, "cudaGetDeviceCount",
                      "no GPU can be used; check the driver, or run on CPU ranks");
  }
  if (ordinal >= 0 && ordinal < count) return Status::Ok();
  return InvalidInput(
      fmt::format("GPU {} asked for, the process sees {} (0 to {}); start at most one rank a GPU",
                  ordinal, count, count - 1));
}

}  // namespace

void AskForHardwareQueues() {
  constexpr char kVariable[] = "CUDA_DEVICE_MAX_CONNECTIONS";
  constexpr int kStreams = 8;  // compute, three classes with four edges, and one to free the others
  const char* const set = std::getenv(kVariable);
  if (set == nullptr || std::atoi(set) < kStreams) setenv(kVariable, "32", 1);
}

Status CudaStatus(cudaError_t error, const char* call, const std::string& what) {
  if (error == cudaSuccess) return Status::Ok();
  const std::string text = fmt::format("{}: {}, {} ({})", call, cudaGetErrorName(error),
                                       cudaGetErrorString(error), static_cast<int>(error));
  return RunFailed(what.empty() ? text : what + ": " + text);
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::Open(const CudaDeviceOptions& options,
                                                     const std::vector<bool>& used) {
  MW_RETURN_IF_ERROR(CheckOrdinal(options.ordinal));
  if (options.workspace_bytes < 0) {
    return InvalidInput(fmt::format("workspace of {} bytes a stream; it must be at least 0",
                                    options.workspace_bytes));
  }
  MW_CUDA_CALL(cudaSetDevice(options.ordinal));
  int major = 0;
  MW_CUDA_CALL(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, options.ordinal));
  if (major < kMinimumMajor) {
    return Unsupported(
        fmt::format("GPU {} has compute capability {}.x; the kernels are built for {}.0 and later "
                    "(H100, H200)",
                    options.ordinal, major, kMinimumMajor));
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice);
  device->options_ = options;
  MW_CUDA_CALL(
      cudaDeviceGetAttribute(&device->sm_count_, cudaDevAttrMultiProcessorCount, options.ordinal));
  int least = 0;
  int greatest = 0;
  MW_CUDA_CALL(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  device->streams_.resize(used.size(), nullptr);
  device->workspaces_.resize(used.size(), nullptr);
  const size_t counter_bytes = static_cast<size_t>(device->sm_count_) * sizeof(unsigned);
  void* counters = nullptr;
  MW_CUDA_CALL(cudaMalloc(&counters, used.size() * counter_bytes));
  device->block_counters_ = static_cast<unsigned*>(counters);
  for (size_t s = 0; s < used.size(); ++s) {
    if (!used[s]) continue;
    // Communication is short and others wait for it: it goes before products that fill the GPU.
    const bool compute = static_cast<planner::StreamId>(s) == planner::kComputeStream;
    MW_CUDA_CALL(cudaStreamCreateWithPriority(&device->streams_[s], cudaStreamNonBlocking,
                                              compute ? least : greatest));
    MW_CUDA_CALL(cudaMemsetAsync(device->block_counters(static_cast<planner::StreamId>(s)), 0,
                                 counter_bytes, device->streams_[s]));
    if (options.workspace_bytes == 0 || !options.own_workspaces) continue;
    void* memory = nullptr;
    MW_CUDA_CALL(cudaMalloc(&memory, static_cast<size_t>(options.workspace_bytes)));
    device->workspaces_[s] = static_cast<std::byte*>(memory);
  }
  device->step_tables_ = std::make_unique<StepTables>();
  MW_ASSIGN_OR_RETURN(device->gemm_, GemmEngine::Create(*device, options.tuning_file));
  MW_ASSIGN_OR_RETURN(device->attention_, AttentionEngine::Create(*device));
  return device;
}

CudaDevice::~CudaDevice() {
  // Errors have no reader here; a context that is gone already frees all of it by itself.
  static_cast<void>(cudaSetDevice(options_.ordinal));
  for (cudaStream_t stream : streams_) {
    if (stream != nullptr) static_cast<void>(cudaStreamSynchronize(stream));
  }
  attention_.reset();
  gemm_.reset();
  step_tables_.reset();
  static_cast<void>(cudaFree(block_counters_));
  if (options_.own_workspaces) {
    for (std::byte* workspace : workspaces_) static_cast<void>(cudaFree(workspace));
  }
  for (cudaStream_t stream : streams_) {
    if (stream != nullptr) static_cast<void>(cudaStreamDestroy(stream));
  }
}

Result<std::byte*> CudaDevice::workspace(planner::StreamId s, int64_t bytes) const {
  const auto index = static_cast<size_t>(s);
  if (s < 0 || index >= streams_.size() || streams_[index] == nullptr) {
    return RunFailed(fmt::format("stream {} has no workspace: it is not a used stream", s));
  }
  if (bytes > options_.workspace_bytes) {
    return RunFailed(fmt::format(
        "stream {}: scratch of {} bytes needed, {} allowed by the plan; allow a larger workspace",
        s, bytes, options_.workspace_bytes));
  }
  if (workspaces_[index] == nullptr && bytes > 0) {
    return RunFailed(fmt::format("stream {} has no workspace; only the compute stream has", s));
  }
  return workspaces_[index];
}

void CudaDevice::BindWorkspace(planner::StreamId s, std::byte* memory) {
  MW_CHECK(!options_.own_workspaces);
  workspaces_[static_cast<size_t>(s)] = memory;
}

}  // namespace meshwright::runtime::cuda
