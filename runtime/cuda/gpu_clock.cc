#include "runtime/cuda/gpu_clock.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <array>

namespace meshwright::runtime::cuda {

/// NVML's C interface, as its manual has it: results are 0 for success.
struct GpuClock::Library {
  using Device = struct DeviceOfNvml*;
  static constexpr unsigned kMultiprocessors = 1;  // NVML_CLOCK_SM

  void* handle = nullptr;
  int (*shutdown)() = nullptr;
  int (*clock)(Device, unsigned, unsigned*) = nullptr;
  Device device = nullptr;
  unsigned highest = 0;

  Library() = default;
  ~Library() {
    if (shutdown != nullptr) static_cast<void>(shutdown());
    if (handle != nullptr) dlclose(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <typename F>
  bool Find(const char* name, F* function) const {
    *function = reinterpret_cast<F>(dlsym(handle, name));
    return *function != nullptr;
  }

  bool Open(int ordinal) {
    std::array<char, 32> bus{};
    if (cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), ordinal) != cudaSuccess) {
      return false;
    }
    handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return false;
    int (*init)() = nullptr;
    int (*by_bus)(const char*, Device*) = nullptr;
    int (*most)(Device, unsigned, unsigned*) = nullptr;
    if (!Find("nvmlInit_v2", &init) || init() != 0) return false;
    return Find("nvmlShutdown", &shutdown) && Find("nvmlDeviceGetHandleByPciBusId_v2", &by_bus) &&
           Find("nvmlDeviceGetClockInfo", &clock) && Find("nvmlDeviceGetMaxClockInfo", &most) &&
           by_bus(bus.data(), &device) == 0 && most(device, kMultiprocessors, &highest) == 0 &&
           highest > 0;
  }
};

GpuClock::GpuClock(int ordinal) : library_(std::make_unique<Library>()) {
  if (!library_->Open(ordinal)) library_.reset();
}

GpuClock::~GpuClock() = default;

double GpuClock::Share() const {
  unsigned now = 0;
  if (!library_ || library_->clock(library_->device, Library::kMultiprocessors, &now) != 0) {
    return 0.0;
  }
  return static_cast<double>(now) / static_cast<double>(library_->highest);
}

}  // namespace meshwright::runtime::cuda
