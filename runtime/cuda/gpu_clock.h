// The clock that a GPU runs at, from the driver's management library (NVML).
#pragma once

#include <memory>

namespace meshwright::runtime::cuda {

/// Opens libnvidia-ml.so.1 when it is made, so that no build needs it.
class GpuClock {
 public:
  /// Of a CUDA ordinal. Without the library or its leave all answers are 0.
  explicit GpuClock(int ordinal);
  ~GpuClock();
  GpuClock(const GpuClock&) = delete;
  GpuClock& operator=(const GpuClock&) = delete;

  /// Clock of the multiprocessors now / the highest that they may have; 0: not known. Takes less
  /// than a millisecond.
  double Share() const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace meshwright::runtime::cuda
