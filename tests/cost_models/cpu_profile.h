// A CPU profile with round numbers, for tests only: no machine has them.
#pragma once

#include "cost_models/device_profile.h"

namespace meshwright::cost {

template <typename T>
Sourced<T> Invented(T value) {
  return {value, {topologies::Origin::kMeasured, "invented for a test"}};
}

inline DeviceProfile InventedCpu() {
  DeviceProfile profile;
  profile.name = "test-cpu";
  profile.kind = topologies::DeviceKind::kCpu;
  profile.memory = Invented(Bytes(int64_t{8} << 30));
  profile.memory_bandwidth = Invented(BytesPerSecond(20e9));
  profile.memory_efficiency = Invented(1.0);
  profile.launch_overhead = Invented(Seconds(1e-6));
  CpuModel cpu;
  cpu.cores = Invented(int64_t{4});
  cpu.core_memory_bandwidth = Invented(BytesPerSecond(10e9));
  cpu.gemm = {{Precision::kFp32, 64, 64, 64, Invented(FlopsPerSecond(10e9))},
              {Precision::kFp32, 512, 512, 512, Invented(FlopsPerSecond(40e9))},
              {Precision::kFp64, 512, 512, 512, Invented(FlopsPerSecond(20e9))}};
  cpu.kernels = {{"softmax", Precision::kFp32, Invented(BytesPerSecond(2e9))}};
  cpu.arithmetic = {{"attention", Precision::kFp32, Invented(FlopsPerSecond(5e9))}};
  cpu.shared_core_efficiency = Invented(1.0);
  cpu.collective_latency = Invented(Seconds(5e-6));
  cpu.collective_step = Invented(Seconds(1e-6));
  cpu.collective_bandwidth = Invented(BytesPerSecond(4e9));
  profile.cpu = cpu;
  return profile;
}

}  // namespace meshwright::cost
